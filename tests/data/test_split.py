from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from blocklab.data.corpora import Corpus
from blocklab.data.reading import Notes, Stream, utf8
from blocklab.data.split import MANY, Side, cut, split


def corpus_of(texts: list[str]) -> Corpus:
    def read(notes: Notes) -> Iterator[Stream]:
        return ((str(number), iter([text] if text else [])) for number, text in enumerate(texts))

    return Corpus("test", "test", read)


def sides(texts: list[str], share: float = 0.1) -> dict[Side, dict[int, str]]:
    corpus = corpus_of(texts)
    found: dict[Side, dict[int, str]] = {Side.TRAIN: {}, Side.VALIDATION: {}}
    for number, side, piece in split(corpus.survey, share).texts(corpus):
        found[side][number] = found[side].get(number, "") + piece
    return found


def share_of(found: dict[Side, dict[int, str]]) -> float:
    size = {side: sum(len(utf8(text)) for text in found[side].values()) for side in Side}
    return size[Side.VALIDATION] / sum(size.values())


DOCUMENTS = st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=80)


@settings(deadline=None)
@given(texts=DOCUMENTS, share=st.floats(0.05, 0.5))
def test_nothing_is_lost_and_no_byte_is_on_both_sides(texts: list[str], share: float) -> None:
    found = sides(texts, share)
    for number, text in enumerate(texts):
        assert found[Side.TRAIN].get(number, "") + found[Side.VALIDATION].get(number, "") == text


@settings(deadline=None)
@given(
    texts=st.lists(st.sampled_from([str(n) * 40 for n in range(60)]), min_size=MANY, max_size=200)
)
def test_equal_documents_are_never_on_both_sides(texts: list[str]) -> None:
    chosen = split(corpus_of(texts).survey, 0.3)
    if chosen.held_out is None:
        return  # tails: equal documents are cut at the same place
    found = sides(texts, 0.3)
    assert not set(found[Side.TRAIN].values()) & set(found[Side.VALIDATION].values())


def test_equal_documents_that_are_cut_are_cut_at_the_same_place() -> None:
    found = sides(["one and the same text"] * 5)
    assert len(set(found[Side.TRAIN].values())) == len(set(found[Side.VALIDATION].values())) == 1


def test_many_documents_stay_whole_and_come_near_the_share() -> None:
    texts = [f"{number} " * (1 + number % 50) for number in range(500)]
    for share in (0.05, 0.1, 0.3):
        found = sides(texts, share)
        assert abs(share_of(found) - share) < 0.01
        assert not set(found[Side.TRAIN]) & set(found[Side.VALIDATION])


def test_a_new_document_leaves_nearly_all_others_where_they_were() -> None:
    texts = [f"document {number}" * 10 for number in range(500)]
    before = set(sides(texts)[Side.VALIDATION].values())
    after = set(sides(["new" * 30, *texts])[Side.VALIDATION].values())
    assert len(before ^ after) <= 3


def test_order_and_names_of_documents_do_not_decide_their_side() -> None:
    texts = [f"document {number}" * 10 for number in range(100)]
    forward, backward = sides(texts), sides(texts[::-1])
    assert set(forward[Side.VALIDATION].values()) == set(backward[Side.VALIDATION].values())


def test_a_single_text_gives_its_tail() -> None:
    text = "0123456789" * 10
    found = sides([text], 0.1)
    assert found == {Side.TRAIN: {0: text[:90]}, Side.VALIDATION: {0: text[90:]}}


def test_few_documents_each_give_their_tail() -> None:
    found = sides(["a" * 100, "b" * 50], 0.2)
    assert found[Side.VALIDATION] == {0: "a" * 20, 1: "b" * 10}


def test_one_document_that_is_nearly_everything_does_not_leave_validation_starved() -> None:
    texts = ["x" * 100_000, *(f"note {number}" for number in range(50))]
    assert abs(share_of(sides(texts, 0.1)) - 0.1) < 0.01


@given(text=st.text(min_size=1), data=st.data())
def test_a_cut_never_falls_inside_a_character(text: str, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(text)))
    head = data.draw(st.integers(0, len(text.encode())))
    pieces = iter([text[i : i + size] for i in range(0, len(text), size)])
    parts = list(cut(pieces, head))
    before = "".join(piece for side, piece in parts if side is Side.TRAIN)
    after = "".join(piece for side, piece in parts if side is Side.VALIDATION)
    assert before + after == text
    assert 0 <= head - len(before.encode()) <= 3


@given(raw=st.binary(min_size=1), data=st.data())
def test_a_cut_loses_no_raw_bytes(raw: bytes, data: st.DataObject) -> None:
    head = data.draw(st.integers(0, len(raw)))
    parts = cut(iter([raw.decode("utf-8", "surrogateescape")]), head)
    assert b"".join(utf8(piece) for _, piece in parts) == raw


def test_empty_documents_are_left_out() -> None:
    assert sum(map(len, sides(["", "text" * 10, ""]).values())) == 2
