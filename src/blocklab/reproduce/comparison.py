"""One published figure beside ours, and the word for how they agree. Pure: it computes no figure.

`match`: equal in every printed digit. `close`: within a tolerance that was stated beforehand.
`off`: neither. A row without a word has nothing published to be compared with.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Word: TypeAlias = Literal["match", "close", "off", ""]


@dataclass(frozen=True)
class Row:
    """A figure: what it is, as published, as found here."""

    what: str
    published: str
    ours: str
    difference: str
    word: Word


def number(
    what: str, published: float, ours: float, decimals: int, tolerance: float | None = None
) -> Row:
    """A figure printed with `decimals`; without a tolerance it must match."""
    difference = ours - published
    if round(ours, decimals) == round(published, decimals):
        word: Word = "match"
    else:
        word = "close" if tolerance is not None and abs(difference) <= tolerance else "off"
    shown = max(decimals, 0)
    return Row(
        what,
        f"{published:.{shown}f}",
        f"{ours:.{shown}f}",
        f"{round(difference, shown) + 0.0:+.{shown}f}" if word != "match" else "0",
        word,
    )


def whole(what: str, published: int, ours: int) -> Row:
    """A count, which must be equal."""
    difference = ours - published
    return Row(
        what,
        f"{published:,}",
        f"{ours:,}",
        f"{difference:+,}" if difference else "0",
        "off" if difference else "match",
    )


def text(what: str, published: str, ours: str) -> Row:
    """Words, which must be equal."""
    same = published == ours
    return Row(what, published, ours, "" if same else "differs", "match" if same else "off")


def between(what: str, low: float, high: float, ours: Iterable[float]) -> Row:
    """Values of which only the range is published; inside it they are close."""
    values = list(ours)
    inside = all(low <= value <= high for value in values)
    found = f"{min(values):.2f} to {max(values):.2f}"
    return Row(what, f"{low} to {high}", found, "", "close" if inside else "off")


def claim(what: str, published: str, ours: str, holds: bool) -> Row:
    """A statement in words; it holds here or it does not."""
    return Row(what, published, ours, "", "match" if holds else "off")


def alone(what: str, ours: str) -> Row:
    """A figure with nothing published beside it."""
    return Row(what, "", ours, "", "")


def tally(rows: Iterable[Row]) -> dict[str, int]:
    """How many rows got each word, in the order match, close, off."""
    words = [row.word for row in rows]
    return {word: words.count(word) for word in ("match", "close", "off") if word in words}
