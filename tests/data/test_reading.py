import importlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklab.data import reading
from blocklab.data.corpora import read_corpus
from blocklab.data.reading import (
    PIECE,
    Notes,
    check_encoding,
    decoded,
    in_pieces,
    json_lines,
    parquet_rows,
    safe_cut,
    text_file,
    utf8,
)
from blocklab.errors import BlocklabError


def text_of(data: bytes, size: int = 3, encoding: str = "utf-8", errors: str = "strict") -> str:
    blocks = [data[i : i + size] for i in range(0, len(data), size)]
    return "".join(decoded(blocks, "file.txt", encoding, errors, Notes()))


@given(text=st.text(alphabet="a \r\né€😀\x85\u2028"), size=st.integers(1, 7))
def test_decoding_in_blocks_of_any_size_equals_decoding_the_whole(text: str, size: int) -> None:
    whole = text.replace("\r\n", "\n").replace("\r", "\n")
    assert text_of(text.encode(), size) == whole
    assert text_of(text.encode("utf-16"), size, "utf-16") == whole


def test_crlf_cr_and_a_byte_order_mark_go_and_are_said() -> None:
    notes = Notes()
    data = [b"\xef\xbb", b"\xbfone\r", b"\ntwo\rthree\n"]
    assert "".join(decoded(data, "a.txt", "utf-8", "strict", notes)) == "one\ntwo\nthree\n"
    said = " ".join(notes.said())
    assert "byte-order mark stripped: a.txt" in said
    assert "line ends (CRLF or CR) normalised to LF: a.txt" in said


def test_clean_text_says_nothing() -> None:
    notes = Notes()
    assert "".join(decoded([b"one\ntwo\n"], "a.txt", "utf-8", "strict", notes)) == "one\ntwo\n"
    assert notes.said() == ()


def test_a_byte_order_mark_inside_a_text_stays() -> None:
    assert text_of("a\ufeffb".encode()) == "a\ufeffb"


@settings(deadline=None)
@given(before=st.text(max_size=50), size=st.integers(1, 7))
def test_a_byte_that_is_no_text_is_named_with_its_offset_in_the_file(
    before: str, size: int
) -> None:
    data = before.encode() + b"\xff" + b"after"
    with pytest.raises(BlocklabError) as error:
        text_of(data, size)
    said = str(error.value)
    assert f"file.txt: byte {len(before.encode())} (0xff) is not utf-8" in said
    assert "--encoding" in said and "'bytes'" in said


def test_a_character_broken_off_at_the_end_is_named_where_it_begins() -> None:
    with pytest.raises(BlocklabError, match=r"byte 2 \(0xe2\)"):
        text_of(b"ab\xe2\x82", 1)


@given(data=st.binary(max_size=200).filter(lambda data: b"\r" not in data), size=st.integers(1, 7))
def test_raw_bytes_come_back_as_they_were(data: bytes, size: int) -> None:
    if data.startswith(b"\xef\xbb\xbf"):
        return
    assert utf8(text_of(data, size, errors="surrogateescape")) == data


@settings(deadline=None, max_examples=25)
@given(
    parts=st.lists(st.sampled_from(["a", " ", "\n", "word ", "\n\n", "x" * 40_000, "é" * 30_000])),
    size=st.integers(1, 100_000),
)
def test_pieces_are_the_same_text_and_bounded(parts: list[str], size: int) -> None:
    text = "".join(parts)
    pieces = list(in_pieces(text[i : i + size] for i in range(0, len(text), size)))
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= PIECE for piece in pieces)


def test_a_cut_comes_before_whitespace_lines_first_and_in_a_word_only_when_it_must() -> None:
    assert safe_cut("one two\n\nthree four five", 0, 20) == 7
    assert safe_cut("one two three", 0, 9) == 7
    assert safe_cut("onetwothree", 0, 9) == 9
    assert safe_cut("\n\n\n\nonetwo", 0, 8) == 8


def test_json_lines_are_documents_with_the_line_in_their_name(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one\\r\\n"}\r\n\r\n{"n": 1, "text": "t\\ud83d"}')
    notes = Notes()
    found = [(n, "".join(p)) for n, p in json_lines(path, "a.jsonl", "utf-8", "strict", notes)]
    assert found == [("a.jsonl, line 1", "one\n"), ("a.jsonl, line 3", "t\ufffd")]
    said = " ".join(notes.said())
    assert "byte-order" in said and "line ends" in said and "surrogate" in said


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 2: not JSON"),
        (b'{"txt": "a", "id": 2}', 'line 2: no "text", found the keys txt, id'),
        (json.dumps(dict.fromkeys("abcdefghijk")).encode(), "keys a, .* g, h, and 3 more$"),
        (b'{"%s": 1}' % (b"long " * 99), r"found the keys (long ){40}$"),
        (b'"text"', "line 2: expected an object"),
        (b'{"text": 5}', 'line 2: "text" is 5'),
        (b"[" * 200_000, r"line 2: not JSON that can be read \(nested too deeply\)"),
        (b"1" * 5000, "line 2: not JSON"),
        (b'{"text": "\xff"}', r"line 2: byte 24 \(0xff\)"),
    ],
)
def test_a_bad_json_line_is_named_by_its_number(line: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + line)
    with pytest.raises(BlocklabError, match=message):
        for _, pieces in json_lines(path, "a.jsonl", "utf-8", "strict", Notes()):
            list(pieces)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1"])
@pytest.mark.parametrize("block", [1, 3, 1 << 18])
def test_lines_are_cut_after_decoding(
    encoding: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In UTF-16 a line's end is two bytes, and the byte of one stands in other characters too."""
    monkeypatch.setattr(reading, "BLOCK", block)
    wide = [] if encoding == "latin-1" else ["\u0a0a\u010a\u2028y"]
    texts = ["one", "zw\u00f6lf\u0085x", *wide]
    path = tmp_path / "a.jsonl"
    lines = "\r\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in texts)
    path.write_bytes(lines.encode(encoding))
    found = list(json_lines(path, "a.jsonl", encoding, "strict", Notes()))
    assert [name for name, _ in found] == [f"a.jsonl, line {n + 1}" for n in range(len(texts))]
    assert ["".join(pieces) for _, pieces in found] == texts


def test_a_broken_character_is_named_with_its_line_and_byte_in_any_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"text": "a"}\n{"text": "b'.encode("utf-16") + b"\x00\xd8x\x00")
    with pytest.raises(BlocklabError, match=r"line 2: byte 52 \(0x00\) is not utf-16 \(illegal"):
        list(json_lines(path, "a.jsonl", "utf-16", "strict", Notes()))


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_utf16_without_a_byte_order_mark_is_refused_by_file(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes('{"text": "a"}'.encode("utf-16-le"))
    with pytest.raises(BlocklabError, match=rf"{name}.*: byte 0 is not utf-16 \(.*BOM\)"):
        list(read_corpus(str(tmp_path / name), "utf-16").documents())


@pytest.mark.parametrize(
    "encoding", ["undefined", "punycode", "idna", "rot13", "base64", "nonsense"]
)
def test_what_reads_no_text_is_no_encoding(encoding: str) -> None:
    with pytest.raises(BlocklabError, match=f"encoding '{encoding}' is not a text encoding"):
        check_encoding(encoding)


@pytest.mark.parametrize(
    "encoding",
    ["utf-8", "utf-8-sig", "utf-16", "utf-32-be", "cp1252", "gb18030", "iso2022_jp", "cp037"],
)
def test_encodings_of_text_are_taken(encoding: str) -> None:
    check_encoding(encoding)


@pytest.mark.parametrize("name", ["a.jsonl", "a.JSONL", "a.ndjson", "a.NDJson"])
def test_endings_are_read_in_any_case(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"text": "one"}\n{"text": "two"}\n')
    assert [text for _, text in read_corpus(str(tmp_path / name)).documents()] == ["one", "two"]
    assert [text for _, text in read_corpus(str(tmp_path)).documents()] == ["one", "two"]


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LONGEST_LINE", 100)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "x" * 200}))
    with pytest.raises(BlocklabError, match=r"line 1: longer than 100 characters"):
        list(json_lines(path, "a.jsonl", "utf-8", "strict", Notes()))


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(BlocklabError, match=r"a\.parquet.*blocklab\[parquet\]"):
        list(parquet_rows(tmp_path / "a.parquet", "a.parquet", "strict", Notes()))


def test_parquet_rows_are_documents(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = importlib.import_module("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3], "text": ["one\r\n", None, "three"]}), path)
    found = [(n, "".join(p)) for n, p in parquet_rows(path, "a", "strict", Notes())]
    assert found == [("a, row 1", "one\n"), ("a, row 3", "three")]
    pq.write_table(pa.table({"words": ["one"]}), path)
    with pytest.raises(BlocklabError, match="no column 'text', found words"):
        list(parquet_rows(path, "a", "strict", Notes()))
    path.write_bytes(b"no parquet")
    with pytest.raises(BlocklabError, match="not a Parquet file"):
        list(parquet_rows(path, "a", "strict", Notes()))


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(BlocklabError, match=r"gone\.txt: cannot be read"):
        list(text_file(tmp_path / "gone.txt", "gone.txt", "utf-8", "strict", Notes()))


def test_notes_count_files_and_name_the_first() -> None:
    notes = Notes()
    for name in ("a", "b", "c"):
        notes.add("skipped, binary", name)
    assert notes.said() == ("skipped, binary: 3 times, first in a",)
