"""How an arm trains away from its best learning rate, with every seed counted.

What becomes of one run is `training.stability`'s; here many seeds make an arm's figure. A seed
that failed is never averaged away: it is counted, and where too few are left there is no figure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blocklab.study.rates import Losses, diverged
from blocklab.study.statistics import mean
from blocklab.study.verdict import COMPLETE_SHARE
from blocklab.study.wording import n_seeds
from blocklab.training.stability import Curve, learning_rate_sensitivity, learnt


@dataclass(frozen=True)
class Fate:
    """What became of an arm's seeds at one rate."""

    learning_rate: float
    n: int
    n_diverged: int
    n_failed: int
    """Seeds that diverged, or ended no lower than the tokens' frequencies alone allow."""


@dataclass(frozen=True)
class StableMargin:
    """How far above its best learning rate an arm still trains."""

    best_rate: float
    """Of the rates that were trained; factors are on it."""
    diverging: tuple[Fate, ...]
    """The rates from the smallest on from which some seed diverges at every one; empty when none
    does at the highest."""
    failing: tuple[Fate, ...]
    """Those from which some seed fails at every one: an arm that stalls never diverges."""
    tried_up_to: float
    """The highest factor there is a run for."""

    @property
    def words(self) -> str:
        """`×10`, `×10 (2 of 5 seeds)` where others train on, or `≥ ×10` when nothing diverged."""
        if not self.diverging:
            return f"≥ ×{self.tried_up_to:.3g}"
        factor = f"×{self.diverging[0].learning_rate / self.best_rate:.3g}"
        partly = next((one for one in self.diverging if one.n_diverged < one.n), None)
        return f"{factor} ({partly.n_diverged} of {partly.n} seeds)" if partly else factor


def stable_margin(
    losses: Mapping[float, Losses], best: float | None, unigram_entropy: float
) -> StableMargin | None:
    """The smallest rate above the best from which every higher one diverges, over the best.

    `losses` are by rate and seed, `best` is the rate that the arm is read at. None where no seed
    learnt there: without a best rate there is no margin, and an arm that stays at chance
    everywhere, diverging nowhere, is not stable.
    """
    if best is None or not any(learnt(loss, unigram_entropy) for loss in losses[best].values()):
        return None
    above = [_fate(rate, losses[rate], unigram_entropy) for rate in sorted(losses) if rate > best]
    return StableMargin(
        best_rate=best,
        diverging=_tail(above, [fate.n_diverged for fate in above]),
        failing=_tail(above, [fate.n_failed for fate in above]),
        tried_up_to=max(losses) / best,
    )


@dataclass(frozen=True)
class Sensitivity:
    """What a rate of the grid loses against the best, over the seeds of one arm."""

    mean: float | None
    """Nats; None where fewer than 0.8 of the seeds have a value."""
    n: int
    """Seeds that have one: one that learnt at no rate has no best to lose against."""
    n_seeds: int
    """Seeds that were trained at every rate of the grid."""

    @property
    def counts(self) -> str:
        """`4 of 5 seeds`; empty where all have a value."""
        if self.n == self.n_seeds:
            return ""
        return f"{self.n} of {n_seeds(self.n_seeds)}"


def sensitivity(
    curves: Sequence[Curve], grid: Sequence[float], *, vocab_size: int, unigram_entropy: float
) -> Sensitivity | None:
    """Mean over the seeds' own curves (after Wortsman et al. 2023); None without any.

    `curves` are those of the seeds that were trained at every rate of `grid`, at least.
    """
    if not curves:
        return None
    found = [
        learning_rate_sensitivity(
            curve, grid, vocab_size=vocab_size, unigram_entropy=unigram_entropy
        )
        for curve in curves
    ]
    known = [value for value in found if value is not None]
    share, whole = COMPLETE_SHARE
    enough = known and whole * len(known) >= share * len(found)
    return Sensitivity(mean(known) if enough else None, len(known), len(found))


def _fate(rate: float, losses: Losses, unigram_entropy: float) -> Fate:
    return Fate(
        learning_rate=rate,
        n=len(losses),
        n_diverged=sum(diverged(loss) for loss in losses.values()),
        n_failed=sum(not learnt(loss, unigram_entropy) for loss in losses.values()),
    )


def _tail(fates: Sequence[Fate], counts: Sequence[int]) -> tuple[Fate, ...]:
    """The longest end of them throughout which a seed counts."""
    kept = len(fates)
    while kept and counts[kept - 1]:
        kept -= 1
    return tuple(fates[kept:])
