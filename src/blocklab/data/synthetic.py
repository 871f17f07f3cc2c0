"""Languages whose entropy is known, so that a loss can be read against what no model can beat.

Each is a distribution over documents of plain ASCII, read with the tokenizer `bytes` (one token a
character, documents separated by byte 0). Its floor is the entropy of a document divided by its
expected number of tokens, the separator included: the expected loss in nats per token of a reader
who knows the language and sees the document from its beginning. A window that begins inside a
document sees less, so its expected loss is above the floor.

Draws use only `Random.random`, whose sequence Python guarantees; the texts are the same everywhere.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from blocklab.streams import stream_seed

VERSION = 1  # raised whenever a text changes
CHARACTERS = 2_000_000  # about this much text in each corpus

Rules = Mapping[str, Sequence[tuple[float, Sequence[str]]]]
"""A probabilistic grammar: for each nonterminal, (probability, right-hand side)."""


@dataclass(frozen=True)
class Synthetic:
    """One language: documents of `lines` independent lines.

    `line_entropy` is in nats, `line_length` in (expected) characters, line end included.
    `answer_offsets` are the places within a line whose character follows from the line before it
    with certainty: where a model that has understood scores 100 %.
    """

    name: str
    line: Callable[[Random], str]
    line_entropy: float
    line_length: float
    lines: int
    answer_offsets: tuple[int, ...] = ()

    @property
    def entropy_floor(self) -> float:
        """Nats per token of the tokenizer `bytes`; see the module's docstring."""
        return self.lines * self.line_entropy / (self.lines * self.line_length + 1)

    def documents(self) -> Iterator[tuple[str, str]]:
        """Always the same documents, about CHARACTERS characters in all."""
        for number in range(round(CHARACTERS / (self.lines * self.line_length))):
            random = Random(stream_seed(VERSION, "synthetic", self.name, number))
            yield f"{self.name}-{number}", "".join(self.line(random) for _ in range(self.lines))

    def answers(self, tokens: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which tokens (..., T) are determined answers, in lines that begin inside the window.

        A line that began before the window is left out: what decides its answers may lie outside.
        """
        places = np.arange(tokens.shape[-1])
        ends = (tokens == ord("\n")) | (tokens == 0)
        # The last line end strictly before each place: at a line end itself, the one before it.
        last = np.maximum.accumulate(np.where(ends, places, -1), axis=-1)
        before = np.concatenate([np.full_like(last[..., :1], -1), last[..., :-1]], axis=-1)
        return np.isin(places - before - 1, self.answer_offsets) & (before >= 0)


def _below(random: Random, n: int) -> int:
    return int(random.random() * n)


# --- a probabilistic grammar ----------------------------------------------------------------------

_NOUNS = ("cat", "dog", "bird", "child", "robot", "farmer", "whale", "poet")
_PLURALS = ("cats", "dogs", "birds", "children", "robots", "farmers", "whales", "poets")
_ADJECTIVES = ("old", "small", "quiet", "happy", "green")


def _zipf(words: Sequence[str]) -> list[tuple[float, Sequence[str]]]:
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    return [(weight / sum(weights), [word]) for weight, word in zip(weights, words, strict=True)]


GRAMMAR: Rules = {
    "SENTENCE": [(0.5, ["NP1", "VP1"]), (0.5, ["NP2", "VP2"])],
    "NP": [(0.5, ["NP1"]), (0.5, ["NP2"])],
    # 1 is singular, 2 plural: the verb agrees with a noun any number of clauses back.
    "NP1": [(1.0, ["DET1", "ADJ?", "N1", "REL1?"])],
    "NP2": [(1.0, ["DET2", "ADJ?", "N2", "REL2?"])],
    "REL1?": [(0.8, []), (0.2, ["that", "VP1"])],
    "REL2?": [(0.8, []), (0.2, ["that", "VP2"])],
    "VP1": [(0.5, ["VI1"]), (0.5, ["VT1", "NP"])],
    "VP2": [(0.5, ["VI2"]), (0.5, ["VT2", "NP"])],
    "ADJ?": [(0.7, []), (0.3, ["ADJ"])],
    "ADJ": _zipf(_ADJECTIVES),
    "DET1": _zipf(("the", "a", "every")),
    "DET2": _zipf(("the", "some", "all")),
    "N1": _zipf(_NOUNS),
    "N2": _zipf(_PLURALS),
    "VI1": _zipf(("sleeps", "sings", "waits", "falls")),
    "VI2": _zipf(("sleep", "sing", "wait", "fall")),
    "VT1": _zipf(("sees", "likes", "follows", "hears", "finds")),
    "VT2": _zipf(("see", "like", "follow", "hear", "find")),
}


def grammar_moments(rules: Rules, start: str) -> tuple[float, float]:
    """Entropy in nats of the derivations from `start`, and their expected length.

    Length counts every word and one character after it. With M[i, j] the expected number of
    nonterminals j in one expansion of i, entropies and lengths both solve x = own + M x, where own
    is the entropy of the choice of rule, or the expected length of its words (Grenander 1976).
    Where each text has one derivation, as in GRAMMAR, the entropy is that of the texts.
    """
    index = {name: place for place, name in enumerate(rules)}
    expected = np.zeros((len(rules), len(rules)))
    own = np.zeros((len(rules), 2))
    for name, choices in rules.items():
        for probability, symbols in choices:
            own[index[name], 0] -= probability * math.log(probability)
            for symbol in symbols:
                if symbol in index:
                    expected[index[name], index[symbol]] += probability
                else:
                    own[index[name], 1] += probability * (len(symbol) + 1)
    entropy, length = np.linalg.solve(np.eye(len(rules)) - expected, own)[index[start]]
    return float(entropy), float(length)


def _sentence(random: Random) -> str:
    words, waiting = [], ["SENTENCE"]
    while waiting:
        symbol = waiting.pop()
        if symbol not in GRAMMAR:
            words.append(symbol)
            continue
        waiting.extend(reversed(_chosen(GRAMMAR[symbol], random.random())))
    return " ".join(words) + ".\n"


def _chosen(choices: Sequence[tuple[float, Sequence[str]]], place: float) -> Sequence[str]:
    for probability, symbols in choices:
        place -= probability
        if place < 0:
            return symbols
    return choices[-1][1]


def _grammar() -> Synthetic:
    """Sentences such as "the cat that sees some dogs sleeps.", with one derivation each.

    The next word decides every choice of a rule but one: a phrase that begins with "the" may be of
    either number. Its noun decides that, at most two words on, for none is of both (LL(3)).
    """
    entropy, length = grammar_moments(GRAMMAR, "SENTENCE")
    return Synthetic("grammar", _sentence, entropy, length + 1, lines=50)


# --- associative recall ---------------------------------------------------------------------------

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
PAIRS = 8


def _recall_line(random: Random) -> str:
    letters = list(_LETTERS)
    keys = [letters.pop(_below(random, len(letters))) for _ in range(PAIRS)]
    value = {key: str(_below(random, 10)) for key in keys}
    asked = [keys[_below(random, PAIRS)] for _ in range(PAIRS)]
    return "".join(k + value[k] for k in keys) + "?" + "".join(k + value[k] for k in asked) + "\n"


def _recall() -> Synthetic:
    """Lines such as "q3a7…?a7q3…": 8 different letters with a digit each, then 8 of them again.

    Every line is 34 characters. Its entropy: the letters in order, ln(26!/18!); their digits,
    8·ln 10; which are asked for, 8·ln 8; and nothing for the digits that answer.
    """
    entropy = math.log(math.perm(26, PAIRS)) + PAIRS * math.log(10) + PAIRS * math.log(PAIRS)
    answers = tuple(2 * PAIRS + 1 + 2 * place + 1 for place in range(PAIRS))
    return Synthetic("recall", _recall_line, entropy, 4 * PAIRS + 2, 60, answers)


# --- modular arithmetic ---------------------------------------------------------------------------

MODULUS = 97


def _modular_line(random: Random) -> str:
    a, b, operation = _below(random, MODULUS), _below(random, MODULUS), "+-*"[_below(random, 3)]
    result = {"+": a + b, "-": a - b, "*": a * b}[operation] % MODULUS
    return f"{a:02}{operation}{b:02}={result:02}\n"


def _modular() -> Synthetic:
    """Lines such as "17+92=12": two numbers below 97, an operation, the result modulo 97.

    Every line is 9 characters; its entropy is 2·ln 97 + ln 3, the result adds nothing.
    """
    return Synthetic("modular", _modular_line, 2 * math.log(MODULUS) + math.log(3), 9, 220, (6, 7))


SYNTHETIC: dict[str, Synthetic] = {
    language.name: language for language in (_grammar(), _recall(), _modular())
}
