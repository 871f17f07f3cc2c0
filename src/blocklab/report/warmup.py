"""What warm-up was worth at each learning rate, for every arm that was trained with it and without.

Rate by rate and never best against best: without warm-up the best rate is a lower one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from blocklab.report import formats
from blocklab.study.results import Arm, StudyResult
from blocklab.training.stability import WarmupPoint, warmup_dependence

PATH = "training.schedule.warmup"

NOTE = (
    "Mean validation loss without warm-up minus that with it, at equal learning rates; positive is "
    "what warm-up saves. Where a run diverged there is no number, and it says which."
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
            curves = [{p.learning_rate: p.mean for p in one.rates} for one in (arm, without)]
            if curves[0].keys() & curves[1].keys():
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
