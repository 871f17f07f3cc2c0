"""The folder where prepared corpora and downloads are kept, and how things are put there.

Processes that prepare the same thing at once cannot see or spoil each other's halves. Knows nothing
of tokens.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from blocklab.errors import BlocklabError
from blocklab.files import write_atomically

VARIABLE = "BLOCKLAB_CACHE"


def digest(*parts: object) -> str:
    """A name for plain values: equal values give equal names."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def default_cache() -> Path:
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else Path("~/.cache/blocklab").expanduser()


def writable(folder: Path) -> bool:
    """Make the folder if need be, and try it: permissions alone do not tell."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def writable_cache(asked: Path | None) -> tuple[Path, tuple[str, ...]]:
    """A cache that can be written, and what to say about it.

    A folder that was asked for outright is used or refused; the default one gives way to the
    system's temporary folder.
    """
    folder = asked or default_cache()
    if writable(folder):
        return folder, ()
    if asked:
        raise BlocklabError(f"cache '{folder}' cannot be written; give a folder that can")
    fallback = Path(tempfile.gettempdir()) / f"blocklab-{_user()}"
    with contextlib.suppress(OSError):
        fallback.mkdir(mode=0o700, exist_ok=True)
    if not writable(fallback) or not _own(fallback):
        raise BlocklabError(
            f"neither the cache '{folder}' nor '{fallback}' can be written; "
            f"name a folder in {VARIABLE}"
        )
    return fallback, (f"the cache '{folder}' cannot be written: '{fallback}' is used instead",)


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")


def _own(folder: Path) -> bool:
    return not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()


def write_json(path: Path, content: Mapping[str, object]) -> None:
    write_atomically(path, json.dumps(content, indent=1, sort_keys=True).encode("utf-8"))


def read_json(path: Path) -> dict[str, object] | None:
    """The object in a JSON file, or None where there is no such file or it is not one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
