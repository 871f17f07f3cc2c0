"""From bytes to clean text, in pieces of bounded size.

Decodes, strips a byte-order mark, normalises line ends, and remembers what it did, so that it can
be said. Knows files and formats, not corpora: which files are read is decided elsewhere.
"""

import codecs
import importlib
import io
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

from blocklab.errors import BlocklabError

Errors: TypeAlias = Literal["strict", "surrogateescape"]
"""What to do with bytes that are not text: refuse them, or carry each through as itself."""

Stream: TypeAlias = tuple[str, Iterator[str]]
"""One document: its name and its text in pieces. Read the pieces before asking for the next."""

PIECE = 1 << 16  # characters
BLOCK = 1 << 18  # bytes
LONGEST_LINE = 1 << 28  # bytes of one .jsonl line

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


def check_encoding(encoding: str) -> None:
    try:
        io.TextIOWrapper(io.BytesIO(), encoding)
    except (LookupError, ValueError):
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
    bytes_decoder = codecs.getincrementaldecoder(encoding)(errors)
    decoder = io.IncrementalNewlineDecoder(bytes_decoder, translate=True)
    fed, started = 0, False
    for block in _with_end(data):
        pending = len(bytes_decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            offset = fed - pending + error.start
            raise undecodable(where, offset, error, encoding) from None
        fed += len(block)
        if text and not started:
            started = True
            if text.startswith("\ufeff"):
                notes.add("byte-order mark stripped", where)
                text = text[1:]
        if text:
            yield text
    if decoder.newlines not in (None, "\n"):
        notes.add("line ends (CRLF or CR) normalised to LF", where)


def _with_end(data: Iterable[bytes]) -> Iterator[bytes]:
    for block in data:
        if block:
            yield block
    yield b""


def undecodable(where: str, offset: int, error: UnicodeDecodeError, encoding: str) -> BlocklabError:
    found = error.object[error.start]
    return BlocklabError(
        f"{where}: byte {offset} (0x{found:02x}) is not {encoding} ({error.reason}); "
        "name the file's encoding with --encoding (data.encoding), "
        "or read raw bytes with the tokenizer 'bytes'"
    )


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
    offset = 0
    with open_file(path) as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            at = f"{where}, line {number}"
            if len(line) == LONGEST_LINE:
                raise BlocklabError(f"{at}: longer than {LONGEST_LINE:,} bytes; is it .jsonl?")
            if number == 1 and line.startswith(codecs.BOM_UTF8):
                notes.add("byte-order mark stripped", where)
                line, offset = line[3:], 3
            try:
                text = line.decode(encoding, errors)
            except UnicodeDecodeError as error:
                raise undecodable(at, offset + error.start, error, encoding) from None
            offset += len(line)
            if text.strip():
                yield at, in_pieces([cleaned(_text_field(text, at), at, errors, notes)])


def _text_field(line: str, at: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise BlocklabError(f"{at}: not JSON ({error})") from None
    if not isinstance(entry, dict):
        raise BlocklabError(f'{at}: expected an object with "text", found {entry!r:.40}')
    if "text" not in entry:
        raise BlocklabError(f'{at}: no "text", found the keys {", ".join(entry) or "(none)"}')
    text = entry["text"]
    if not isinstance(text, str):
        raise BlocklabError(f'{at}: "text" is {text!r:.40}, expected a string')
    return text


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
            raise BlocklabError(f"{where}: no column 'text', found {', '.join(names)}")
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
