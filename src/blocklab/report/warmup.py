"""What warm-up was worth at each learning rate, for every arm that was trained with it and without.

Rate by rate and never best against best: without warm-up the best rate is a lower one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from blocklab.report import formats
from blocklab.study.results import Arm, StudyResult
from blocklab.training.stability import Curve, WarmupPoint, warmup_dependence

PATH = "training.schedule.warmup"

NOTE = (
    "Validation loss without warm-up minus that with it, at equal learning rates, mean over the "
    "seeds that both have; positive is what warm-up saves. Where any run of the two diverged there "
    "is no number, and it says which."
)


@dataclass(frozen=True)
class WarmupRow:
    """One arm with warm-up beside the same arm without, at one setting of the nuisances."""

    name: str
    setting: str
    points: Mapping[float, WarmupPoint]


def warmup_rows(result: StudyResult) -> list[WarmupRow]:
    """One for each pair of arms and setting; empty where no arm was trained without warm-up."""
    settings = result.cells or {"": result.arms}
    rows = []
    for setting, arms in settings.items():
        for arm, without in _pairs(arms):
            curves = _curves(arm, without)
            if curves[0]:
                points = warmup_dependence(*curves)
                by_rate = {point.learning_rate: point for point in points}
                rows.append(WarmupRow(formats.clean(arm.name), formats.clean(setting), by_rate))
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
            }
            for row in rows
        ],
    }


def _curves(arm: Arm, without: Arm) -> tuple[Curve, Curve]:
    """Both arms' losses over the seeds that both have at a rate; None where one of them diverged.

    A rate without a common seed is left out.
    """
    curves: tuple[dict[float, float | None], dict[float, float | None]] = ({}, {})
    other = {point.learning_rate: point for point in without.rates}
    for point in arm.rates:
        if point.learning_rate not in other:
            continue
        both = (point, other[point.learning_rate])
        common = both[0].losses.keys() & both[1].losses.keys()
        if not common and not any(one.n_diverged for one in both):
            continue
        for curve, one in zip(curves, both, strict=True):
            losses = [one.losses[seed] for seed in sorted(common or one.losses)]
            curve[point.learning_rate] = None if one.n_diverged else fmean(losses)
    return curves


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
