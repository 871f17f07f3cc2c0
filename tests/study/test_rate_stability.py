"""Away from its best rate an arm is told by all of its seeds: what fails is counted."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklab.study.rate_stability import sensitivity, stable_margin
from tests.report.simulated import bowl, simulated, study

UNIGRAM, VOCABULARY = 5.9, 1024


def margin(losses, best):
    return stable_margin({rate: dict(enumerate(row)) for rate, row in losses.items()}, best, 5.9)


def test_a_margin_is_the_first_rate_from_which_every_higher_one_diverges_over_the_best():
    found = margin(
        {1e-3: [4], 3e-3: [3.5], 1e-2: [None], 3e-2: [3.9], 0.1: [None], 0.3: [None]}, 3e-3
    )
    assert found.words == "×33.3"
    assert found.tried_up_to == pytest.approx(100)
    assert margin({1e-3: [4], 3e-3: [3.5], 1e-2: [3.7]}, 3e-3).words == "≥ ×3.33"
    assert margin({1e-3: [4], 3e-3: [3.5]}, 3e-3).words == "≥ ×1"


def test_a_margin_that_some_seeds_keep_says_how_many_do_not():
    found = margin({3e-3: [3.5, 3.6], 1e-2: [None, 3.7], 3e-2: [None, None]}, 3e-3)
    assert found.words == "×3.33 (1 of 2 seeds)"
    assert [(fate.n_diverged, fate.n) for fate in found.diverging] == [(1, 2), (2, 2)]


def test_an_arm_that_stalls_never_diverges_and_is_seen_to_fail_all_the_same():
    found = margin({3e-3: [4.3, 4.4], 1e-2: [5.94, 4.5], 3e-2: [5.95, None]}, 3e-3)
    assert [(fate.learning_rate, fate.n_failed) for fate in found.failing] == [(1e-2, 1), (3e-2, 2)]
    assert found.words == "×10 (1 of 2 seeds)"


@pytest.mark.parametrize("losses", [[5.95, 5.9], [None, None], [None, 5.88]])
def test_an_arm_that_learns_at_no_rate_has_no_margin(losses):
    assert margin({1e-3: losses, 3e-3: losses}, 3e-3) is None
    assert margin({1e-3: losses}, None) is None


def test_an_arms_margin_is_over_the_rate_that_the_arm_is_read_at():
    # One seed diverges at every rate, and the searching seed has others to itself.
    def loss_of(run):
        lost = run.arm == "post" and run.seed == 1
        return None if lost else bowl(run, bend=0.4)

    arm = simulated(study(), loss_of).arms[1]
    assert any(set(point.losses) == {0} for point in arm.rates if point.learning_rate > 3e-3)
    assert arm.margin.best_rate == arm.best_rate == 3e-3


def curve(*losses):
    return dict(zip((1e-3, 3e-3, 1e-2), losses, strict=True))


def found_of(*curves):
    return sensitivity(curves, curves[0], vocab_size=VOCABULARY, unigram_entropy=UNIGRAM)


def test_sensitivity_is_each_seeds_own_and_what_diverged_counts_as_chance():
    found = found_of(curve(4.0, 3.5, 3.7), curve(4.1, 3.5, None))
    first, second = (0.5 + 0.2) / 3, (0.6 + math.log(VOCABULARY) - 3.5) / 3
    assert found.mean == pytest.approx((first + second) / 2)
    assert found.counts == ""


@given(st.lists(st.booleans(), min_size=1, max_size=9))
def test_a_seed_that_learns_nowhere_is_counted_and_never_averaged_away(learns):
    curves = [curve(4.0, 3.5, 3.7) if one else curve(5.95, 5.95, 5.95) for one in learns]
    found = found_of(*curves)
    assert (found.n, found.n_seeds) == (sum(learns), len(learns))
    assert (found.counts == "") == all(learns)
    assert (found.mean is not None) == (any(learns) and 5 * sum(learns) >= 4 * len(learns))


def test_no_seed_that_has_every_rate_has_no_sensitivity():
    assert sensitivity([], [1e-3], vocab_size=VOCABULARY, unigram_entropy=UNIGRAM) is None


def test_an_arm_of_which_one_seed_learns_is_not_as_insensitive_as_that_seed():
    def loss_of(run):
        stalls = run.arm == "post" and run.seed != 1
        return 5.95 if stalls else bowl(run)

    base, variant, *_ = simulated(study(search=False), loss_of).arms
    assert (base.sensitivity.n, base.sensitivity.n_seeds) == (5, 5)
    assert (variant.sensitivity.mean, variant.sensitivity.counts) == (None, "1 of 5 seeds")
