"""From bytes to clean text, in pieces of bounded size.

Decodes, strips a byte-order mark, normalises line ends, and remembers what it did, so that it can
be said. Knows files and formats, not corpora: which files are read is decided elsewhere.
"""

import codecs
import importlib
import io
import json
import re
import reprlib
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

from blocklab.errors import BlocklabError

Errors: TypeAlias = Literal["strict", "surrogateescape"]
"""What to do with bytes that are not text: refuse them, or carry each through as itself."""

Stream: TypeAlias = tuple[str, Iterator[str]]
"""One document: its name and its text in pieces. Read the pieces before asking for the next."""

PIECE = 1 << 16  # characters
BLOCK = 1 << 18  # bytes
LONGEST_LINE = 1 << 28  # characters of one .jsonl line
LISTED = 8  # names in an error

_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
_NOT_RAW_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")


class Notes:
    """What was done to the text, and to how many files. Grows with kinds of notes, not files."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, str]] = {}

    def add(self, what: str, where: str) -> None:
        count, first = self._seen.get(what, (0, where))
        self._seen[what] = (count + 1, first)

    def said(self) -> tuple[str, ...]:
        return tuple(
            f"{what}: {first}" if count == 1 else f"{what}: {count} times, first in {first}"
            for what, (count, first) in self._seen.items()
        )


def utf8(text: str) -> bytes:
    """The text's UTF-8 bytes; bytes that were carried through undecoded come back as they were."""
    return text.encode("utf-8", "surrogateescape")


def without_lone_surrogates(text: str) -> str:
    """Half a surrogate pair is no character and has no UTF-8: it becomes U+FFFD."""
    return _LONE_SURROGATES.sub("\ufffd", text)


# Longer than a name of the network may be: what only decodes such names is no text encoding.
_SAMPLE = "A b.\n" + "c" * 100


def check_encoding(encoding: str) -> None:
    """Raise BlocklabError unless text can be read in the encoding of that name, piece by piece."""
    try:
        io.TextIOWrapper(io.BytesIO(), encoding)
        decoder = codecs.getincrementaldecoder(encoding)("strict")
        for byte in _SAMPLE.encode(encoding):
            decoder.decode(bytes([byte]))
        decoder.decode(b"", True)
    except (LookupError, ValueError):  # a UnicodeError is a ValueError
        raise BlocklabError(
            f"encoding '{encoding}' is not a text encoding that Python knows; "
            "expected a name such as utf-8, latin-1, cp1252 or utf-16"
        ) from None


def open_file(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise BlocklabError(f"{path}: cannot be read ({error.strerror})") from None


def blocks(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(BLOCK):
        yield block


def decoded(
    data: Iterable[bytes], where: str, encoding: str, errors: Errors, notes: Notes
) -> Iterator[str]:
    """Text of a stream of bytes: decoded, no byte-order mark, every line end a single LF."""
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    try:
        for text in _without_mark(_texts(data, encoding, errors), where, notes):
            if translated := newlines.decode(text):
                yield translated
    except _Undecodable as error:
        raise error.told(where, encoding) from None
    if last := newlines.decode("", final=True):
        yield last
    if newlines.newlines not in (None, "\n"):
        notes.add("line ends (CRLF or CR) normalised to LF", where)


class _Undecodable(Exception):
    """Bytes that are not text, from `offset` on."""

    def __init__(self, offset: int, error: UnicodeError) -> None:
        self.offset, self.error = offset, error

    def told(self, where: str, encoding: str) -> BlocklabError:
        """The same for a reader of messages; `where` names the file, and the line if known."""
        place, reason = f"byte {self.offset}", str(self.error)
        if isinstance(self.error, UnicodeDecodeError):
            place += f" (0x{self.error.object[self.error.start]:02x})"
            reason = self.error.reason
        return BlocklabError(
            f"{where}: {place} is not {encoding} ({reason}); "
            "name the file's encoding with --encoding (data.encoding), "
            "or read raw bytes with the tokenizer 'bytes'"
        )


def _texts(data: Iterable[bytes], encoding: str, errors: Errors) -> Iterator[str]:
    """Text of a stream of bytes as it is, with what precedes the first byte that is not text.

    Raises _Undecodable at that byte.
    """
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    fed = 0
    for block in _with_end(data):
        state = decoder.getstate()
        try:
            yield decoder.decode(block, final=not block)
        except UnicodeError as error:
            good = error.start - len(state[0]) if isinstance(error, UnicodeDecodeError) else 0
            decoder.setstate(state)
            yield decoder.decode(block[: max(good, 0)])
            raise _Undecodable(fed + good, error) from None
        fed += len(block)


def _without_mark(texts: Iterable[str], where: str, notes: Notes) -> Iterator[str]:
    """What is left of a text without the byte-order mark that it may begin with."""
    started = False
    for text in texts:
        if text and not started:
            started = True
            if text.startswith("\ufeff"):
                notes.add("byte-order mark stripped", where)
                text = text[1:]
        if text:
            yield text


def _with_end(data: Iterable[bytes]) -> Iterator[bytes]:
    for block in data:
        if block:
            yield block
    yield b""


def in_pieces(texts: Iterable[str]) -> Iterator[str]:
    """The same text in pieces of at most PIECE characters, cut where no tokenizer minds."""
    held = ""
    for text in texts:
        held += text
        start = 0
        while len(held) - start > PIECE:
            end = safe_cut(held, start, start + PIECE)
            yield held[start:end]
            start = end
        held = held[start:]
    if held:
        yield held


def safe_cut(text: str, start: int, limit: int) -> int:
    """The last place in (start, limit] to cut so that both sides tokenise as the whole would.

    GPT-2's pattern never joins a visible character to whitespace after it, so a cut just before a
    run of whitespace changes nothing (just after one it would). Lines are preferred to words;
    text without whitespace is cut at the limit. Needs len(text) > limit.
    """
    for space in "\n ":
        end = text.rfind(space, start + 1, limit + 1)
        while end > start:
            if not text[end - 1].isspace():
                return end
            end = text.rfind(space, start + 1, end)
    return limit


def text_file(path: Path, where: str, encoding: str, errors: Errors, notes: Notes) -> Iterator[str]:
    """The pieces of one text file."""
    with open_file(path) as file:
        yield from in_pieces(decoded(blocks(file), where, encoding, errors, notes))


def json_lines(
    path: Path, where: str, encoding: str, errors: Errors, notes: Notes
) -> Iterator[Stream]:
    """One document a line, its text under "text". An error names the line."""
    number = 0
    with open_file(path) as file:
        texts = _without_mark(_texts(blocks(file), encoding, errors), where, notes)
        try:
            for line in _lines(texts, where):
                number += 1
                at = f"{where}, line {number}"
                if line.strip():
                    yield at, in_pieces([cleaned(_text_field(line, at), at, errors, notes)])
        except _Undecodable as error:
            raise error.told(f"{where}, line {number + 1}", encoding) from None


def _lines(texts: Iterable[str], where: str) -> Iterator[str]:
    """Lines without their LF; no other character ends one, for JSON may hold it."""
    held: list[str] = []
    length = number = 0
    for text in texts:
        *ended, rest = text.split("\n")
        for end in ended:
            yield "".join([*held, end])
            held, length, number = [], 0, number + 1
        held.append(rest)
        length += len(rest)
        if length > LONGEST_LINE:
            at = f"{where}, line {number + 1}"
            raise BlocklabError(f"{at}: longer than {LONGEST_LINE:,} characters; is it .jsonl?")
    if length:
        yield "".join(held)


def _text_field(line: str, at: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise BlocklabError(f"{at}: not JSON ({error})") from None
    except RecursionError:
        raise BlocklabError(f"{at}: not JSON that can be read (nested too deeply)") from None
    if not isinstance(entry, dict):
        found = reprlib.repr(entry)
        raise BlocklabError(f'{at}: expected an object with "text", found {found:.40}')
    if "text" not in entry:
        raise BlocklabError(f'{at}: no "text", found the keys {_listed(entry)}')
    text = entry["text"]
    if not isinstance(text, str):
        raise BlocklabError(f'{at}: "text" is {reprlib.repr(text):.40}, expected a string')
    return text


def _listed(names: Collection[str]) -> str:
    """Some of the names, for a line that is read by eye."""
    some = ", ".join(islice(names, LISTED)) or "(none)"
    more = len(names) - LISTED
    return f"{some:.200}, and {more} more" if more > 0 else f"{some:.200}"


def cleaned(text: str, where: str, errors: Errors, notes: Notes) -> str:
    """Text that arrives decoded (from JSON or Parquet), given the same treatment as a file's."""
    if "\r" in text:
        notes.add("line ends (CRLF or CR) normalised to LF", where)
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    stray = _LONE_SURROGATES if errors == "strict" else _NOT_RAW_BYTES
    if stray.search(text):
        notes.add("half a surrogate pair replaced by U+FFFD", where)
        text = stray.sub("\ufffd", text)
    return text


def parquet_rows(path: Path, where: str, errors: Errors, notes: Notes) -> Iterator[Stream]:
    """One document a row, its text in the column "text". Needs pyarrow."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise BlocklabError(
            f"{where}: reading .parquet needs pyarrow; pip install 'blocklab[parquet]'"
        ) from None
    try:
        table = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise BlocklabError(f"{where}: not a Parquet file ({error})") from None
    with table:
        names = table.schema_arrow.names
        if "text" not in names:
            raise BlocklabError(f"{where}: no column 'text', found {_listed(names)}")
        row = 0
        for batch in table.iter_batches(batch_size=256, columns=["text"]):
            for text in batch.column(0).to_pylist():
                row += 1
                at = f"{where}, row {row}"
                if text is None:
                    continue
                if not isinstance(text, str):
                    raise BlocklabError(f"{at}: 'text' is {text!r:.40}, expected a string")
                yield at, in_pieces([cleaned(text, at, errors, notes)])
