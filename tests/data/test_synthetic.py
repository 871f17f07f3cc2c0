"""The floors are checked by readers written here, who know the languages but not the generators."""

import lzma
import math
from functools import cache

import numpy as np
import pytest

from blocklab.data.synthetic import GRAMMAR, MODULUS, SYNTHETIC, Synthetic, grammar_moments

EVERY = pytest.mark.parametrize("language", SYNTHETIC.values(), ids=list(SYNTHETIC))


def recall_surprise(line: str) -> float:
    """Nats of one line, read character by character as an ideal reader predicts it."""
    nats, known = 0.0, {}
    for place in range(0, 16, 2):
        nats += math.log(26 - len(known)) + math.log(10)
        assert line[place] not in known
        known[line[place]] = line[place + 1]
    assert line[16] == "?"
    for place in range(17, 33, 2):
        nats += math.log(len(known))
        assert known[line[place]] == line[place + 1]  # certain: no surprise
    return nats


def modular_surprise(line: str) -> float:
    a, operation, b, result = int(line[:2]), line[2], int(line[3:5]), int(line[6:8])
    assert line[5] == "=" and a < MODULUS and b < MODULUS
    assert result == {"+": a + b, "-": a - b, "*": a * b}[operation] % MODULUS
    return math.log(MODULUS) * 2 + math.log(3)


def grammar_surprise(line: str) -> float:
    """Minus the log of the inside probability: summed over every derivation, not the drawn one."""
    words = line.removesuffix(".").split(" ")

    @cache
    def inside(symbols: tuple[str, ...], start: int, end: int) -> float:
        if not symbols:
            return float(start == end)
        first, rest = symbols[0], symbols[1:]
        if first not in GRAMMAR:
            return inside(rest, start + 1, end) if words[start:end][:1] == [first] else 0.0
        splits = range(start, end + 1) if rest else [end]
        return math.fsum(
            p * inside(tuple(right), start, middle) * inside(rest, middle, end)
            for middle in splits
            for p, right in GRAMMAR[first]
            if middle > start or not right or right[0] in GRAMMAR
        )

    return -math.log(inside(("SENTENCE",), 0, len(words)))


READERS = {
    "recall": recall_surprise,
    "modular": modular_surprise,
    "grammar": cache(grammar_surprise),
}


@EVERY
def test_the_floor_is_what_an_ideal_reader_pays_on_average(language: Synthetic) -> None:
    texts = [text for _, text in language.documents()][: 60 if language.name == "grammar" else 50]
    spent = [math.fsum(map(READERS[language.name], text.splitlines())) for text in texts]
    tokens = [len(text) + 1 for text in texts]  # the separator is one token and no surprise
    rest = np.array(spent) - language.entropy_floor * np.array(tokens)
    # The mean of a document's nats minus floor times tokens is 0, within its own standard error.
    error = rest.std(ddof=1) / math.sqrt(len(rest))
    assert abs(rest.mean()) <= max(4 * error, 1e-9 * np.mean(spent))
    assert error < 0.02 * np.mean(spent)


def test_the_floors_in_closed_form() -> None:
    recall = math.log(math.factorial(26) / math.factorial(18)) + 8 * math.log(10) + 8 * math.log(8)
    assert SYNTHETIC["recall"].entropy_floor == pytest.approx(60 * recall / (60 * 34 + 1))
    modular = math.log(97 * 97 * 3)
    assert SYNTHETIC["modular"].entropy_floor == pytest.approx(220 * modular / (220 * 9 + 1))


def test_grammar_moments_of_a_grammar_solved_by_hand() -> None:
    # S -> "a" S (1/2) | "bb" (1/2): geometric, ln 2 for each choice, two choices on average.
    entropy, length = grammar_moments({"S": [(0.5, ["a", "S"]), (0.5, ["bb"])]}, "S")
    assert entropy == pytest.approx(2 * math.log(2))
    assert length == pytest.approx(1 * 2 + 3)


@EVERY
def test_no_compressor_goes_below_the_floor(language: Synthetic) -> None:
    text = "\0".join(text for _, text in language.documents())
    nats = len(lzma.compress(text.encode(), preset=6)) * 8 * math.log(2) / len(text)
    assert nats > language.entropy_floor


@EVERY
def test_documents_are_ascii_plenty_different_and_always_the_same(language: Synthetic) -> None:
    first, again = list(language.documents()), list(language.documents())
    assert first == again
    texts = [text for _, text in first]
    assert all(text.isascii() and "\0" not in text for text in texts)
    assert len(set(texts)) == len(texts) > 500
    assert sum(map(len, texts)) == pytest.approx(2_000_000, rel=0.01)


def test_the_texts_are_the_same_in_every_version_and_on_every_machine() -> None:
    # Pinned: a changed text is a changed result for every study of it.
    starts = {name: next(language.documents())[1][:27] for name, language in SYNTHETIC.items()}
    assert starts == {
        "grammar": "the cats that like the bird",
        "recall": "v7q2a6j5r4w1s0y1?y1j5y1s0y1",
        "modular": "21*69=91\n37+77=17\n34*12=20\n",
    }


@EVERY
def test_answers_are_the_determined_characters_of_lines_that_begin_inside(
    language: Synthetic,
) -> None:
    text = "\0".join(text for _, text in list(language.documents())[:3])
    for start in (0, 1, 17, 40):
        window = text[start : start + 3_000]
        found = language.answers(np.frombuffer(window.encode(), np.uint8))
        expected, line = [], None  # None: before the first line end nothing counts
        for character in window:
            offset = None if line is None else line
            expected.append(offset in language.answer_offsets)
            line = 0 if character in "\n\0" else None if line is None else line + 1
        assert found.tolist() == expected
        assert found.any() == bool(language.answer_offsets)


def test_answers_of_many_windows_at_once_equal_those_one_by_one() -> None:
    language = SYNTHETIC["recall"]
    text = next(language.documents())[1].encode()
    windows = np.frombuffer(text[:2000], np.uint8).reshape(10, 200)
    one_by_one = np.stack([language.answers(window) for window in windows])
    assert np.array_equal(language.answers(windows), one_by_one)
    digits = np.frombuffer(text, np.uint8)[language.answers(np.frombuffer(text, np.uint8))]
    assert len(digits) == 59 * 8 and bytes(digits).isdigit()


def derivations(symbols: tuple[str, ...], words: tuple[str, ...]) -> int:
    """In how many ways the rules make the words of the symbols."""
    if not symbols:
        return not words
    first, *rest = symbols
    if first not in GRAMMAR:
        return derivations(tuple(rest), words[1:]) if words[:1] == (first,) else 0
    # No rule begins with itself, and each word costs a symbol: this ends.
    return sum(derivations((*made, *rest), words) for _, made in GRAMMAR[first])


def test_a_sentence_of_the_grammar_has_one_derivation() -> None:
    _, document = next(SYNTHETIC["grammar"].documents())
    for sentence in document.removesuffix(".\n").split(".\n"):
        assert derivations(("SENTENCE",), tuple(sentence.split())) == 1, sentence


def test_of_words_of_both_numbers_a_noun_is_none() -> None:
    """So the noun decides what "the" leaves open."""
    words = {name: {made[0] for _, made in rules if made} for name, rules in GRAMMAR.items()}
    assert words["DET1"] & words["DET2"] == {"the"}
    for kind in ("N", "VI", "VT"):
        assert not words[f"{kind}1"] & words[f"{kind}2"]
