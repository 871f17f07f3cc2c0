"""Many runs' curves as one line: mean and range over the seeds, smoothed and thinned."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blocklab.study.results import SEARCH_SEED, Arm, Point, RunResult

MOST_POINTS = 200
WINDOW_SHARE = 0.05
"""Width of the running mean, as a share of the logged steps."""


@dataclass(frozen=True)
class Band:
    """One line over steps, with the lowest and highest seed around it."""

    steps: tuple[int, ...]
    middle: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    n_runs: int
    window: int
    """Logged steps that the running mean takes in; 1 leaves them as they are."""


def best_runs(arm: Arm, runs: Iterable[RunResult]) -> list[RunResult]:
    """The arm's runs at its best rate that did not diverge."""
    return [
        run
        for run in runs
        if run.arm == arm.name
        and run.learning_rate == arm.best_rate
        and run.diverged_at is None
        and run.seed != SEARCH_SEED
    ]


def band(
    runs: Sequence[RunResult], value: Callable[[Point], float | None], log: bool = False
) -> Band | None:
    """Mean and range over the runs at the steps that all of them logged; None without any.

    Each run is smoothed first, by a running mean over 5 % of its logged steps. With `log` the
    means are geometric.
    """
    curves = [_finite(run, value, positive=log) for run in runs]
    if not curves:
        return None
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    if not steps:
        return None
    values = np.array([[curve[step] for step in steps] for curve in curves])  # (runs, steps)
    half = int(len(steps) * WINDOW_SHARE / 2)
    smooth = running_mean(np.log(values) if log else values, half)
    lines = np.stack([smooth.mean(axis=0), smooth.min(axis=0), smooth.max(axis=0)])
    kept = thinned(len(steps), MOST_POINTS)
    middle, low, high = (
        tuple(line) for line in (np.exp(lines) if log else lines)[:, kept].tolist()
    )
    return Band(tuple(steps[i] for i in kept), middle, low, high, len(runs), 2 * half + 1)


def running_mean(values: NDArray[np.float64], half: int) -> NDArray[np.float64]:
    """Mean over up to `half` neighbours on each side.

    It narrows evenly towards the start, so that a steep first descent is not blurred; at the end
    it looks back only. Shapes: (runs, steps) -> (runs, steps).
    """
    n = values.shape[1]
    sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    places = np.arange(n)
    before = np.minimum(half, places)
    after = np.minimum(before, n - 1 - places)
    total = sums[:, places + after + 1] - sums[:, places - before]
    smooth: NDArray[np.float64] = total / (before + after + 1)
    return smooth


def thinned(n: int, most: int) -> list[int]:
    """Up to `most` places among `n`, evenly spread, with the first and the last."""
    if n <= most:
        return list(range(n))
    return [round(i * (n - 1) / (most - 1)) for i in range(most)]


def _finite(
    run: RunResult, value: Callable[[Point], float | None], positive: bool
) -> dict[int, float]:
    found = ((point.step, value(point)) for point in run.curve)
    return {
        step: v
        for step, v in found
        if v is not None and math.isfinite(v) and (v > 0 or not positive)
    }
