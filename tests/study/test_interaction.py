"""The interaction of two changes: scipy's paired t on differences of differences, and its words."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from blocklab.study.interaction import interaction
from blocklab.study.verdict import ArmEvidence

SEEDS = range(5)
losses = st.lists(st.floats(2, 4), min_size=5, max_size=5)


def arm(name, values, **facts):
    return ArmEvidence(name, dict(enumerate(values)), **facts)


def square(neither, first, second, both, **facts):
    names = ("neither", "first", "second", "both")
    return [
        arm(name, values, **facts)
        for name, values in zip(names, (neither, first, second, both), strict=True)
    ]


WOBBLE = np.array((-0.002, 0.001, 0.003, -0.001, -0.001))
BASE = 3 + np.array((0.01, -0.02, 0.0, 0.03, -0.01))


@given(losses, losses, losses, losses)
def test_it_is_the_paired_t_test_of_one_effect_against_the_other(neither, first, second, both):
    alone, beside = np.subtract(first, neither), np.subtract(both, second)
    found = interaction(*square(neither, first, second, both), SEEDS).estimate
    assert found.mean == pytest.approx(float((beside - alone).mean()), abs=1e-12)
    if np.ptp(beside - alone) > 1e-3:
        assert found.p == pytest.approx(stats.ttest_rel(beside, alone).pvalue)
    # The same question asked of the other change.
    other = interaction(*square(neither, second, first, both), SEEDS).estimate
    assert other.mean == pytest.approx(found.mean, abs=1e-12)


def test_effects_that_add_up_do_not_interact():
    found = interaction(*square(BASE, BASE - 0.05, BASE - 0.02, BASE - 0.07 + WOBBLE), SEEDS)
    assert found.word == "no interaction found"
    assert found.sentence.startswith("no interaction found: +0.0000 nats (95 %:")


def test_more_and_less_than_the_sum():
    better = interaction(*square(BASE, BASE - 0.05, BASE - 0.02, BASE - 0.1 + WOBBLE), SEEDS)
    assert better.word == "together better than the sum"
    assert better.estimate.mean == pytest.approx(-0.03)
    worse = interaction(*square(BASE, BASE - 0.05, BASE - 0.02, BASE - 0.05 + WOBBLE), SEEDS)
    assert worse.word == "together worse than the sum"


def test_an_interaction_within_the_slack_is_not_called_one():
    corners = square(BASE, BASE - 0.05, BASE - 0.02, BASE - 0.1 + WOBBLE)
    corners[0] = arm("neither", BASE, slack=0.029)
    assert interaction(*corners, SEEDS).word == "together better than the sum"
    corners[0] = arm("neither", BASE, slack=0.031)
    found = interaction(*corners, SEEDS)
    assert found.estimate.p < 0.05
    assert found.word == "no interaction found"


def test_slack_of_each_corner_opens_its_own_side():
    corners = square(BASE, BASE - 0.05, BASE - 0.02, BASE - 0.1 + WOBBLE)
    plain = interaction(*corners, SEEDS).estimate
    slacks = (0.001, 0.002, 0.004, 0.008)
    wide = [arm(c.name, c.losses.values(), slack=e) for c, e in zip(corners, slacks, strict=True)]
    found = interaction(*wide, SEEDS).estimate
    assert plain.low - found.low == pytest.approx(0.009)
    assert found.high - plain.high == pytest.approx(0.006)


def test_a_seed_counts_when_all_four_arms_ended_well():
    corners = square(BASE, BASE - 0.05, BASE - 0.02, BASE - 0.1 + WOBBLE)
    corners[0] = arm("neither", [None, *BASE[1:]])
    found = interaction(*corners, SEEDS)
    assert found.estimate.n == 4
    assert found.estimate.mean == pytest.approx(float((-0.03 + WOBBLE[1:]).mean()))
    corners[0] = arm("neither", [None, math.nan, *BASE[2:]])
    assert interaction(*corners, SEEDS).word == "too few complete pairs"


def test_it_is_undecided_with_any_of_its_arms_and_exploratory_under_five_seeds():
    corners = square(BASE, BASE - 0.05, BASE - 0.02, BASE - 0.1 + WOBBLE)
    assert interaction(*corners, range(4)).word == "exploratory"
    corners[3] = arm("both", BASE, slack=math.inf, undecided="rate at the grid's edge")
    assert interaction(*corners, SEEDS).sentence == "undecided: both: rate at the grid's edge"
