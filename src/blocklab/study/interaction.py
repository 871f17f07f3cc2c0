"""Whether two changes are worth together what each is worth alone: a 2×2 of arms, seed by seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from blocklab.study.divergence import divergence_of
from blocklab.study.nuisances import NuisanceFinding
from blocklab.study.statistics import SIGNIFICANT, Estimate, paired
from blocklab.study.verdict import FEWEST_SEEDS, ArmEvidence, enough_pairs, pairs
from blocklab.study.wording import interval_text, n_seeds

InteractionWord = Literal[
    "exploratory",
    "undecided",
    "unstable",
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
    """Why it is undecided or unstable, or what is within the slack; empty otherwise."""
    estimate: Estimate | None
    """Nats, negative: together better than the sum; None under two complete seeds, or where an arm
    is undecided."""
    p: float | None
    """None where nothing was tested."""
    n_complete: int
    """Seeds that ended well in all four arms."""
    n_planned: int
    dependence: NuisanceFinding | None = None
    """On which nuisances it depends; None without nuisances."""

    @property
    def is_found(self) -> bool:
        return self.word in ("together worse than the sum", "together better than the sum")

    @property
    def sentence(self) -> str:
        """The word with its figures, in nats."""
        match self.word:
            case "undecided" | "unstable":
                return f"{self.word}: {self.reason}"
            case "too few complete pairs":
                return f"{self.word}: {self.n_complete} of {self.n_planned}"
            case "exploratory":
                why = f" [{self.reason}]" if self.reason else ""
                return f"exploratory ({n_seeds(self.n_planned)}): {self._size()}{why}"
        why = f" [{self.reason}]" if self.reason else ""
        return f"{self.word}: {self._size()}{why}"

    def _size(self) -> str:
        counts = f"{self.n_complete} of {n_seeds(self.n_planned)}"
        if self.estimate is None:
            return f"no interval, from {counts}"
        found = [interval_text(self.estimate)]
        if self.p is not None:
            found.append(f"p = {self.p:.2g}")
        if self.n_complete < self.n_planned:
            found.append(counts)
        return f"{self.estimate.mean:+.4f} nats ({'; '.join(found)})"


def interaction(
    neither: ArmEvidence,
    first: ArmEvidence,
    second: ArmEvidence,
    both: ArmEvidence,
    seeds: Sequence[int],
) -> Interaction:
    """Difference of differences `(both - second) - (first - neither)`, paired by seed.

    *Together better than the sum* is a resolved negative interaction: with both changes the loss
    is lower than their effects alone add up to. Slack of `both` and `neither` opens the interval
    below, that of `first` and `second` above; nothing is resolved below either sum. One planned
    question, not a member of the variants' family; what any of its arms may not claim against
    `neither`, it may not claim either.

    Args:
        seeds: those that the study planned; a seed counts when all four arms ended well.
    """
    arms = (neither, first, second, both)
    differences = list(contrast(*arms, seeds).values())
    undecided = "; ".join(f"{arm.name}: {arm.undecided}" for arm in arms if arm.undecided)
    found = None
    if len(differences) >= 2 and not undecided:
        below, above = both.slack + neither.slack, first.slack + second.slack
        found = paired(differences, below, above)
    stopped = _before_testing(arms, undecided, len(differences), seeds)
    if stopped is not None or found is None:
        word, reason = stopped or ("too few complete pairs", "")
        return Interaction(word, reason, found, None, len(differences), len(seeds))
    word, reason = _judged(found)
    return Interaction(word, reason, found, found.p, len(differences), len(seeds))


def contrast(
    neither: ArmEvidence,
    first: ArmEvidence,
    second: ArmEvidence,
    both: ArmEvidence,
    seeds: Sequence[int],
) -> dict[int, float]:
    """`(both - second) - (first - neither)` by seed, nats, where all four arms ended well."""
    alone = pairs(neither.losses, first.losses, seeds)
    beside = pairs(second.losses, both.losses, seeds)
    return {seed: beside[seed] - alone[seed] for seed in seeds if seed in beside and seed in alone}


def _before_testing(
    arms: Sequence[ArmEvidence], undecided: str, n_complete: int, seeds: Sequence[int]
) -> tuple[InteractionWord, str] | None:
    """The word, and why, where no test is made; asked in the order of the verdicts'."""
    if len(seeds) < FEWEST_SEEDS:
        return "exploratory", undecided
    if undecided:
        return "undecided", undecided
    if unstable := _unstable(arms, seeds):
        return "unstable", unstable
    if not enough_pairs(n_complete, len(seeds)):
        return "too few complete pairs", ""
    return None


def _unstable(arms: Sequence[ArmEvidence], seeds: Sequence[int]) -> str:
    """The arms that diverged in more seeds than the one with neither change, with the counts."""
    neither, *changed = arms
    counts = [(arm.name, divergence_of(neither.losses, arm.losses, seeds)) for arm in changed]
    return "; ".join(f"{name} {found.sentence}" for name, found in counts if found.in_more_seeds)


def _judged(found: Estimate) -> tuple[InteractionWord, str]:
    if found.p >= SIGNIFICANT:
        return "no interaction found", ""
    if found.within_slack:
        return "no interaction found", f"it is within the slack of {found.slack:.4f} nats"
    return ("together better than the sum" if found.mean < 0 else "together worse than the sum"), ""
