"""From finished runs to arms: the curve over rates, the best rate, the effect and its verdict."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from blocklab.model.count import count
from blocklab.study.course import Course
from blocklab.study.evidence import (
    Windows,
    WindowsOf,
    evidence_of,
    judged,
    merged_windows,
    tuned_windows,
)
from blocklab.study.interaction import Interaction, interaction
from blocklab.study.nuisances import Cell, NuisanceFinding, nuisance_finding
from blocklab.study.plan import Plan
from blocklab.study.rates import search_grid
from blocklab.study.results import IN_FLOAT32, SEARCH_SEED, Arm, RatePoint, RunResult, Text
from blocklab.study.statistics import mean, paired_effect, spread
from blocklab.study.verdict import ArmEvidence, pairs
from blocklab.training.stability import learning_rate_sensitivity, stable_margin, stalled


def summarised(
    plan: Plan, ways: Sequence[Course], runs: Sequence[RunResult], windows_of: WindowsOf
) -> tuple[Arm, ...]:
    """The arms of one cell, in the plan's order, from whatever runs are finished."""
    here = (plan.arms[0].cell, plan.rung)
    own = {
        way.arm.name: [r for r in runs if r.arm == way.arm.name and (r.cell, r.rung) == here]
        for way in ways
    }
    read = {way.arm.name: _losses(way, own[way.arm.name]) for way in ways}
    baseline = ways[0].arm.name
    full = {r.arm: r for r in runs if (r.cell, r.rung) == (here[0], IN_FLOAT32) and not here[1]}
    arms = [_arm(plan, way, own[way.arm.name], read[way.arm.name], read[baseline]) for way in ways]
    arms = [replace(arm, off_float32=_off(full.get(arm.name), own[arm.name])) for arm in arms]
    if not plan.study.search or any(way.reading is None for way in ways):
        return tuple(arms)
    windows = {way.arm.name: tuned_windows(plan, way, windows_of) for way in ways}
    evidence = {way.arm.name: evidence_of(way) for way in ways}
    return judged(plan, arms, evidence, windows)


def _off(full: RunResult | None, runs: Sequence[RunResult]) -> float | None:
    """What half precision did to the run that was repeated in full."""
    if full is None or full.validation_loss is None:
        return None
    for run in runs:
        same = (run.seed, run.learning_rate) == (full.seed, full.learning_rate)
        if same and run.validation_loss is not None:
            return run.validation_loss - full.validation_loss
    return None


def over_cells(
    plan: Plan, cells: Mapping[str, tuple[Arm, ...]], windows: Sequence[Windows] = ()
) -> tuple[Arm, ...]:
    """The arms over all cells: effects averaged seed by seed, and on what they depend.

    `windows` are each cell's losses window by window; without them no equivalence is claimed.
    """
    first = next(iter(cells.values()))
    merged = [_merged([arms[i] for arms in cells.values()]) for i in range(len(first))]
    if any(arm.tuned_rate is None for arms in cells.values() for arm in arms):
        return tuple(merged)
    evidence = {
        arm.name: _merged_evidence([arms[i] for arms in cells.values()])
        for i, arm in enumerate(merged)
    }
    merged = [_with_reading(arm, evidence[arm.name]) for arm in merged]
    with_verdicts = judged(plan, merged, evidence, merged_windows(windows))
    levels = [plan_of_cell.arms[0].levels for plan_of_cell in plan.cells]
    return tuple(
        replace(arm, dependence=_dependence(plan, i, arm, cells, levels))
        if arm.role == "variant"
        else arm
        for i, arm in enumerate(with_verdicts)
    )


def interactions(plan: Plan, arms: Sequence[Arm]) -> dict[str, Interaction]:
    """The 2×2s that the study asks for; none where an arm of one is not read yet."""
    by_name = {arm.name: arm for arm in arms}
    found = {}
    for name, others in plan.study.interactions.items():
        four = [arms[0], *(by_name[other] for other in others)]
        if all(arm.read for arm in four):
            neither, first, second, both = (_read_again(arm) for arm in four)
            found[name] = interaction(neither, first, second, both, plan.judging_seeds)
    return found


def _read_again(arm: Arm) -> ArmEvidence:
    slack = arm.slack if arm.slack is not None else math.inf
    return ArmEvidence(arm.name, arm.read, slack, arm.undecided)


def rate_points(runs: Sequence[RunResult]) -> tuple[RatePoint, ...]:
    """The curve of one arm over its learning rates, lowest first.

    At a rate that every seed was trained at the searching seed is left out: it chose the rate.
    """
    points = []
    for rate in sorted({run.learning_rate for run in runs}):
        here = [run for run in runs if run.learning_rate == rate]
        reporting = [run for run in here if run.seed != SEARCH_SEED]
        points.append(_rate_point(rate, reporting or here))
    return tuple(points)


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


def _losses(way: Course, runs: Sequence[RunResult]) -> dict[int, float]:
    """The arm's loss by seed: read at its tuned rate, or at the best rate of a fixed grid."""
    if way.reading is not None:
        read = way.reading.losses
    else:
        rate = best_rate(rate_points(runs))
        at_best = [run for run in runs if run.learning_rate == rate and run.seed != SEARCH_SEED]
        read = {run.seed: run.validation_loss for run in at_best}
    return {seed: loss for seed, loss in read.items() if loss is not None}


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
    # A mean over the seeds that were left would make failing look like stability.
    curve = {p.learning_rate: None if p.n_diverged else p.mean for p in points}
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
        sensitivity=_sensitivity(runs, grid, text, arm.config.rows),
        margin=stable_margin(curve, text.unigram_entropy) if curve else None,
        spikes_per_thousand=mean(spikes) if spikes else None,
        recall=mean(recalls) if recalls else None,
    )


def _sensitivity(
    runs: Sequence[RunResult], grid: Sequence[float], text: Text, vocab_size: int
) -> float | None:
    """Mean over the seeds that have run at every rate of the grid; None without any."""
    by_seed: dict[int, dict[float, float | None]] = defaultdict(dict)
    for run in runs:
        by_seed[run.seed][run.learning_rate] = run.validation_loss
    found = [
        learning_rate_sensitivity(
            curve, grid, vocab_size=vocab_size, unigram_entropy=text.unigram_entropy
        )
        for curve in by_seed.values()
        if set(grid) <= set(curve)
    ]
    known = [value for value in found if value is not None]
    return mean(known) if known else None


def _merged(arms: Sequence[Arm]) -> Arm:
    """One arm over its cells: losses and differences averaged seed by seed, runs counted."""
    means = [arm.mean for arm in arms if arm.mean is not None]
    effects = [arm.effect for arm in arms]
    effect = None
    if all(one is not None for one in effects):
        by_cell = [one.differences for one in effects if one is not None]
        seeds = set.intersection(*(set(d) for d in by_cell))
        averaged = {seed: mean([d[seed] for d in by_cell]) for seed in sorted(seeds)}
        effect = paired_effect(averaged, dict.fromkeys(averaged, 0.0))
    return replace(
        arms[0],
        mean=mean(means) if len(means) == len(arms) else None,
        spread=None,
        n_diverged=sum(arm.n_diverged for arm in arms),
        n_runs=sum(arm.n_runs for arm in arms),
        n_stalled=sum(arm.n_stalled for arm in arms),
        n_at_best=sum(arm.n_at_best for arm in arms),
        effect=None if arms[0].role == "baseline" else effect,
        verdict=None,
        chance=None,
        read={},
        # What belongs to one setting stands with that setting.
        rates=(),
        best_rate=None,
        tuned_rate=None,
        edge=None,
        sensitivity=None,
        margin=None,
        spikes_per_thousand=None,
        recall=_mean_of_all([arm.recall for arm in arms]),
        off_float32=_mean_of_all([arm.off_float32 for arm in arms]),
    )


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None


def _with_reading(arm: Arm, evidence: ArmEvidence) -> Arm:
    """What an arm was read at over all cells."""
    return replace(arm, read=evidence.losses, slack=evidence.slack, undecided=evidence.undecided)


def _merged_evidence(arms: Sequence[Arm]) -> ArmEvidence:
    """Losses averaged over cells; a seed that diverged in one has none."""
    why = "; ".join(arm.undecided for arm in arms if arm.undecided is not None)
    slacks = [arm.slack if arm.slack is not None else math.inf for arm in arms]
    by_cell = [arm.read for arm in arms]
    seeds = sorted(set.union(*(set(losses) for losses in by_cell)))
    averaged: dict[int, float | None] = {}
    for seed in seeds:
        here = [losses.get(seed) for losses in by_cell]
        finite = [loss for loss in here if loss is not None]
        averaged[seed] = mean(finite) if len(finite) == len(here) else None
    return ArmEvidence(arms[0].name, averaged, mean(slacks), why or None)


def _dependence(
    plan: Plan,
    index: int,
    arm: Arm,
    cells: Mapping[str, tuple[Arm, ...]],
    levels: Sequence[Mapping[str, str]],
) -> NuisanceFinding:
    compared = []
    for level, arms in zip(levels, cells.values(), strict=True):
        here, base = arms[index], arms[0]
        differences: dict[int, float | None] = dict.fromkeys(here.read)
        differences |= pairs(base.read, here.read, plan.judging_seeds)
        compared.append(
            Cell(
                levels=level,
                differences=differences,
                slack_variant=here.known_slack,
                slack_baseline=base.known_slack,
                undecided=here.undecided or base.undecided,
            )
        )
    significant = arm.verdict is not None and arm.verdict.word in ("better", "worse")
    return nuisance_finding(compared, plan.judging_seeds, significant)


def _median(values: Sequence[float]) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2
