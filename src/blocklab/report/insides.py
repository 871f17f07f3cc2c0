"""The table of what the models looked like from inside: one row an arm, at its best rate."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from blocklab.report import formats
from blocklab.report.curves import best_runs
from blocklab.study.results import RunResult, StudyResult
from blocklab.study.wording import percent

NOTE = (
    "Medians over the seeds that finished at the arm’s best rate. Gradient norm: of all parameters "
    "before clipping, its median over the steps, its 99.9th percentile, and the share of steps "
    "that were clipped. Attention logit: the largest that entered a softmax. log Z: of the "
    "output’s softmax, over the last tenth of the steps. Stream: root mean square after the last "
    "block, and the factor by which each block scales it, at the end. Update: size of a step "
    "against the weights it moves. Similarity: mean cosine between the stream’s vectors at "
    "different positions after the last block, at the end; 1 is positions that have become the "
    "same."
)


@dataclass(frozen=True)
class Column:
    """A heading with its unit, and how a run's value is found and written."""

    heading: str
    unit: str
    value: Callable[[RunResult], float | None]
    text: Callable[[float], str]


def _digits(value: float) -> str:
    return f"{value:.3g}"


def _norm(part: str) -> Callable[[RunResult], float | None]:
    return lambda run: getattr(run.norms, part) if run.norms is not None else None


def _inside(part: str) -> Callable[[RunResult], float | None]:
    return lambda run: getattr(run.insides, part) if run.insides is not None else None


COLUMNS: Sequence[Column] = (
    Column("Gradient norm", "median", _norm("median"), _digits),
    Column("Gradient norm", "p 99.9", _norm("p999"), _digits),
    Column("Clipped", "of steps", _norm("clipped"), percent),
    Column("Attention logit", "largest", _inside("largest_attention_logit"), _digits),
    Column("log Z", "nats", lambda run: run.log_z, lambda v: formats.fixed(v, 2)),
    Column("Stream", "rms", _inside("stream_rms"), _digits),
    Column("Growth", "× a block", _inside("stream_growth"), lambda v: formats.fixed(v, 2)),
    Column("Update", "÷ weights", _inside("update_ratio"), lambda v: f"{v:.1e}"),
    Column("Similarity", "of positions", _inside("position_similarity"), _digits),
)


def note(result: StudyResult) -> str:
    """How the table is to be read, and of which setting of the nuisances it is."""
    setting = next(iter(result.cells), "")
    where = f" Shown for one setting of the nuisances: {formats.clean(setting)}." if setting else ""
    return NOTE + where


def rows(result: StudyResult) -> list[dict[str, object]]:
    """`role`, `name`, `runs` and `cells` of every arm that finished a run; empty where none was
    seen. `runs` says of how many all cells are, a cell where it is of fewer.
    """
    found: list[dict[str, object]] = []
    for arm in result.arms:
        runs = best_runs(arm, result.runs)
        if any(run.insides is not None for run in runs):
            found.append(
                {
                    "role": arm.role,
                    "name": formats.clean(arm.name),
                    "runs": formats.part_of(len(runs), arm.n_at_best, "run"),
                    "cells": [_cell(column, runs) for column in COLUMNS],
                }
            )
    return found


def _cell(column: Column, runs: Sequence[RunResult]) -> str:
    values = [column.value(run) for run in runs]
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return "–"
    text = formats.real_minus(column.text(median(finite)))
    counts = formats.part_of(len(finite), len(runs), "run")
    return f"{text} ({counts})" if counts else text
