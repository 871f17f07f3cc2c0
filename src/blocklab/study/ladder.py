"""Whether an effect grows, fades or flips from one size (or one length of training) to the next.

A slope over log size, with the seeds' own noise. It describes the sizes that were trained and is
never continued beyond them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from blocklab.errors import BlocklabError
from blocklab.study.rates import Losses, diverged
from blocklab.study.statistics import SIGNIFICANT, Estimate, estimate, paired
from blocklab.study.verdict import FEWEST_SEEDS, enough_pairs, require_slack
from blocklab.study.wording import interval_text, percent

TrendWord = Literal["exploratory", "flips", "grows", "fades", "no trend resolved"]


@dataclass(frozen=True)
class Rung:
    """A variant against the baseline at one size."""

    size: float
    """Parameters, or tokens trained on; any positive measure that all rungs share."""
    differences: Losses
    """Variant's loss minus the baseline's by seed, nats; None or not finite where one diverged."""
    slack_variant: float = 0.0
    slack_baseline: float = 0.0
    undecided: str | None = None
    """Why nothing may be claimed here."""

    def __post_init__(self) -> None:
        require_slack(
            f"size {self.size:g}", self.slack_variant + self.slack_baseline, self.undecided
        )


@dataclass(frozen=True)
class Trend:
    """How an effect changes along the ladder."""

    word: TrendWord
    reason: str
    """Why a rung cannot be used, or what lies within its slack; empty otherwise."""
    slope: Estimate | None
    """Nats for each factor e of size; None where a rung cannot be used."""
    rungs: tuple[Estimate | None, ...]
    """The effect at each size, smallest first; None where undecided or under two complete pairs."""
    at: float | None = None
    """Size of the rung that the reason is of; None where it is of the whole ladder."""

    def sentence(
        self, axis: str = "size", shown: Callable[[float], str] = "size {:g}".format
    ) -> str:
        """The trend in words, figures in nats; `axis` names what grows, `shown` one rung."""
        where = "" if self.at is None else f"{shown(self.at)}: "
        said = f"{self.word}: {where}{self.reason}" if self.reason else self.word
        if self.slope is None:
            return said
        # A tenfold size says more to a reader than a factor e.
        tenfold = self.slope.mean * math.log(10)
        low, high = self.slope.low * math.log(10), self.slope.high * math.log(10)
        return (
            f"{said} ({tenfold:+.4f} nats for ten times the {axis}, "
            f"{percent(self.slope.level)}: {low:+.4f} to {high:+.4f}; {self._ends()})"
        )

    def _ends(self) -> str:
        first, last = self.rungs[0], self.rungs[-1]
        assert first is not None and last is not None
        return (
            f"first {first.mean:+.4f} nats, {interval_text(first)}; "
            f"last {last.mean:+.4f} nats, {interval_text(last)}"
        )


def trend(rungs: Sequence[Rung], seeds: Sequence[int], claims: bool = True) -> Trend:
    """The word for two or more rungs, given in any order.

    Slope `b = Σ w_s·d̄_s` with `w_s = (x_s - x̄)/Σ(x - x̄)²` on x = log size, its variance
    `Σ w_s²·SE_s²` from the seeds, its degrees after Welch (1947) and Satterthwaite (1946); the
    arms' slacks widen it, each by |w_s|.

    *flips* is asked first, as a slope through an effect that changes its sign always has the sign
    of the last one. "Significant" of an end is two-sided p < 0.05 of that end alone. Neither an end
    nor a slope that is within its slack carries a word.

    Args:
        seeds: those that every rung planned, fixed beforehand; under five nothing is claimed.
        claims: False where rates were not searched: the figures alone, *exploratory*.

    Raises BlocklabError for fewer than two different sizes.
    """
    ladder = sorted(rungs, key=lambda rung: rung.size)
    sizes = [rung.size for rung in ladder]
    if len(set(sizes)) < 2 or len(set(sizes)) < len(sizes) or not sizes[0] > 0:
        raise BlocklabError(f"ladder: expected two or more different sizes, found {sizes}")
    effects = tuple(_effect(rung, seeds) for rung in ladder)
    explores = len(seeds) < FEWEST_SEEDS or not claims
    word: TrendWord = "exploratory" if explores else "no trend resolved"
    for rung, effect in zip(ladder, effects, strict=True):
        if rung.undecided is not None:
            return Trend(word, rung.undecided, None, effects, rung.size)
        if effect is None or not enough_pairs(effect.n, len(seeds)):
            return Trend(word, "too few complete pairs", None, effects, rung.size)
    known = [effect for effect in effects if effect is not None]
    slope = _slope(sizes, known)
    reason = ""
    if not explores:
        word = _word(slope, known[0], known[-1])
        reason = _hidden(slope, known[0], known[-1]) if word == "no trend resolved" else ""
    return Trend(word, reason, slope, effects)


def _word(slope: Estimate, first: Estimate, last: Estimate) -> TrendWord:
    ends_differ = first.mean * last.mean < 0
    if ends_differ and all(_shown(end, end.p_with_sign(end.mean)) for end in (first, last)):
        return "flips"
    if slope.low <= 0 <= slope.high or slope.within_slack:
        return "no trend resolved"
    if slope.mean * last.mean > 0 and _shown(last, last.p):
        return "grows"
    if slope.mean * first.mean < 0 and _shown(first, first.p):
        return "fades"
    return "no trend resolved"


def _shown(effect: Estimate, p: float) -> bool:
    return p < SIGNIFICANT and not effect.within_slack


def _hidden(slope: Estimate, first: Estimate, last: Estimate) -> str:
    """What would be significant if it were not within its slack."""
    found = (("slope", slope), ("first effect", first), ("last effect", last))
    hidden = [name for name, one in found if one.p < SIGNIFICANT and one.within_slack]
    return f"within the slack: {', '.join(hidden)}" if hidden else ""


def _effect(rung: Rung, seeds: Sequence[int]) -> Estimate | None:
    found = [rung.differences.get(seed) for seed in seeds]
    alive = [d for d in found if d is not None and not diverged(d)]
    if rung.undecided is not None or len(alive) < 2:
        return None
    return paired(alive, rung.slack_variant, rung.slack_baseline)


def _slope(sizes: Sequence[float], effects: Sequence[Estimate]) -> Estimate:
    x = np.log(sizes)
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    variances = (weights * [effect.standard_error for effect in effects]) ** 2
    degrees = np.array([effect.degrees for effect in effects])
    total = float(variances.sum())
    # Without any spread the degrees do not matter; those of one rung are the least there can be.
    satterthwaite = total**2 / float((variances**2 / degrees).sum()) if total else degrees.min()
    below = [
        weight * (effect.slack_below if weight > 0 else -effect.slack_above)
        for weight, effect in zip(weights, effects, strict=True)
    ]
    above = [
        weight * (effect.slack_above if weight > 0 else -effect.slack_below)
        for weight, effect in zip(weights, effects, strict=True)
    ]
    return estimate(
        centre=math.fsum(weights * [effect.mean for effect in effects]),
        standard_error=math.sqrt(total),
        degrees=float(satterthwaite),
        n=min(effect.n for effect in effects),
        slack_below=math.fsum(below),
        slack_above=math.fsum(above),
    )
