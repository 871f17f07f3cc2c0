"""Whether two changes are worth together what each is worth alone: a 2×2 of arms, seed by seed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from blocklab.study.statistics import SIGNIFICANT, Estimate, paired
from blocklab.study.verdict import (
    FEWEST_SEEDS,
    ArmEvidence,
    enough_pairs,
    interval_text,
    pairs,
)

InteractionWord = Literal[
    "exploratory",
    "undecided",
    "too few complete pairs",
    "together worse than the sum",
    "together better than the sum",
    "no interaction found",
]


@dataclass(frozen=True)
class Interaction:
    """The effect of both changes minus the sum of the effects of each."""

    word: InteractionWord
    reason: str
    """Why it is undecided; empty otherwise."""
    estimate: Estimate | None
    """Nats, negative: together better than the sum; None under two complete seeds."""

    @property
    def sentence(self) -> str:
        said = f"{self.word}: {self.reason}" if self.reason else self.word
        if self.estimate is None:
            return said
        one = self.estimate
        return f"{said}: {one.mean:+.4f} ({interval_text(one)}; p = {one.p:.2g})"


def interaction(
    neither: ArmEvidence,
    first: ArmEvidence,
    second: ArmEvidence,
    both: ArmEvidence,
    seeds: Sequence[int],
    level: float = 0.95,
) -> Interaction:
    """Difference of differences `(both - second) - (first - neither)`, paired by seed.

    *Together better than the sum* is a resolved negative interaction: with both changes the loss
    is lower than their effects alone add up to. Slack of `both` and `neither` opens the interval
    below, that of `first` and `second` above; nothing is resolved below either sum. One planned
    question, not a member of the variants' family.

    Args:
        seeds: those that the study planned; a seed counts when all four arms ended well.
    """
    alone = pairs(neither.losses, first.losses, seeds)
    beside = pairs(second.losses, both.losses, seeds)
    differences = [beside[seed] - alone[seed] for seed in seeds if seed in beside and seed in alone]
    below, above = both.slack + neither.slack, first.slack + second.slack
    found = None
    if len(differences) >= 2 and math.isfinite(below + above):
        found = paired(differences, below, above, level)
    arms = (neither, first, second, both)
    why = "; ".join(f"{arm.name}: {arm.undecided}" for arm in arms if arm.undecided is not None)
    return Interaction(_word(found, why, len(differences), len(seeds)), why, found)


def _word(found: Estimate | None, why: str, n_complete: int, n_planned: int) -> InteractionWord:
    if n_planned < FEWEST_SEEDS:
        return "exploratory"
    if why:
        return "undecided"
    if found is None or not enough_pairs(n_complete, n_planned):
        return "too few complete pairs"
    if found.p >= SIGNIFICANT or found.within_slack:
        return "no interaction found"
    return "together better than the sum" if found.mean < 0 else "together worse than the sum"
