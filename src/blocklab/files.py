"""Files and folders that are there whole or not at all, whenever a process is killed.

Everything is written beside its place, synced, then renamed. What is in them is the caller's
business.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from blocklab.errors import BlocklabError, RunFailed

LOCK = ".lock"
"""In a folder: held by the process that works there."""

BAD_NAMES = {
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.EINVAL,
}
"""What the system answers where a name was wrong and no disk failed."""

_PARTIAL = ".partial-"
_DAY = 86_400.0
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_BETWEEN_TRIES = 0.05


def write_atomically(path: Path, data: bytes | Callable[[BinaryIO], object]) -> None:
    """Put `data`, or what it writes, at `path`: old content or new, never half.

    Raises RunFailed when the disk refuses (full, read-only, a file where a folder should be).
    """
    with new_file(path) as partial, partial.open("xb") as file:
        _ = data(file) if callable(data) else file.write(data)


@contextlib.contextmanager
def new_file(path: Path, previous: Path | None = None) -> Iterator[Path]:
    """A path to write; on success it becomes `path`, and the file that stood there `previous`.

    Raises RunFailed when the disk refuses.
    """
    partial = path.with_name(f"{_PARTIAL}{uuid.uuid4().hex}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        _sync(partial)
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(partial, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise refused(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; on success it becomes `path`. If another process was first, its stays.

    Raises RunFailed when the disk refuses.
    """
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
        raise refused(path, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def make_folder(path: Path) -> None:
    """A folder at `path`, where there is none yet. Raises RunFailed when the disk refuses."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(path, error) from error


def require_room_for_folder(path: Path) -> None:
    """Raise BlocklabError where a file is in the way of a folder at `path`.

    Raises OSError where the path holds a name that no disk takes.
    """
    there = next(place for place in (path, *path.parents, Path()) if place.exists())
    if not there.is_dir():
        raise BlocklabError(f"{path}: {there} is a file; give another folder")
    for name in path.parts:
        # Of a name below what is not there yet the system says nothing.
        (there / name).exists()


def discard(folder: Path) -> None:
    """Take a damaged folder out of the way at once, then delete it."""
    aside = folder.with_name(f"{_PARTIAL}{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        os.rename(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def locked(path: Path, *, make: bool = True, wait: bool = True) -> Iterator[None]:
    """Alone with the file at `path`, which goes on to exist; a killed process keeps nobody out.

    Raises FileNotFoundError where it is not to be made and there is none, BlockingIOError where it
    is not to be waited for and somebody else is at it.
    """
    if make:
        path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | (os.O_CREAT if make else 0), 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def alone_in(folder: Path, refusal: str, *, patience: float = 0.0) -> Iterator[None]:
    """Keep other processes out of `folder`, made if missing; a killed one keeps nobody out.

    The lock's file goes when this ends. Where somebody is in there it is tried again for `patience`
    seconds, then BlocklabError says `refusal`. Raises RunFailed when the disk refuses. A file
    system that knows no locks keeps nobody out.
    """
    path, until = folder / LOCK, time.monotonic() + patience
    handle = None
    while handle is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = _locked_file(path)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise BlocklabError(refusal) from None
            time.sleep(_BETWEEN_TRIES)
        except OSError as error:
            raise refused(folder, error) from error
    try:
        yield
    finally:
        # While it is held: whoever comes next makes a file of its own.
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(handle)


def _locked_file(path: Path) -> int | None:
    """The file at `path`, open and locked; None where it was taken away in between."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        if os.path.samestat(os.fstat(handle), os.stat(path)):
            return handle
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def remove_partial(folder: Path, name: str = "*") -> None:
    """Remove what killed processes left of the file `name`, or of any, in `folder`.

    Only while nobody else can be writing there.
    """
    for left in folder.glob(f"{_PARTIAL}*-{name}"):
        with contextlib.suppress(OSError):
            left.unlink()


def refused(path: Path, error: OSError) -> BlocklabError:
    """The disk's refusal as a failed run; a name that no disk would take as bad input."""
    reason = error.strerror or error
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return BlocklabError(f"{path}: {reason}; choose another name")
    return RunFailed(f"{path}: cannot be written ({reason}); make room or choose another folder")


def _sync(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """A new name is on the disk only once its folder is; not every system can do that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _sweep(folder: Path) -> None:
    """Remove what killed processes left behind a day ago or earlier."""
    for left in folder.glob(f"{_PARTIAL}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _DAY:
                shutil.rmtree(left, ignore_errors=True)
