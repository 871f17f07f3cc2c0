"""How often a study is judged, and what its intervals and p values pay for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from blocklab.study.statistics import FIRST_LOOK, SECOND_LOOK, Estimate


@dataclass(frozen=True)
class Look:
    """When the study is judged: once with all seeds, or twice with the error shared out."""

    level: float = 0.95
    """Two-sided, of the intervals."""
    factor: float = 1.0
    """On the p values of this look."""
    earlier: Mapping[str, Estimate] = field(default_factory=dict)
    """The first look's estimates by variant, at the second."""


ONE_LOOK = Look()


def first_look() -> Look:
    """Of `seeds: two-look`, after the first seeds: 99 % intervals, p = min(1, 5·p)."""
    return Look(0.99, FIRST_LOOK)


def second_look(earlier: Mapping[str, Estimate]) -> Look:
    """With all seeds: 96 % intervals, p = min(1, 5·p_first, 1.25·p)."""
    return Look(0.96, SECOND_LOOK, earlier)
