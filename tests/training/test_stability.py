"""Stability, measured by hand first: spikes, curves over learning rates, gradient norms."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import theilslopes

import blocklab as bl
from blocklab.training.stability import (
    SpikeDetector,
    WarmupPoint,
    ended_high,
    find_spikes,
    learning_rate_sensitivity,
    learnt,
    stalled,
    summarised_norms,
    warmup_dependence,
)

UNIGRAM = 5.94
VOCABULARY = 1024  # ln V = 6.93


def falling(n=300):
    """A loss that falls in a straight line: every residual is 0, so a spike is 0.1 above it."""
    return [6 - 0.01 * step for step in range(n)]


# Spikes.


def test_a_loss_a_tenth_above_a_straight_line_is_no_spike_and_a_little_more_is():
    losses = falling()
    losses[150] += 0.099
    assert find_spikes(losses).events == 0
    losses[150] += 0.002
    found = find_spikes(losses)
    assert found.steps == (151,)
    assert found.events == 1
    assert found.tested == 300 - 64
    assert found.per_thousand == pytest.approx(1000 / 236)


def test_the_threshold_is_seven_deviations_of_the_residuals():
    # Around a level line by 0.1, 0 and -0.1 in turn: MAD 0.1, and 7 * 1.4826 * 0.1 = 1.0378.
    losses = [3 + 0.1 * (step % 3 - 1) for step in range(300)]
    losses[200] = 3 + 1.036
    assert find_spikes(losses).steps == ()
    losses[200] = 3 + 1.040
    assert find_spikes(losses).steps == (201,)


def test_a_spike_of_fifty_times_the_loss_is_found_though_it_lies_in_the_windows_after_it():
    losses = falling()
    losses[100] *= 50
    losses[120] += 0.2
    losses[121] *= 50
    assert find_spikes(losses).steps == (101, 121, 122)


def test_flagged_steps_in_a_row_are_one_event():
    losses = falling()
    for step in (100, 101, 102, 200, 202):
        losses[step] += 0.5
    found = find_spikes(losses)
    assert found.steps == (101, 102, 103, 201, 203)
    assert found.events == 3


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_not_tested_and_poisons_no_window_after_it(bad):
    losses = falling()
    losses[100] = bad
    losses[101] += 0.5
    losses[280] += 0.5
    found = find_spikes(losses)
    assert found.steps == (102, 281)
    assert found.tested == 300 - 64 - 1


def test_values_that_are_not_finite_do_not_count_towards_the_first_window():
    losses = [None] * 10 + falling()
    assert find_spikes(losses).tested == 300 - 64
    losses[10 + 63] += 0.5
    assert find_spikes(losses).steps == ()
    losses[10 + 64] += 0.5
    assert find_spikes(losses).steps == (10 + 65,)


def test_the_window_is_the_last_201_losses_and_not_the_whole_run():
    # Level, then falling fast: against the whole run's trend the end would lie far below.
    losses = [9.0] * 300 + [9 - 0.05 * step for step in range(150)]
    losses[-1] += 0.3
    assert find_spikes(losses).steps == (450,)


@pytest.mark.parametrize(("n_level", "found"), [(100, False), (101, True)])
def test_the_window_holds_exactly_201_losses(n_level, found):
    # Off the line by 0.2 to either side, then on it: MAD 0.2 while 101 of the 201 are off it,
    # and 0 once they are only 100.
    detector = SpikeDetector()
    for step in range(240):
        detector.see(3 + 0.2 * (-1) ** step)
    for _ in range(n_level):
        detector.see(3.0)
    assert detector.see(3.5) is found


@pytest.mark.parametrize(("loss", "found"), [(3.1 + 1.036, False), (3.1 + 1.040, True)])
def test_the_median_of_an_even_number_lies_between_the_middle_two(loss, found):
    # 32 losses of 3.0 and 32 of 3.2 in turn: line at 3.1, MAD 0.1.
    detector = SpikeDetector()
    for step in range(64):
        detector.see(3.0 + 0.2 * (step % 2))
    assert detector.see(loss) is found


def test_a_short_run_is_not_measured():
    assert find_spikes(falling(199)) is None
    assert find_spikes(falling(200)).tested == 136
    assert find_spikes([None] * 300) is None


def test_a_detector_fed_loss_by_loss_says_the_same():
    losses = falling()
    losses[77], losses[140], losses[200] = 50.0, None, 9.0
    detector = SpikeDetector()
    told = [step for step, loss in enumerate(losses, 1) if detector.see(loss)]
    assert detector.found == find_spikes(losses)
    assert tuple(told) == detector.found.steps == (78, 201)


def spikes_by_the_book(losses):
    """The definition in DESIGN 4, by scipy and one window at a time."""
    flagged, before = [], []
    for step, loss in enumerate(losses, 1):
        if len(before) >= 64:
            steps, values = np.array(before[-201:]).T
            slope = theilslopes(values, steps)[0]
            intercept = np.median(values - slope * steps)
            residuals = values - slope * steps - intercept
            scale = 1.4826 * np.median(np.abs(residuals - np.median(residuals)))
            if loss - (slope * step + intercept) > max(0.1, 7 * scale):
                flagged.append(step)
        before.append((step, loss))
    return tuple(flagged)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 2**31), st.integers(200, 320), st.sampled_from([1.2, 2.0]))
def test_spikes_are_those_of_the_definition(seed, n, tail):
    draw = np.random.default_rng(seed)
    losses = 2 + 4 * np.exp(-np.arange(n) / 100) + 0.05 * draw.standard_t(tail, n)
    assert find_spikes(losses.tolist()).steps == spikes_by_the_book(losses.tolist())


# Diverged, stalled.


def test_a_run_diverged_when_it_ends_no_better_than_it_began_or_than_chance():
    assert not ended_high(6.9, 7.0, VOCABULARY)
    assert ended_high(6.94, 7.0, VOCABULARY)  # ln 1024 is 6.931
    assert ended_high(6.5, 6.5, VOCABULARY)
    assert ended_high(math.nan, 7.0, VOCABULARY)
    assert ended_high(6.1, 6.0, VOCABULARY)
    assert ended_high(None, 6.0, VOCABULARY)


def test_a_run_stalled_when_it_stays_at_the_unigram_entropy():
    assert stalled(UNIGRAM + 0.049, UNIGRAM)
    assert stalled(UNIGRAM - 0.049, UNIGRAM)
    assert not stalled(UNIGRAM - 0.06, UNIGRAM)
    assert learnt(UNIGRAM - 0.06, UNIGRAM)
    assert not learnt(UNIGRAM - 0.04, UNIGRAM)
    assert not learnt(math.nan, UNIGRAM)
    assert not learnt(None, UNIGRAM)


# Curves over learning rates.


def sensitivity(curve, grid=None):
    given_grid = curve if grid is None else grid
    return learning_rate_sensitivity(
        curve, given_grid, vocab_size=VOCABULARY, unigram_entropy=UNIGRAM
    )


def test_sensitivity_is_the_mean_loss_above_the_best_with_chance_for_what_diverged():
    chance = math.log(VOCABULARY)
    assert sensitivity({1e-3: 4.0, 3e-3: 3.5, 1e-2: 3.7}) == pytest.approx((0.5 + 0 + 0.2) / 3)
    for diverged in (None, math.nan, math.inf, 99.0):
        curve = {1e-3: 4.0, 3e-3: 3.5, 1e-2: diverged}
        assert sensitivity(curve) == pytest.approx((0.5 + 0 + chance - 3.5) / 3)


def test_rates_found_beyond_the_grid_move_the_best_but_not_the_mean():
    curve = {1e-3: 4.0, 3e-3: 3.5, 1e-2: 3.4}
    assert sensitivity(curve, [1e-3, 3e-3]) == pytest.approx((0.6 + 0.1) / 2)
    with pytest.raises(bl.BlocklabError, match=r"learning rate 0\.3"):
        sensitivity(curve, [0.3])


@pytest.mark.parametrize(
    "losses", [(6.93, 6.93, 6.93), (5.94, 5.95, 5.93), (5.95, 6.5, None), (None, None, None)]
)
def test_a_model_that_learns_at_no_rate_has_no_sensitivity(losses):
    curve = dict(zip((1e-3, 1e-2, 1e-1), losses, strict=True))
    assert sensitivity(curve) is None


@given(
    st.dictionaries(
        st.sampled_from([1e-4, 3e-4, 1e-3, 3e-3, 1e-2]),
        st.none() | st.floats(0.5, 8.0),
        min_size=1,
    )
)
def test_sensitivity_lies_between_zero_and_chance_where_a_rate_learns(curve):
    spread = sensitivity(curve)
    assert (spread is None) == (not any(learnt(loss, UNIGRAM) for loss in curve.values()))
    if spread is None:
        return
    assert 0 <= spread <= math.log(VOCABULARY)


def test_warmup_dependence_is_read_at_equal_rates_along_the_whole_curve():
    with_warmup = {1e-3: 4.0, 3e-3: 3.5, 1e-2: 3.6, 3e-2: None}
    without = {1e-3: 4.1, 3e-3: 3.75, 1e-2: math.nan, 3e-2: None, 1e-1: 5.0}
    assert warmup_dependence(with_warmup, without) == (
        WarmupPoint(1e-3, pytest.approx(0.1), False, False),
        WarmupPoint(3e-3, 0.25, False, False),
        WarmupPoint(1e-2, None, False, True),
        WarmupPoint(3e-2, None, True, True),
    )
    with pytest.raises(bl.BlocklabError, match="no learning rate in common"):
        warmup_dependence({1e-3: 4.0}, {1e-2: 4.0})


# Gradient norms.


def test_gradient_norms_are_summarised_over_finite_steps():
    summary = summarised_norms([float(i) for i in range(1, 1002)], clip=900.0)
    assert summary.median == 501
    assert summary.p999 == pytest.approx(1000)
    assert summary.clipped == pytest.approx(101 / 1001)
    assert summary.not_finite == 0


def test_a_norm_at_the_limit_is_not_clipped_and_one_that_is_not_finite_is_left_out():
    summary = summarised_norms([1.0, 2.0, None, math.inf, 0.5], clip=1.0)
    assert summary.clipped == pytest.approx(1 / 3)
    assert summary.median == 1.0
    assert summary.not_finite == 2
    assert summarised_norms([1.0], clip=None).clipped is None
    assert summarised_norms([None, math.nan], clip=1.0) is None
