"""From finished runs to arms: the curve over rates, the best rate, the paired effect."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from blocklab.model.count import count
from blocklab.study.plan import PlannedArm
from blocklab.study.results import Arm, Effect, RatePoint, RunResult
from blocklab.study.statistics import mean, paired_effect, spread

STALLED_WITHIN = 0.05
"""Nats from the unigram entropy at which a run counts as stalled on it."""


def summarised(
    arms: Sequence[PlannedArm], runs: Sequence[RunResult], unigram_entropy: float
) -> tuple[Arm, ...]:
    """One Arm for each planned arm, in their order, from whatever runs are finished."""
    by_arm = {arm.name: [run for run in runs if run.arm == arm.name] for arm in arms}
    best = {name: best_rate(rate_points(own)) for name, own in by_arm.items()}
    reference = _losses_at(by_arm[arms[0].name], best[arms[0].name])
    return tuple(
        _arm(arm, by_arm[arm.name], best[arm.name], reference, unigram_entropy) for arm in arms
    )


def rate_points(runs: Sequence[RunResult]) -> tuple[RatePoint, ...]:
    """The curve of one arm over its learning rates, lowest first."""
    return tuple(
        _rate_point(rate, [run for run in runs if run.learning_rate == rate])
        for rate in sorted({run.learning_rate for run in runs})
    )


def best_rate(points: Sequence[RatePoint]) -> float | None:
    """The rate with the lowest mean loss among those at which the fewest runs diverged."""
    finite = [point for point in points if point.mean is not None]
    if not finite:
        return None
    best = min(finite, key=lambda point: (point.n_diverged, point.mean))
    return best.learning_rate


def edge(points: Sequence[RatePoint], rate: float | None) -> Literal["lowest", "highest"] | None:
    """The end of the grid that a rate stands at; None inside it, or on a grid of one."""
    rates = [point.learning_rate for point in points]
    if rate is None or len(rates) < 2:
        return None
    return {rates[0]: "lowest", rates[-1]: "highest"}.get(rate)  # type: ignore[return-value]


def _rate_point(rate: float, runs: Sequence[RunResult]) -> RatePoint:
    losses = {run.seed: run.validation_loss for run in runs if run.validation_loss is not None}
    values = list(losses.values())
    return RatePoint(
        learning_rate=rate,
        losses=losses,
        n_diverged=len(runs) - len(losses),
        mean=mean(values) if values else None,
        spread=spread(values),
    )


def _losses_at(runs: Sequence[RunResult], rate: float | None) -> Mapping[int, float]:
    return {
        run.seed: run.validation_loss
        for run in runs
        if run.learning_rate == rate and run.validation_loss is not None
    }


def _arm(
    arm: PlannedArm,
    runs: Sequence[RunResult],
    rate: float | None,
    reference: Mapping[int, float],
    unigram_entropy: float,
) -> Arm:
    points = rate_points(runs)
    losses = _losses_at(runs, rate)
    values = list(losses.values())
    effect: Effect | None = None
    if arm.role != "baseline":
        effect = paired_effect(losses, reference)
    size = count(arm.config)
    return Arm(
        name=arm.name,
        role=arm.role,
        changes=arm.changes,
        matched=arm.matched,
        n_parameters=size.total,
        flops_per_token=size.flops_per_token(),
        tokens_per_second=_median([run.tokens_per_second for run in runs]),
        peak_memory=max((run.peak_memory for run in runs), default=0),
        rates=points,
        best_rate=rate,
        edge=edge(points, rate),
        mean=mean(values) if values else None,
        spread=spread(values),
        n_diverged=sum(point.n_diverged for point in points),
        n_runs=len(runs),
        n_stalled=sum(abs(loss - unigram_entropy) <= STALLED_WITHIN for loss in values),
        effect=effect,
    )


def _median(values: Sequence[float]) -> float:
    if not values:
        return math.nan
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2
