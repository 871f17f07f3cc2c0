import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from blocklab.data.corpora import NAMES, Corpus, read_corpus
from blocklab.errors import BlocklabError


def names(corpus: Corpus) -> list[str]:
    return [name for name, _ in corpus.documents()]


@pytest.fixture(scope="module")
def library() -> Corpus:
    return read_corpus("python-library")


def test_the_library_is_the_standard_librarys_source_in_order(library: Corpus) -> None:
    found = dict(library.documents())
    assert list(found) == sorted(found, key=lambda name: tuple(name.split("/")))
    assert 9e6 < sum(map(len, found.values())) < 2e7
    root = Path(sysconfig.get_paths()["stdlib"])
    for name in ("ast.py", "json/decoder.py", "asyncio/base_events.py"):
        assert found[name] == (root / name).read_text(encoding="utf-8")


def test_the_library_holds_no_tests_no_packages_and_nothing_of_this_machine(
    library: Corpus,
) -> None:
    parts = {part for name in names(library) for part in Path(name).parts}
    assert not parts & {"test", "tests", "idle_test", "site-packages", "__pycache__"}
    assert not [part for part in parts if part.startswith(("_sysconfigdata", "config-"))]


def test_the_library_is_read_and_never_imported(library: Corpus) -> None:
    before = set(sys.modules)
    assert "antigravity.py" in names(library)
    assert "antigravity" not in sys.modules
    assert not set(sys.modules) - before - {"antigravity"}


def test_library_files_that_are_no_utf8_are_skipped_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text("no")
    (tmp_path / "old.py").write_bytes(b"# caf\xe9\n")
    (tmp_path / "new.py").write_bytes(b"\xef\xbb\xbfa\r\n")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    corpus = read_corpus("python-library")
    assert list(corpus.documents()) == [("new.py", "a\n")]
    assert "skipped, not UTF-8: old.py" in corpus.notes


def test_the_docs_come_sorted_however_python_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydoc_data.topics.topics", {"b": "2", "c": "3", "a": "1"})
    assert names(read_corpus("python-docs")) == ["a", "b", "c"]


def test_the_docs_are_english_prose_sorted_by_topic() -> None:
    found = dict(read_corpus("python-docs").documents())
    assert list(found) == sorted(found)
    text = "".join(found.values())
    assert 400_000 < len(text) < 600_000
    assert len(re.findall(r"\bthe\b", text)) > 2_000


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("synthetic")])
def test_synthetic_corpora_stream_their_documents(name: str) -> None:
    corpus = read_corpus(name)
    assert next(corpus.documents())[0] == f"{name.removeprefix('synthetic:')}-0"
    assert corpus.fingerprint == read_corpus(name).fingerprint


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(BlocklabError, match=r"'no-such-file\.txt': no such file or folder"):
        read_corpus("no-such-file.txt")
    with pytest.raises(BlocklabError, match=r"did you mean 'python-docs'.*python-library"):
        read_corpus("python-doc")
    with pytest.raises(BlocklabError, match="did you mean 'synthetic:recall'"):
        read_corpus("synthetic:recal")
    for encoding in ("utf-9", "hex", "", "utf\0"):
        with pytest.raises(BlocklabError, match=f"encoding '{encoding}' is not a text encoding"):
            read_corpus("python-docs", encoding)
    with pytest.raises(BlocklabError):
        read_corpus("x" * 5_000)


def test_a_file_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffcafé\r\n".encode())
    corpus = read_corpus(str(path))
    assert [text for _, text in corpus.documents()] == ["café\n"]
    assert len(corpus.notes) == 2
    path.write_bytes("café\n".encode("latin-1"))
    assert [text for _, text in read_corpus(str(path), "latin-1").documents()] == ["café\n"]


def test_the_fingerprint_is_of_the_text_and_the_identity_of_the_file(tmp_path: Path) -> None:
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_bytes(b"a\r\nb")
    two.write_bytes(b"a\nb")
    first, second = read_corpus(str(one)), read_corpus(str(two))
    assert first.fingerprint == second.fingerprint
    assert first.identity != second.identity
    assert read_corpus(str(one)).identity == first.identity
    one.write_bytes(b"a\r\nc")
    assert read_corpus(str(one)).identity != first.identity
    assert read_corpus(str(one)).fingerprint != second.fingerprint


def test_documents_joined_differently_have_another_fingerprint(tmp_path: Path) -> None:
    for folder, texts in {"one": ["ab", "c"], "two": ["a", "bc"]}.items():
        (tmp_path / folder).mkdir()
        for number, text in enumerate(texts):
            (tmp_path / folder / f"{number}.txt").write_text(text)
    first, second = (read_corpus(str(tmp_path / name)).fingerprint for name in ("one", "two"))
    assert first != second


def test_a_folder_is_its_text_files_in_order_and_says_what_it_skipped(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", "a/b.py", ".hidden", ".git/config", "empty.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("" if name == "empty.txt" else name)
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\0\0")
    (tmp_path / "c.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    corpus = read_corpus(str(tmp_path))
    assert names(corpus) == ["a/b.py", "a/z.md", "b.txt", "c.jsonl, line 1", "c.jsonl, line 2"]
    said = " ".join(corpus.notes)
    assert "skipped, hidden: 2 times" in said
    assert "skipped, binary: image.png" in said
    assert "skipped, not a regular file: 2 times" in said


def linked(tmp_path: Path) -> Path:
    """A folder, and beside it what its links lead to."""
    root, beside = tmp_path / "root", tmp_path / "beside"
    for path in (root / "b" / "in.txt", root / "z.txt", beside / "deep" / "out.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {path.name}")
    return root


def test_a_link_to_a_folder_is_read_as_the_folder_would_be(tmp_path: Path) -> None:
    root = linked(tmp_path)
    alone = read_corpus(str(root)).fingerprint
    (root / "a").symlink_to(tmp_path / "beside")
    corpus = read_corpus(str(root))
    assert names(corpus) == ["a/deep/out.txt", "b/in.txt", "z.txt"]
    assert corpus.notes == ()
    (root / "a").unlink()
    shutil.copytree(tmp_path / "beside", root / "a")
    assert read_corpus(str(root)).fingerprint == corpus.fingerprint != alone


def test_links_in_a_circle_and_second_names_are_read_once_and_said(tmp_path: Path) -> None:
    root = linked(tmp_path)
    (root / "a").symlink_to(root / "b")  # named before the folder itself, and yet the link
    (root / "b" / "up").symlink_to(root)
    (root / "a.txt").symlink_to(root / "z.txt")
    (root / "c").symlink_to(tmp_path / "beside" / "deep")
    (root / "d").symlink_to(tmp_path / "beside")  # holds what c leads to
    (root / "d.txt").symlink_to(tmp_path / "beside" / "deep" / "out.txt")
    (tmp_path / "beside" / "back").symlink_to(root)
    (root / "self").symlink_to("self")
    corpus = read_corpus(str(root))
    assert names(corpus) == ["b/in.txt", "c/out.txt", "z.txt"]
    again, broken = corpus.notes
    assert again.startswith("skipped, read under another name: 6 times, first in a")
    assert broken == "skipped, not a regular file: self"
    assert read_corpus(str(root)).fingerprint == corpus.fingerprint


def test_a_file_of_two_names_without_a_link_is_two_documents(tmp_path: Path) -> None:
    root = linked(tmp_path)
    (root / "y.txt").hardlink_to(root / "z.txt")
    assert names(read_corpus(str(root))) == ["b/in.txt", "y.txt", "z.txt"]


def test_a_file_in_a_folder_that_is_no_utf8_is_an_error_not_a_loss(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc\xe9")
    with pytest.raises(BlocklabError, match=r"a\.txt: byte 3 \(0xe9\)"):
        read_corpus(str(tmp_path)).survey  # noqa: B018


def test_a_folder_of_utf16_is_not_taken_for_binary(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("text".encode("utf-16"))
    assert list(read_corpus(str(tmp_path), "utf-16").documents()) == [("a.txt", "text")]


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BlocklabError, match="not a regular file"):
        read_corpus(str(tmp_path / "pipe"))


def test_a_survey_measures_every_document(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "é"}\n{"text": ""}\n{"text": "abc"}\n{"text": "é"}')
    survey = read_corpus(str(tmp_path / "a.jsonl")).survey
    assert survey.sizes.tolist() == [2, 3, 2]
    assert survey.buckets[0] == survey.buckets[2] != survey.buckets[1]
