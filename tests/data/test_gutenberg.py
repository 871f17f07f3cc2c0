import hashlib
from pathlib import Path

import pytest

from blocklab.data import gutenberg
from blocklab.data.corpora import read_corpus
from blocklab.errors import BlocklabError

WRAPPED = """The Project Gutenberg eBook\r
*** START OF THE PROJECT GUTENBERG EBOOK THE TIME MACHINE ***\r
\r
The Time Machine\r
\r
* * *\r
*** not a marker\r
end\r
\r
*** END OF THE PROJECT GUTENBERG EBOOK THE TIME MACHINE ***\r
licence\r
"""
INNER = "The Time Machine\n\n* * *\n*** not a marker\nend"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []

    def refuse(url: str, target: Path) -> None:
        asked.append(url)
        raise BlocklabError(f"{url}: could not be fetched (no network)")

    monkeypatch.setattr(gutenberg, "fetch", refuse)
    monkeypatch.delenv("BLOCKLAB_DATA", raising=False)
    return asked


def test_the_book_is_what_stands_between_the_markers() -> None:
    text = WRAPPED.replace("\r", "")
    assert gutenberg.between_markers(text) == INNER
    assert gutenberg.between_markers(text.replace("OF THE", "OF THIS")) == INNER
    assert gutenberg.between_markers(text.replace("*** ", "***")).endswith("end")


def test_what_follows_the_first_end_is_cut_even_when_another_end_follows() -> None:
    text = WRAPPED.replace("\r", "") + "*** END: FULL LICENSE ***\n"
    assert gutenberg.between_markers(text.replace("END: FULL", "END : FULL")) == INNER


def test_a_text_without_markers_is_taken_whole() -> None:
    assert gutenberg.between_markers(INNER) == INNER
    assert gutenberg.between_markers("a\n*** END OF IT ***\nb") == "a\n*** END OF IT ***\nb"


def test_the_folder_named_by_the_environment_comes_before_cache_and_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: list[str]
) -> None:
    (tmp_path / "time_machine.txt").write_bytes(b"\xef\xbb\xbf" + WRAPPED.encode())
    monkeypatch.setenv("BLOCKLAB_DATA", str(tmp_path))
    corpus = read_corpus("time-machine", cache=tmp_path / "cache")
    assert [text for _, text in corpus.documents()] == [INNER]
    assert no_network == []
    said = " ".join(corpus.notes)
    assert "byte-order mark" in said and "line ends" in said
    assert f"another revision (sha256 {hashlib.sha256(INNER.encode()).hexdigest()[:16]})" in said


def test_it_is_fetched_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BLOCKLAB_DATA", raising=False)
    asked = []

    def answer(url: str, target: Path) -> None:
        asked.append(url)
        if len(asked) == 1:
            raise BlocklabError("moved")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(WRAPPED)

    monkeypatch.setattr(gutenberg, "fetch", answer)
    said: list[str] = []
    for _ in range(2):
        corpus = read_corpus("time-machine", cache=tmp_path, say=said.append)
        assert [text for _, text in corpus.documents()] == [INNER]
    assert asked == list(gutenberg.URLS)
    assert len(said) == 2


def test_without_network_the_way_out_is_named(tmp_path: Path, no_network: list[str]) -> None:
    with pytest.raises(BlocklabError, match=r"no network.*time_machine\.txt.*BLOCKLAB_DATA"):
        read_corpus("time-machine", cache=tmp_path)
    assert no_network == list(gutenberg.URLS)


def test_the_published_revision_is_known_and_needs_no_note(
    published_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOCKLAB_DATA", str(published_data))
    corpus = read_corpus("time-machine")
    [(_, text)] = corpus.documents()
    assert text == (published_data / "time_machine.txt").read_text(encoding="utf-8")
    assert corpus.notes == ()
