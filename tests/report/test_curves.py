"""Many runs as one line, against the plain way of computing it."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklab.report import curves

from .factory import run


def of(curve, **changes):
    return dataclasses.replace(run("modern", 0, 1e-2, 3.5), curve=tuple(curve), **changes)


def loss(point):
    return point.train_loss


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60), st.integers(0, 10))
def test_the_running_mean_looks_no_farther_ahead_than_back(values, half):
    smooth = curves.running_mean(np.array([values]), half)[0]
    for i in range(len(values)):
        back = min(half, i)
        window = values[i - back : i + back + 1]
        assert smooth[i] == pytest.approx(np.mean(window), abs=1e-9)


@given(st.integers(1, 3000), st.integers(2, 300))
def test_thinning_keeps_both_ends_and_the_order(n, most):
    kept = curves.thinned(n, most)
    assert len(kept) == min(n, most)
    assert kept[0] == 0
    assert kept[-1] == n - 1
    assert kept == sorted(set(kept))


def test_a_band_is_mean_lowest_and_highest_over_the_seeds():
    runs = [run("modern", seed, 1e-2, 3.5 + seed, points=10, steps=10) for seed in range(3)]
    band = curves.band(runs, loss)
    for i in range(10):
        values = [r.curve[i].train_loss for r in runs]
        assert (band.middle[i], band.low[i], band.high[i]) == pytest.approx(
            (sum(values) / 3, min(values), max(values))
        )
    assert band.window == 1


def test_a_logarithmic_band_is_the_geometric_mean():
    runs = [run("modern", seed, 1e-2, 3.5, points=10, steps=10) for seed in range(2)]
    band = curves.band(runs, lambda point: point.gradient_norm, log=True)
    a, b = (r.curve[4].gradient_norm for r in runs)
    assert band.middle[4] == pytest.approx(math.sqrt(a * b))


def test_a_long_curve_is_thinned_to_two_hundred_points():
    band = curves.band([run("modern", 0, 1e-2, 3.5, points=5000, steps=5000)], loss)
    assert len(band.steps) == 200
    assert (band.steps[0], band.steps[-1]) == (1, 5000)
    assert band.window == 251


def test_only_steps_that_all_runs_logged_are_averaged():
    whole = run("modern", 0, 1e-2, 3.5, points=10, steps=10)
    short = of(whole.curve[:6])
    assert curves.band([whole, short], loss).steps == tuple(range(1, 7))


def test_values_that_are_not_finite_are_left_out():
    whole = run("modern", 0, 1e-2, 3.5, points=10, steps=10)
    holed = [
        dataclasses.replace(point, train_loss=math.nan if point.step == 3 else point.train_loss)
        for point in whole.curve
    ]
    assert 3 not in curves.band([of(holed)], loss).steps
    assert curves.band([of([])], loss) is None
    assert curves.band([], loss) is None
