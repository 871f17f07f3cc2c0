"""The corpus `time-machine`: one book by H. G. Wells, from a folder, the cache or the network."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from blocklab.data.fetching import fetch
from blocklab.data.reading import Notes, Stream, blocks, decoded, in_pieces, open_file, utf8
from blocklab.errors import BlocklabError

NAME = "time-machine"
FILE = "time_machine.txt"
VARIABLE = "BLOCKLAB_DATA"
URLS = (
    "https://www.gutenberg.org/files/35/35-0.txt",
    "https://www.gutenberg.org/cache/epub/35/pg35.txt",
)

# The text that published figures were made with, between its markers, LF, stripped.
PUBLISHED_SHA256 = "0f515ed3829fd8fc9715f6f6db9ad3f3cf38760a05b96bd5d621bd383c93da3c"

_MARKER = re.compile(r"^\*\*\* ?(START|END) .*$", re.MULTILINE)


def find(cache: Path, say: Callable[[str], None]) -> Path:
    """The book's file: in a folder that BLOCKLAB_DATA names, in the cache, or fetched into it."""
    named = filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))
    kept = cache / "downloads" / FILE
    for path in (*(Path(folder).expanduser() / FILE for folder in named), kept):
        if path.is_file():
            return path
    problems = []
    for url in URLS:
        say(f"fetching {url}")
        try:
            fetch(url, kept)
        except BlocklabError as error:
            problems.append(str(error))
        else:
            return kept
    raise BlocklabError(
        f"corpus '{NAME}': {'; '.join(problems)}. Without a network, put the text into a file "
        f"{FILE} and name its folder in {VARIABLE}"
    )


def read(path: Path, notes: Notes) -> Iterator[Stream]:
    """The book alone, as one document; says so when its text is not the published revision."""
    with open_file(path) as file:
        text = between_markers("".join(decoded(blocks(file), FILE, "utf-8", "strict", notes)))
    found = hashlib.sha256(utf8(text)).hexdigest()
    if found != PUBLISHED_SHA256:
        notes.add(f"another revision (sha256 {found[:16]}) than published figures used", NAME)
    yield NAME, in_pieces([text])


def between_markers(text: str) -> str:
    """What stands between the lines `*** START …` and `*** END …`, stripped; without them, all."""
    start, end = 0, len(text)
    for marker in _MARKER.finditer(text):
        if marker[1] == "START" and start == 0:
            start = marker.end()
        elif marker[1] == "END" and start:
            end = marker.start()
            break
    return text[start:end].strip()
