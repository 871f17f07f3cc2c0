"""What a study may claim of each variant, in the words and the order that are fixed beforehand.

Input is each arm read at its own tuned rate. Losses and effects are in nats, an effect is a
variant's loss minus the baseline's on the same seed: negative is better. Divergence is counted
beside the loss and never turned into one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from blocklab.errors import BlocklabError
from blocklab.study.divergence import Divergence, divergence_of
from blocklab.study.looks import ONE_LOOK, Look
from blocklab.study.rates import Losses
from blocklab.study.statistics import (
    SIGNIFICANT,
    Estimate,
    detectable_effect,
    holm,
    mean,
    paired,
    placebo_warning,
    two_look,
)
from blocklab.study.wording import interval_text, n_seeds

DELTA = 0.01
"""Nats: effects smaller than this do not matter, unless a study says otherwise."""

FEWEST_SEEDS = 5
"""Under it a study only explores."""

COMPLETE_SHARE = (4, 5)
"""At least this share of the planned pairs must be complete."""

Word = Literal[
    "exploratory",
    "undecided",
    "unstable",
    "too few complete pairs",
    "better",
    "worse",
    "equivalent",
    "no difference found",
]


@dataclass(frozen=True)
class ArmEvidence:
    """One arm at its tuned rate."""

    name: str
    losses: Losses
    slack: float = 0.0
    """How far below these losses the arm's true best may lie, nats."""
    undecided: str | None = None
    """Why nothing may be claimed of it."""
    evaluation: tuple[float, float] | None = None
    """Of a variant: the block bootstrap's interval of its effect, at the level of the look."""

    def __post_init__(self) -> None:
        require_slack(self.name, self.slack, self.undecided)


def require_slack(name: str, slack: float, undecided: str | None) -> None:
    """Raises BlocklabError when a slack is not a number of nats and nothing says why."""
    if undecided is None and not 0 <= slack < math.inf:
        raise BlocklabError(
            f"{name}: slack {slack}: expected a finite number of nats, not negative, or a reason "
            "why nothing may be claimed"
        )


@dataclass(frozen=True, repr=False)
class Verdict:
    """What may be claimed of one variant, and on what grounds."""

    name: str
    word: Word
    reason: str
    """Why it is undecided, or why an equivalence was not claimed; empty otherwise."""
    differences: Mapping[int, float]
    """The complete pairs, by seed."""
    estimate: Estimate | None
    """None under two complete pairs, or where an arm is undecided."""
    earlier: Estimate | None
    """The first look's, where it is that look that p comes from."""
    p: float | None
    """Adjusted for the looks and the family; None where nothing was tested."""
    detectable: float | None
    """The smallest effect that would have been found with 80 % power, nats."""
    below_delta: bool
    """Whether the whole interval lies within ±δ."""
    divergence: Divergence
    n_planned: int
    delta: float
    resolution: float
    """The slack that the study meant to come down to, nats."""

    def __repr__(self) -> str:
        return f"Verdict({self.name}: {self.word})"

    def __str__(self) -> str:
        return self.sentence

    @property
    def sentence(self) -> str:
        """The verdict in words, figures in nats."""
        return " ".join([self._claim(), *self._remarks()])

    def _claim(self) -> str:
        match self.word:
            case "undecided":
                return f"undecided: {self.reason}"
            case "unstable":
                return f"unstable: {self.divergence.sentence}"
            case "too few complete pairs":
                return f"too few complete pairs: {len(self.differences)} of {self.n_planned}"
            case "exploratory":
                return f"exploratory ({n_seeds(self.n_planned)}): {self._effect()}"
            case "better" | "worse":
                assert self.estimate is not None and self.p is not None
                but = f", but by less than {self.delta:g}" if self.below_delta else ""
                if self.earlier is not None:
                    size = f"{abs(self.earlier.mean):.4f} nats, as the first look found"
                    found = interval_text(self.earlier)
                else:
                    size, found = f"{abs(self.estimate.mean):.4f} nats{but}", self._interval()
                return f"{self.word} by {size} ({found}; p = {self.p:.2g})"
            case "equivalent":
                return f"equivalent within {self.delta:g} nats ({self._interval()})"
            case "no difference found":
                seen = f"{self.detectable:.4f} nats or more would have been seen"
                return f"no difference found ({self._interval()}; {seen})"

    def _remarks(self) -> list[str]:
        """What a reader must know beside the claim, each in brackets."""
        remarks = []
        if self.earlier is not None:
            remarks.append(f"all seeds together: {self._effect()}")
        if self.reason and self.word != "undecided":
            remarks.append(self.reason)
        if self.estimate is not None and self.word != "undecided":
            slack = self.estimate.slack
            if slack > self.resolution:
                remarks.append(f"nothing below the slack of {slack:.4f} nats is resolved")
        if self.word != "unstable" and (self.divergence.count or self.divergence.baseline_count):
            explores = self.word == "exploratory"
            remarks.append(self.divergence.counts if explores else self.divergence.sentence)
        return [f"[{remark}]" for remark in remarks]

    def _effect(self) -> str:
        if self.estimate is not None:
            return f"{self.estimate.mean:+.4f} nats ({interval_text(self.estimate)})"
        if self.differences:
            return f"{mean(list(self.differences.values())):+.4f} nats"
        return "no complete pair"

    def _interval(self) -> str:
        assert self.estimate is not None
        return interval_text(self.estimate)


def verdicts(
    baseline: ArmEvidence,
    variants: Sequence[ArmEvidence],
    seeds: Sequence[int],
    delta: float = DELTA,
    look: Look = ONE_LOOK,
    resolution: float | None = None,
) -> tuple[Verdict, ...]:
    """One verdict a variant, in their order; the placebo is not among them.

    Args:
        seeds: those that the study planned, fixed beforehand. Losses of others are not looked
            at: where seeds were added after looking, give the new ones alone.
        delta: the smallest effect that matters, nats.
        resolution: the slack above which it is said what is not resolved; None is δ/2.

    All variants make one family, fixed beforehand: one that cannot be tested still counts in it.
    A study resolves nothing below its slack: *better* and *worse* also need a mean difference
    larger than either arm's.
    """
    compared = [_compared(baseline, variant, seeds, look) for variant in variants]
    adjusted = holm([one.p for one in compared])
    said_above = delta / 2 if resolution is None else resolution
    return tuple(
        _verdict(one, float(p), len(variants), len(seeds), delta, said_above, look)
        for one, p in zip(compared, adjusted, strict=True)
    )


def needs_second_look(found: Sequence[Verdict]) -> bool:
    """Whether the further seeds of `seeds: two-look` could still change what is known."""
    return any(one.word in ("no difference found", "too few complete pairs") for one in found)


@dataclass(frozen=True)
class Placebo:
    """The baseline from another initial draw against itself: what chance alone gives."""

    estimate: Estimate | None
    warning: str | None
    """Set below p = 0.01, unadjusted; it gates nothing."""
    reason: str = ""
    """Why there is no estimate; empty where there is one."""

    @property
    def sentence(self) -> str:
        if self.estimate is None:
            return f"placebo: {self.reason}"
        one = self.estimate
        said = f"placebo: {one.mean:+.4f} nats ({interval_text(one)}; p = {one.p:.2g})"
        return said if self.warning is None else f"{said}: {self.warning}"


def placebo(
    baseline: ArmEvidence, arm: ArmEvidence, seeds: Sequence[int], level: float = 0.95
) -> Placebo:
    """The placebo's effect over the planned seeds, outside the family and without a verdict."""
    effect = _estimate(baseline, arm, pairs(baseline.losses, arm.losses, seeds), level)
    if effect is None:
        return Placebo(None, None, why_undecided(baseline, arm) or "no two complete pairs")
    return Placebo(effect, placebo_warning(effect.p))


def pairs(baseline: Losses, arm: Losses, seeds: Sequence[int]) -> dict[int, float]:
    """The arm's loss minus the baseline's by seed, where both runs ended well."""
    differences = {}
    for seed in seeds:
        loss, reference = arm.get(seed), baseline.get(seed)
        if loss is not None and reference is not None and math.isfinite(loss - reference):
            differences[seed] = loss - reference
    return differences


def why_undecided(baseline: ArmEvidence, arm: ArmEvidence) -> str:
    """Why nothing may be claimed of an arm against the baseline; empty where something may."""
    if arm.undecided is not None or baseline.undecided is None:
        return arm.undecided or ""
    return f"{baseline.name}: {baseline.undecided}"


def enough_pairs(n_complete: int, n_planned: int) -> bool:
    """Whether at least 0.8 of the planned pairs are complete, and at least two."""
    share, whole = COMPLETE_SHARE
    return n_complete >= 2 and whole * n_complete >= share * n_planned


@dataclass(frozen=True)
class _Comparison:
    variant: ArmEvidence
    differences: Mapping[int, float]
    divergence: Divergence
    estimate: Estimate | None
    before_testing: tuple[Word, str] | None
    """The word, and why, where no test is made."""
    p: float
    """Adjusted for the looks only; NaN where no test is made."""
    tested: Estimate | None
    """The effect at the look that the p value comes from."""

    @property
    def is_of_first_look(self) -> bool:
        return self.tested is not self.estimate


def _compared(
    baseline: ArmEvidence, variant: ArmEvidence, seeds: Sequence[int], look: Look
) -> _Comparison:
    differences = pairs(baseline.losses, variant.losses, seeds)
    divergence = divergence_of(baseline.losses, variant.losses, seeds)
    effect = _estimate(baseline, variant, differences, look.level)
    stopped = _before_testing(baseline, variant, len(differences), divergence, len(seeds))
    p, tested = math.nan, effect
    if stopped is None and effect is not None:
        p, tested = _tested(effect, look.earlier.get(variant.name), look)
    return _Comparison(variant, differences, divergence, effect, stopped, p, tested)


def _before_testing(
    baseline: ArmEvidence,
    variant: ArmEvidence,
    n_complete: int,
    divergence: Divergence,
    n_planned: int,
) -> tuple[Word, str] | None:
    undecided = why_undecided(baseline, variant)
    if n_planned < FEWEST_SEEDS:
        return "exploratory", undecided
    if undecided:
        return "undecided", undecided
    if divergence.in_more_seeds:
        return "unstable", ""
    if not enough_pairs(n_complete, n_planned):
        return "too few complete pairs", ""
    return None


def _tested(effect: Estimate, earlier: Estimate | None, look: Look) -> tuple[float, Estimate]:
    now = min(1.0, look.factor * effect.p)
    if earlier is None:
        return now, effect
    p = float(two_look(earlier.p, effect.p))
    return p, effect if p == now else earlier


def _verdict(
    one: _Comparison,
    p: float,
    family: int,
    n_planned: int,
    delta: float,
    resolution: float,
    look: Look,
) -> Verdict:
    word, reason = one.before_testing or _judged(one, p, delta)
    detectable = None
    if one.estimate is not None:
        effect = one.estimate
        slack = (effect.slack_below, effect.slack_above)
        found = detectable_effect(effect.standard_error, effect.n, family, *slack, look.level)
        detectable = float(found)
    return Verdict(
        name=one.variant.name,
        word=word,
        reason=reason,
        differences=one.differences,
        estimate=one.estimate,
        earlier=one.tested if word in ("better", "worse") and one.is_of_first_look else None,
        p=None if math.isnan(p) else p,
        detectable=detectable,
        below_delta=one.estimate is not None and one.estimate.inside(delta),
        divergence=one.divergence,
        n_planned=n_planned,
        delta=delta,
        resolution=resolution,
    )


def _judged(one: _Comparison, p: float, delta: float) -> tuple[Word, str]:
    assert one.estimate is not None
    assert one.tested is not None
    if p < SIGNIFICANT and not one.tested.within_slack:
        return ("better" if one.tested.mean < 0 else "worse"), ""
    if not one.estimate.inside(delta):
        within = f"the difference is within the slack of {one.tested.slack:.4f} nats"
        return "no difference found", within if p < SIGNIFICANT else ""
    if one.variant.evaluation is None:
        return "no difference found", "the evaluation's own interval is not known"
    low, high = one.variant.evaluation
    if -delta < low and high < delta:
        return "equivalent", ""
    return "no difference found", f"the validation text leaves {low:+.4f} to {high:+.4f} nats open"


def _estimate(
    baseline: ArmEvidence, arm: ArmEvidence, differences: Mapping[int, float], level: float
) -> Estimate | None:
    """None under two pairs, or where an arm is undecided: its slack is then not bounded."""
    if len(differences) < 2 or why_undecided(baseline, arm):
        return None
    return paired(list(differences.values()), arm.slack, baseline.slack, level)
