"""From finished runs to arms: the curve over rates, the best rate, the effect and its verdict."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from blocklab.model.count import count
from blocklab.study.course import Course
from blocklab.study.evidence import WindowsOf, evidence_of, judged, tuned_windows
from blocklab.study.plan import Plan
from blocklab.study.rate_stability import Sensitivity, sensitivity, stable_margin
from blocklab.study.rates import Losses, search_grid
from blocklab.study.results import (
    IN_FLOAT32,
    SEARCH_SEED,
    Arm,
    RatePoint,
    Repeat,
    RunResult,
    Text,
)
from blocklab.study.statistics import mean, paired_effect, spread
from blocklab.training.stability import stalled

UNFINISHED = "the study is not finished"
"""Why an effect has no interval yet: how far each arm's own best may lie is not known."""


def summarised(
    plan: Plan, ways: Sequence[Course], runs: Sequence[RunResult], windows_of: WindowsOf
) -> tuple[Arm, ...]:
    """The arms of one cell, in the plan's order, from whatever runs are finished."""
    here = (plan.arms[0].cell, plan.rung)
    own = {
        way.arm.name: [r for r in runs if r.arm == way.arm.name and (r.cell, r.rung) == here]
        for way in ways
    }
    read = {way.arm.name: _losses(plan, way, own[way.arm.name]) for way in ways}
    baseline = ways[0].arm.name
    arms = [_arm(plan, way, own[way.arm.name], read[way.arm.name], read[baseline]) for way in ways]
    arms = [replace(arm, repeats=_repeats(plan, arm, runs)) for arm in arms]
    if not plan.study.search:
        return tuple(arms)
    if any(way.reading is None for way in ways):
        return tuple(without_interval(arm) for arm in arms)
    windows = {way.arm.name: tuned_windows(plan, way, windows_of) for way in ways}
    evidence = {way.arm.name: evidence_of(way) for way in ways}
    return judged(plan, arms, evidence, windows)


def without_interval(arm: Arm) -> Arm:
    """The arm of an unfinished study; an interval of its effect would leave out the slack."""
    if arm.effect is None:
        return arm
    return replace(arm, effect=replace(arm.effect, low=None, high=None, no_interval=UNFINISHED))


def _repeats(plan: Plan, arm: Arm, runs: Sequence[RunResult]) -> tuple[Repeat, ...]:
    """The run in half precision beside its repeat in full; empty where none is due."""
    if not plan.repeats_in_float32 or not plan.study.search:
        return ()
    cell = plan.arms[0].cell
    own = [run for run in runs if (run.arm, run.cell) == (arm.name, cell)]
    full = next((run for run in own if run.rung == IN_FLOAT32), None)
    if full is None:
        return (Repeat(cell, half=None, full=None, trained=False),)
    half = {(run.seed, run.learning_rate): run.validation_loss for run in own if not run.rung}
    loss = half[full.seed, full.learning_rate]
    return (Repeat(cell, loss, full.validation_loss, trained=True),)


def rate_points(runs: Sequence[RunResult]) -> tuple[RatePoint, ...]:
    """The curve of one arm over its learning rates, lowest first."""
    return tuple(_rate_point(rate, losses) for rate, losses in _by_rate(runs).items())


def _by_rate(runs: Sequence[RunResult]) -> dict[float, Losses]:
    """Final loss by rate, lowest first, and seed.

    At a rate that every seed was trained at the searching seed is left out: it chose the rate.
    """
    found: dict[float, Losses] = {}
    for rate in sorted({run.learning_rate for run in runs}):
        here = {run.seed: run.validation_loss for run in runs if run.learning_rate == rate}
        reporting = {seed: loss for seed, loss in here.items() if seed != SEARCH_SEED}
        found[rate] = reporting or here
    return found


def best_rate(points: Sequence[RatePoint]) -> float | None:
    """The rate with the lowest mean loss among those at which the fewest runs diverged.

    The mean is over the seeds that all of these have: what other seeds were spared, or lost,
    would decide between rates.
    """
    finite = [point for point in points if point.mean is not None]
    if not finite:
        return None
    fewest = min(point.n_diverged for point in finite)
    stable = [point for point in finite if point.n_diverged == fewest]
    common = set.intersection(*(set(point.losses) for point in stable))
    means = {
        point.learning_rate: mean([point.losses[seed] for seed in common or point.losses])
        for point in stable
    }
    return min(means, key=lambda rate: means[rate])


def edge(points: Sequence[RatePoint], rate: float | None) -> Literal["lowest", "highest"] | None:
    """The end of the grid that a rate stands at; None inside it, or on a grid of one."""
    rates = [point.learning_rate for point in points]
    if rate is None or len(rates) < 2:
        return None
    return {rates[0]: "lowest", rates[-1]: "highest"}.get(rate)  # type: ignore[return-value]


def _rate_point(rate: float, losses: Losses) -> RatePoint:
    finite = {seed: loss for seed, loss in losses.items() if loss is not None}
    values = list(finite.values())
    return RatePoint(
        learning_rate=rate,
        losses=finite,
        n_diverged=len(losses) - len(finite),
        mean=mean(values) if values else None,
        spread=spread(values),
    )


def _losses(plan: Plan, way: Course, runs: Sequence[RunResult]) -> dict[int, float]:
    """The arm's loss by judging seed: at its tuned rate, or at the best rate of a fixed grid."""
    if way.reading is not None:
        read = way.reading.losses
    else:
        rate = best_rate(rate_points(runs))
        at_best = [run for run in runs if run.learning_rate == rate and run.seed != SEARCH_SEED]
        read = {run.seed: run.validation_loss for run in at_best}
    found = {seed: read.get(seed) for seed in plan.judging_seeds}
    return {seed: loss for seed, loss in found.items() if loss is not None}


def _arm(
    plan: Plan,
    way: Course,
    runs: Sequence[RunResult],
    losses: Mapping[int, float],
    reference: Mapping[int, float],
) -> Arm:
    arm, text = way.arm, plan.text
    points = rate_points(runs)
    rate = best_rate([p for p in points if p.learning_rate in way.rates] or points)
    at_best = [run for run in runs if run.learning_rate == rate and run.seed != SEARCH_SEED]
    values = list(losses.values())
    size = count(arm.config)
    grid = arm.training.learning_rates
    grid = search_grid(grid) if plan.study.search else grid
    spikes = [run.spikes.per_thousand for run in at_best if run.spikes is not None]
    recalls = [run.recall for run in at_best if run.recall is not None]
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
        n_diverged=sum(run.validation_loss is None for run in runs),
        n_runs=len(runs),
        n_stalled=sum(
            run.validation_loss is not None and stalled(run.validation_loss, text.unigram_entropy)
            for run in at_best
        ),
        n_at_best=len(at_best),
        effect=None
        if arm.role == "baseline"
        else paired_effect(losses, reference, plan.look.level),
        read=way.reading.losses if way.reading is not None else {},
        tuned_rate=way.reading.learning_rate if way.reading is not None else None,
        slack=way.reading.slack if way.reading is not None else None,
        undecided=way.undecided,
        searching=plan.study.search and not way.rates,
        sensitivity=_sensitivity(runs, grid, text, arm.config.rows),
        margin=stable_margin(_by_rate(runs), rate, text.unigram_entropy),
        spikes_per_thousand=mean(spikes) if spikes else None,
        n_spikes=len(spikes),
        recall=mean(recalls) if recalls else None,
        n_recall=len(recalls),
    )


def _sensitivity(
    runs: Sequence[RunResult], grid: Sequence[float], text: Text, vocab_size: int
) -> Sensitivity | None:
    """Over the seeds that have run at every rate of the grid; None without any."""
    by_seed: dict[int, dict[float, float | None]] = defaultdict(dict)
    for run in runs:
        by_seed[run.seed][run.learning_rate] = run.validation_loss
    whole = [curve for curve in by_seed.values() if set(grid) <= set(curve)]
    return sensitivity(whole, grid, vocab_size=vocab_size, unigram_entropy=text.unigram_entropy)


def _median(values: Sequence[float]) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2
