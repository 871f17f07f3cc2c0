"""Held to scipy's paired t test and to figures computed by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from blocklab.study.statistics import mean, paired_effect, spread

losses = st.lists(st.floats(-10, 10), min_size=2, max_size=8)


@given(losses, losses)
def test_the_interval_is_that_of_scipys_paired_t_test(arm, baseline):
    n = min(len(arm), len(baseline))
    effect = paired_effect(dict(enumerate(arm[:n])), dict(enumerate(baseline[:n])))
    differences = np.subtract(arm[:n], baseline[:n])
    assert effect is not None
    assert effect.mean == pytest.approx(differences.mean(), abs=1e-12)
    if differences.std() < 1e-9:
        return
    interval = stats.ttest_rel(arm[:n], baseline[:n]).confidence_interval(0.95)
    assert (effect.low, effect.high) == pytest.approx((interval.low, interval.high), rel=1e-6)


def test_a_published_fixture_of_five_differences():
    differences = [0.012, 0.015, 0.009, 0.014, 0.010]
    effect = paired_effect(dict(enumerate(differences)), dict.fromkeys(range(5), 0.0))
    assert effect is not None
    assert (effect.low, effect.high) == pytest.approx((0.008834, 0.015166), abs=1e-6)


def test_only_seeds_that_both_arms_finished_are_paired():
    effect = paired_effect({1: 2.0, 2: 3.0, 4: 9.0}, {1: 1.0, 2: 1.0, 3: 7.0})
    assert effect is not None
    assert effect.differences == {1: 1.0, 2: 2.0}


def test_without_a_common_seed_there_is_no_effect():
    assert paired_effect({1: 2.0}, {2: 1.0}) is None


def test_one_pair_has_a_difference_but_no_interval():
    effect = paired_effect({1: 2.0}, {1: 1.5})
    assert effect is not None
    assert (effect.mean, effect.spread, effect.low, effect.high) == (0.5, None, None, None)


@given(losses)
def test_mean_and_spread_are_numpys(values):
    assert mean(values) == pytest.approx(np.mean(values), abs=1e-12)
    measured = spread(values)
    assert measured is not None
    assert math.isclose(measured, np.std(values, ddof=1), abs_tol=1e-9)
