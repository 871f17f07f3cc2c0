"""The folder where prepared corpora and downloads are kept, and how things are put there.

Every file and folder is written beside its place, synced, then renamed, so that processes which
prepare the same thing at once cannot see or spoil each other's halves. Knows nothing of tokens.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from blocklab.errors import BlocklabError, RunFailed

VARIABLE = "BLOCKLAB_CACHE"
_PARTIAL = ".partial-"
_DAY = 86_400.0


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


def _sync(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every system lets a folder be opened or synced
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A path to write; on success it becomes `path`, whole or not at all."""
    partial = path.with_name(f"{_PARTIAL}{uuid.uuid4().hex}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        _sync(partial)
        os.replace(partial, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise RunFailed(f"{path}: could not be written ({error.strerror or error})") from error
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; on success it becomes `path`. If another process was first, its stays."""
    partial = path.with_name(f"{_PARTIAL}{uuid.uuid4().hex}")
    try:
        partial.mkdir(parents=True)
        _sweep(path.parent)
        yield partial
        for file in partial.iterdir():
            _sync(file)
        _sync_folder(partial)
        with contextlib.suppress(OSError):
            os.rename(partial, path)
        if not path.is_dir():
            raise OSError(None, "the finished folder could not be put in place")
        _sync_folder(path.parent)
    except OSError as error:
        raise RunFailed(f"{path}: could not be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def discard(folder: Path) -> None:
    """Take a damaged folder out of the way at once, then delete it."""
    aside = folder.with_name(f"{_PARTIAL}{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        os.rename(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what killed processes left behind a day ago or earlier."""
    for left in folder.glob(f"{_PARTIAL}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _DAY:
                shutil.rmtree(left, ignore_errors=True)


def write_json(path: Path, content: Mapping[str, object]) -> None:
    with new_file(path) as partial:
        partial.write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")


def read_json(path: Path) -> dict[str, object] | None:
    """The object in a JSON file, or None where there is no such file or it is not one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
