"""What warm-up was worth at each learning rate, for every arm that was trained with it and without.

Rate by rate and never best against best: without warm-up the best rate is a lower one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from blocklab.report import formats
from blocklab.study.results import Arm, RunResult, StudyResult
from blocklab.training.stability import WarmupPoint, warmup_dependence

PATH = "training.schedule.warmup"

NOTE = (
    "Validation loss without warm-up minus that with it, at equal learning rates over the whole "
    "curve; positive is what warm-up saves. Each number is the mean over the seeds that both were "
    "trained with at that rate, the one that searched among them, and says how many. Where any run "
    "of the two diverged there is no number, and it says which; – is a rate without such a pair."
)


@dataclass(frozen=True)
class WarmupRow:
    """One arm with warm-up beside the same arm without, at one setting of the nuisances."""

    name: str
    setting: str
    points: Mapping[float, WarmupPoint]
    n_seeds: Mapping[float, int]
    """By rate: how many seeds both arms were trained with there."""


def warmup_rows(result: StudyResult) -> list[WarmupRow]:
    """One for each pair of arms and setting; empty where no arm was trained without warm-up."""
    settings = result.cells or {"": result.arms}
    rows = []
    for setting, arms in settings.items():
        runs = [run for run in result.runs if run.cell == setting and not run.rung]
        for arm, without in _pairs(arms):
            row = _row(arm, without, runs)
            if row is not None:
                rows.append(replace(row, setting=formats.clean(setting)))
    return sorted(rows, key=lambda row: row.name)


def warmup_table(result: StudyResult) -> dict[str, object] | None:
    """The rows as texts under one column a rate; None without any."""
    rows = warmup_rows(result)
    if not rows:
        return None
    rates = sorted({rate for row in rows for rate in row.points})
    return {
        "rates": [formats.rate(rate) for rate in rates],
        "rows": [
            {
                "name": row.name,
                "setting": row.setting,
                "cells": [_text(row.points.get(rate)) for rate in rates],
                "seeds": [_seeds(row, rate) for rate in rates],
            }
            for row in rows
        ],
    }


def _row(arm: Arm, without: Arm, runs: Sequence[RunResult]) -> WarmupRow | None:
    """Both arms over every rate that both were trained at; None without one.

    From the runs and not from the arms' curves over rates, which keep of each rate the seeds that
    report: beside the best rate one arm has only the seed that searched.
    """
    own, others = (_losses(one, runs) for one in (arm, without))
    curves: tuple[dict[float, float | None], dict[float, float | None]] = ({}, {})
    n_seeds = {}
    for rate in own.keys() & others.keys():
        both = (own[rate], others[rate])
        common = both[0].keys() & both[1].keys()
        if not common and None not in (*both[0].values(), *both[1].values()):
            continue
        n_seeds[rate] = len(common)
        for curve, losses in zip(curves, both, strict=True):
            curve[rate] = _mean([losses[seed] for seed in common], tuple(losses.values()))
    if not n_seeds:
        return None
    points = {point.learning_rate: point for point in warmup_dependence(*curves)}
    return WarmupRow(formats.clean(arm.name), "", points, n_seeds)


def _losses(arm: Arm, runs: Sequence[RunResult]) -> dict[float, dict[int, float | None]]:
    """Final loss by rate and seed; None for a run that diverged."""
    found: dict[float, dict[int, float | None]] = {}
    for run in runs:
        if run.arm == arm.name:
            found.setdefault(run.learning_rate, {})[run.seed] = run.validation_loss
    return found


def _mean(common: Sequence[float | None], every: Sequence[float | None]) -> float | None:
    """Over the common seeds; None where any run diverged: a lone survivor is no mean."""
    finite = [loss for loss in every if loss is not None]
    if len(finite) < len(every):
        return None
    return fmean([loss for loss in common if loss is not None] or finite)


def _pairs(arms: Sequence[Arm]) -> Iterator[tuple[Arm, Arm]]:
    """Arms that differ in having no warm-up, and in nothing else."""
    trained = [arm for arm in arms if arm.role != "placebo"]
    for without in trained:
        if without.changes.get(PATH) != 0:
            continue
        rest = {path: value for path, value in without.changes.items() if path != PATH}
        for arm in trained:
            if arm.changes == rest:
                yield arm, without


def _text(point: WarmupPoint | None) -> str:
    if point is None:
        return "–"
    if point.difference is not None:
        return formats.real_minus(formats.fixed(point.difference, 3, signed=True))
    if point.diverged_with and point.diverged_without:
        return "both diverged"
    return "diverged with" if point.diverged_with else "diverged without"


def _seeds(row: WarmupRow, rate: float) -> str:
    """How many a number is the mean of; empty where there is none."""
    if rate not in row.points or row.points[rate].difference is None:
        return ""
    return formats.counted(row.n_seeds[rate], "seed")
