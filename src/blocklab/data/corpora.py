"""Where text comes from: the corpora that have names, files, folders and URLs.

A corpus streams its documents in a fixed order and can say cheaply whether it is what it was
(`identity`) and exactly what it holds (`survey`). It knows nothing of tokens or of the split.
"""

import hashlib
import os
import sys
import sysconfig
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from blocklab.data import gutenberg
from blocklab.data.cache import default_cache, digest
from blocklab.data.fetching import fetch, kept_name
from blocklab.data.reading import (
    Errors,
    Notes,
    Stream,
    check_encoding,
    cleaned,
    in_pieces,
    json_lines,
    open_file,
    parquet_rows,
    text_file,
    utf8,
)
from blocklab.data.synthetic import SYNTHETIC, VERSION
from blocklab.errors import BlocklabError, nearest

Say = Callable[[str], None]

READING = 2  # raised whenever the same files would be read as other text
BUCKETS = 1 << 16
NAMES = (
    "python-library",
    "python-docs",
    "time-machine",
    *(f"synthetic:{name}" for name in SYNTHETIC),
)


@dataclass(frozen=True)
class Survey:
    """What one reading of a whole corpus found; ten bytes a document.

    `buckets` sorts documents by a hash of their text alone, so that equal texts share a bucket.
    """

    fingerprint: str
    sizes: "array[int]"  # UTF-8 bytes of each document
    buckets: "array[int]"  # 0 ≤ bucket < BUCKETS for each document
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """A corpus by name. `identity` changes when what it would read from has changed."""

    name: str
    identity: str
    read: Callable[[Notes], Iterable[Stream]]
    found: tuple[str, ...] = ()  # what was noted before reading

    def streams(self, notes: Notes | None = None) -> Iterator[Stream]:
        """Every document that is not empty, in order, its text in pieces of bounded size."""
        for name, pieces in self.read(notes or Notes()):
            first = next(pieces, None)
            if first is not None:
                yield name, chain([first], pieces)

    def documents(self) -> Iterator[tuple[str, str]]:
        """Every document that is not empty, in order, its text whole."""
        for name, pieces in self.streams():
            yield name, "".join(pieces)

    @cached_property
    def survey(self) -> Survey:
        notes, whole = Notes(), hashlib.blake2b(digest_size=16)
        sizes, buckets = array("Q"), array("H")
        for _, pieces in self.streams(notes):
            document, size = hashlib.blake2b(digest_size=16), 0
            for piece in pieces:
                data = utf8(piece)
                document.update(data)
                size += len(data)
            whole.update(document.digest())
            sizes.append(size)
            buckets.append(int.from_bytes(document.digest()[:2], "big"))
        return Survey(whole.hexdigest(), sizes, buckets, self.found + notes.said())

    @property
    def fingerprint(self) -> str:
        """Of the documents' text, in order; the first call reads the corpus."""
        return self.survey.fingerprint

    @property
    def notes(self) -> tuple[str, ...]:
        """What was skipped or normalised; the first call reads the corpus."""
        return self.survey.notes


def read_corpus(
    name: str,
    encoding: str = "utf-8",
    *,
    errors: Errors = "strict",
    cache: Path | None = None,
    say: Say | None = None,
) -> Corpus:
    """The corpus called `name`: one of NAMES, a file, a folder, or an http(s) URL.

    `encoding` and `errors` are for files, folders and URLs; corpora with names have their own.
    Raises BlocklabError for a name that means nothing; bad text is found only in reading it.
    """
    check_encoding(encoding)
    cache, say = cache or default_cache(), say or (lambda text: None)
    if name == "python-library":
        return _python_library()
    if name == "python-docs":
        return _python_docs()
    if name == gutenberg.NAME:
        path = gutenberg.find(cache, say)
        return Corpus(name, _listing(name, [path]), lambda notes: gutenberg.read(path, notes))
    if name.startswith("synthetic:"):
        return _synthetic(name)
    if name.startswith(("http://", "https://")):
        return _url(name, encoding, errors, cache, say)
    return _path(name, Path(name).expanduser(), encoding, errors)


def place_of(name: str) -> Path | None:
    """Where the corpus called `name` lies, seen from here, as an absolute path.

    None for what is no file or folder of the user's own, and for one that is not there.
    """
    if not is_path(name):
        return None
    path = Path(os.path.abspath(Path(name).expanduser()))
    return path if path.exists() else None


def is_path(name: str) -> bool:
    """Whether a corpus is called by the path of a file or a folder."""
    return name not in NAMES and not name.startswith(("synthetic:", "http://", "https://"))


def _listing(name: str, paths: Iterable[Path]) -> str:
    """What files were there, by size and time of change: cheap, and changes with any edit."""
    stats = ((os.path.abspath(path), path.stat()) for path in paths)
    found = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    return digest(READING, name, found)


# --- corpora that need no network -----------------------------------------------------------------

# Tests are not library code; the last two are written by the build and differ between machines.
_NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_OF_THE_BUILD = ("config-", "_sysconfigdata")


def _python_library() -> Corpus:
    """The running Python's standard library, read as text and never imported."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(_library_files(root), key=lambda path: path.relative_to(root).parts)

    def read(notes: Notes) -> Iterator[Stream]:
        for path in paths:
            where = path.relative_to(root).as_posix()
            with open_file(path) as file:
                data = file.read()
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError:
                notes.add("skipped, not UTF-8", where)
                continue
            yield where, in_pieces([cleaned(text.removeprefix("\ufeff"), where, "strict", notes)])

    return Corpus("python-library", _listing(sys.version, paths), read)


def _library_files(root: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(root):
        inner[:] = [d for d in inner if d not in _NOT_LIBRARY and not d.startswith(_OF_THE_BUILD)]
        for file in files:
            if file.endswith(".py") and not file.startswith((*_OF_THE_BUILD, "sitecustomize")):
                yield Path(folder, file)


def _python_docs() -> Corpus:
    """The English prose of `help()`, which every CPython carries."""

    def read(notes: Notes) -> Iterator[Stream]:
        from pydoc_data.topics import topics  # half a megabyte of literals: only when read

        for topic in sorted(topics):
            yield topic, in_pieces([cleaned(topics[topic], topic, "strict", notes)])

    return Corpus("python-docs", digest("python-docs", sys.version), read)


def _synthetic(name: str) -> Corpus:
    language = SYNTHETIC.get(name.removeprefix("synthetic:"))
    if language is None:
        raise BlocklabError(f"corpus '{name}': no such language; {nearest(name, NAMES)}")

    def read(notes: Notes) -> Iterator[Stream]:
        return ((document, in_pieces([text])) for document, text in language.documents())

    return Corpus(name, digest(name, VERSION), read)


# --- the user's own -------------------------------------------------------------------------------


def _path(name: str, path: Path, encoding: str, errors: Errors) -> Corpus:
    if not name.strip():
        raise BlocklabError("corpus '': the name is empty; is a shell variable not set?")
    try:
        if path.is_dir():
            return _folder(name, path, encoding, errors)
        if path.is_file():
            return _file(name, path, encoding, errors)
        exists = path.exists()
    except OSError as error:
        raise BlocklabError(f"corpus '{name}': cannot be read ({error.strerror})") from None
    if exists:
        raise BlocklabError(f"corpus '{name}': not a regular file; it must be read more than once")
    raise BlocklabError(f"corpus '{name}': no such file or folder; {nearest(name, NAMES)}")


def _file(name: str, path: Path, encoding: str, errors: Errors) -> Corpus:
    identity = _listing(name, [path])
    return Corpus(name, identity, lambda notes: _documents(path, name, encoding, errors, notes))


def _folder(name: str, root: Path, encoding: str, errors: Errors) -> Corpus:
    """Every file below the folder, sorted by path; hidden and binary ones are skipped and said.

    Links are followed, to files and folders alike; what is read under another name is skipped, and
    said too.
    """
    listing = Notes()
    paths = _in_order(_visible_files(root, listing), root)
    wide = encoding.lower().replace("_", "-").startswith(("utf-16", "utf-32"))

    def read(notes: Notes) -> Iterator[Stream]:
        for path in paths:
            where = path.relative_to(root).as_posix()
            if path.suffix.lower() != ".parquet" and not wide and _is_binary(path):
                notes.add("skipped, binary", where)
                continue
            yield from _documents(path, where, encoding, errors, notes)

    return Corpus(name, _listing(name, paths), read, listing.said())


def _in_order(paths: Iterable[Path], root: Path) -> list[Path]:
    return sorted(paths, key=lambda path: path.relative_to(root).parts)


_AGAIN = "skipped, read under another name"


def _visible_files(root: Path, notes: Notes) -> Iterator[Path]:
    """Files below the folder; what lies there comes before what links lead to."""
    read: set[tuple[int, int]] = set()  # folders and files, by device and inode
    file_links: list[Path] = []
    # One round for the folder itself, then one for the folders that the round before linked to.
    folders = [root]
    while folders:
        links: list[Path] = []
        for folder in folders:
            if _is_new(folder, read):
                yield from _walked(folder, root, read, notes, links)
            else:
                notes.add(_AGAIN, _named(folder, root))
        file_links += (link for link in links if not os.path.isdir(link))
        folders = _in_order((link for link in links if os.path.isdir(link)), root)
    for link in _in_order(file_links, root):
        if not os.path.isfile(link):
            notes.add("skipped, not a regular file", _named(link, root))
        elif _is_new(link, read):
            yield link
        else:
            notes.add(_AGAIN, _named(link, root))


def _walked(
    top: Path, root: Path, read: set[tuple[int, int]], notes: Notes, links: list[Path]
) -> Iterator[Path]:
    """The regular files below a folder; the links there are added to `links`."""

    def unreadable(error: OSError) -> None:
        notes.add("skipped, cannot be read", _named(Path(error.filename), root))

    for folder, inner, files in os.walk(top, onerror=unreadable):
        folders = set(inner)
        inner.clear()
        for name in sorted(folders.union(files)):
            path = Path(folder, name)
            if name.startswith("."):
                notes.add("skipped, hidden", _named(path, root))
            elif path.is_symlink():
                links.append(path)
            elif name in folders:
                if _is_new(path, read):
                    inner.append(name)
                else:
                    notes.add(_AGAIN, _named(path, root))
            elif os.path.isfile(path):
                _is_new(path, read)
                yield path
            else:
                notes.add("skipped, not a regular file", _named(path, root))


def _is_new(path: Path, read: set[tuple[int, int]]) -> bool:
    """Whether what lies there has not been met under another name; it then has been."""
    try:
        stat = path.stat()
    except OSError:
        return True  # whoever opens it says why it cannot be read
    new = (stat.st_dev, stat.st_ino) not in read
    read.add((stat.st_dev, stat.st_ino))
    return new


def _named(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _is_binary(path: Path) -> bool:
    with open_file(path) as file:
        return b"\0" in file.read(1 << 13)


def _documents(
    path: Path, where: str, encoding: str, errors: Errors, notes: Notes
) -> Iterator[Stream]:
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        yield from json_lines(path, where, encoding, errors, notes)
    elif suffix == ".parquet":
        yield from parquet_rows(path, where, errors, notes)
    else:
        yield where, text_file(path, where, encoding, errors, notes)


def _url(name: str, encoding: str, errors: Errors, cache: Path, say: Say) -> Corpus:
    kept = cache / "downloads" / kept_name(name)
    if not kept.is_file():
        say(f"fetching {name}")
        fetch(name, kept)
    identity = _listing(name, [kept])
    found = (f"fetched once and kept: {name}",)
    return Corpus(
        name, identity, lambda notes: _documents(kept, name, encoding, errors, notes), found
    )
