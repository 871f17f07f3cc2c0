"""Fetching one file over HTTP, once. Nothing here decides what is worth fetching."""

import http.client
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from blocklab.data.cache import digest
from blocklab.errors import BlocklabError
from blocklab.files import new_file

TIMEOUT = 30.0  # seconds without a byte


def kept_name(url: str) -> str:
    """The file name under which a URL's content is kept: readable, unique, same ending."""
    last = urllib.parse.urlsplit(url).path.rsplit("/", 1)[-1] or "index"
    return f"{digest(url)[:12]}-{re.sub(r'[^A-Za-z0-9._-]', '_', last)[-80:]}"


def fetch(url: str, target: Path) -> None:
    """Write the content of `url` to `target`, whole or not at all.

    Raises BlocklabError with the reason when the network or the server says no.
    """
    request = urllib.request.Request(url, headers={"User-Agent": "blocklab"})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        raise BlocklabError(f"{url}: the server answered {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise BlocklabError(f"{url}: could not be fetched ({_reason(error)})") from None
    with answer, new_file(target) as partial:
        with partial.open("wb") as file:
            for block in _received(answer, url):
                file.write(block)
        promised, got = answer.headers.get("Content-Length"), partial.stat().st_size
        if promised is not None and int(promised) != got:
            raise BlocklabError(f"{url}: broke off after {got:,} of {int(promised):,} bytes")


def _received(answer: IO[bytes], url: str) -> Iterator[bytes]:
    try:
        while block := answer.read(1 << 20):
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise BlocklabError(f"{url}: broke off ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", "") or error or type(error).__name__)
