"""How numbers and values read: one spelling each, for the page, the terminal and the tables."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal

from blocklab.study.results import Arm
from blocklab.study.wording import n_seeds

_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def clean(text: str) -> str:
    """The text on one line, with what cannot be printed shown as a replacement character."""
    one_line = " ".join(text.split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in one_line)


def counted(n: int, noun: str) -> str:
    """So many of something: 1 seed, 1,200 steps."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def seeds(n: int, of: int) -> str:
    """How many seeds a figure is of: `one seed`, `5 seeds`; `4 of 5 seeds` where some lack it."""
    if n < of:
        return f"{n} of {n_seeds(of)}"
    return "one seed" if n == 1 else n_seeds(n)


def part_of(n: int, of: int, noun: str) -> str:
    """`4 of 5 runs`; empty where a figure is of all of them."""
    return "" if n == of else f"{n} of {counted(of, noun)}"


def real_minus(text: str) -> str:
    """Hyphens that stand for a minus, before a digit at the start of a word, as the real sign."""
    return re.sub(r"(?<![\w.)])-(?=[\d.])", "\N{MINUS SIGN}", text)


def fixed(value: float, decimals: int = 3, signed: bool = False) -> str:
    """A number with a fixed count of decimals, so that columns align."""
    return f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"


def nats(value: float, signed: bool = False) -> str:
    """A loss or a difference in a sentence: three decimals, more only where all would be zero."""
    text = fixed(value, 3, signed)
    if value != 0 and abs(value) < 0.0005:
        text = format(Decimal(f"{value:.0e}"), "+f" if signed else "f")
    return real_minus(text)


def rate(value: float) -> str:
    """A learning rate as one would type it: 0.003, 3e-5."""
    return re.sub(r"e([+-])0*(\d)", lambda m: f"e{m[1].rstrip('+')}{m[2]}", f"{value:.4g}")


def thousands(value: float) -> str:
    """A whole number with its thousands parted."""
    return f"{round(value):,}"


def compact(value: float) -> str:
    """A large number in three digits and a prefix: 832512 is 833 k."""
    for size, prefix in _PREFIXES:
        if value >= size * 0.9995:
            return f"{_three_digits(value / size)} {prefix}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """About how long something takes, in the unit that needs no more than two or three digits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def mebibytes(size: float) -> str:
    return thousands(size / 2**20)


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"


def plain_value(value: object) -> str:
    """A value as a study file would spell it on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{clean(str(k))}: {plain_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(plain_value(v) for v in value) + "]"
    return clean(repr(value))


def paths_and_values(values: Mapping[str, object]) -> str:
    return "; ".join(f"{clean(path)}: {plain_value(value)}" for path, value in values.items())


def changes(arm: Arm) -> str:
    """What the arm is, in paths and values; empty for a baseline, fixed words for a placebo."""
    if arm.role == "placebo":
        return "the baseline again, started from other values, on the same data"
    return paths_and_values(arm.changes)


CHARACTER = 7.0
"""Pixels that one takes in a chart's names, on average and with some room to spare."""


def told_apart(names: Sequence[str], room: float) -> dict[str, str]:
    """Each name in `room` pixels, and no two alike, by the name as it is.

    A long one is cut in its middle, as variants of one kind begin alike; where that leaves two the
    same, each is numbered.
    """
    most = int(room / CHARACTER)
    short = {name: _without_middle(clean(name), most) for name in names}
    told: dict[str, str] = {}
    for name, text in short.items():
        number = 1
        while text in told.values() or list(short.values()).count(text) > 1:
            mark = f" ({number})"
            text = _without_middle(clean(name), most - len(mark)) + mark
            number += 1
        told[name] = text
    return told


def _without_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    kept = most - 1
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"


def listed(words: Sequence[str]) -> str:
    """Words as English lists them: a, b and c."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
