"""The search for an arm's learning rate and the reading of its curve, by hand and by property."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklab.errors import BlocklabError
from blocklab.study.rates import (
    AT_THE_EDGE,
    STEP,
    curvature,
    next_rates,
    reading_weights,
    search_grid,
    slack,
    tuned,
    vertex,
)

DELTA = 0.01
GRID = (1e-3, 3e-3, 9e-3)


def searched(loss_of, delta=DELTA, grid=GRID):
    """Runs the search to its end; the decision and the rates in the order they were asked for."""
    known = {}
    while (decision := next_rates(known, delta / 2, grid)).kind == "try":
        assert not set(decision.rates) & set(known)
        known.update({rate: loss_of(rate) for rate in decision.rates})
    return decision, list(known)


def bowl(optimum, c):
    return lambda rate: 3 + c * math.log(rate / optimum, STEP) ** 2


# --- one parabola ---------------------------------------------------------------------------


def test_the_printed_parabola():
    losses = (3.30, 3.20, 3.24)
    place, beyond = vertex(*losses)
    assert float(curvature(*losses)) == pytest.approx(0.14)
    assert float(place) == pytest.approx(0.2142857, abs=0.5e-7)
    assert float(beyond) == 0
    assert np.dot(reading_weights(float(place)), losses) == pytest.approx(3.1967857, abs=0.5e-7)
    assert slack(*losses) == pytest.approx(0.0116667, abs=0.5e-7)


heights = st.floats(0, 1)


@given(heights, heights, st.floats(-5, 5), st.floats(0.01, 100))
def test_a_curve_turned_round_shifted_or_in_other_units_has_the_vertex_there(a, b, shift, factor):
    place, beyond = vertex(a, 0.0, b)
    assert abs(place) <= 0.5 and beyond == 0
    assert vertex(b, 0.0, a)[0] == pytest.approx(-place, abs=1e-9) or a == b == 0
    assert slack(factor * a, 0.0, factor * b) == pytest.approx(factor * slack(a, 0.0, b))
    if a + b > 1e-3:
        assert vertex(a + shift, shift, b + shift)[0] == pytest.approx(float(place), abs=1e-6)


@given(st.floats(-1, 1), st.floats(0.1, 3), st.floats(-0.5, 0.5))
def test_reading_a_parabola_is_exact(at_zero, bend, place):
    losses = [at_zero + bend * (x - place) ** 2 for x in (-1, 0, 1)]
    found = float(vertex(*losses)[0])
    assert found == pytest.approx(place, abs=1e-9)
    assert np.dot(reading_weights(found), losses) == pytest.approx(at_zero, abs=1e-9)


def test_a_vertex_beyond_half_a_step_is_clipped_and_said():
    assert [float(x) for x in vertex(3.0, 3.1, 3.3)] == [-0.5, -1]  # convex, falls to the left
    assert [float(x) for x in vertex(3.3, 3.1, 3.0)] == [0.5, 1]
    assert [float(x) for x in vertex(3.0, 3.2, 3.1)] == [-0.5, -1]  # a hill
    assert [float(x) for x in vertex(3.2, 3.1, 3.0)] == [0.5, 1]  # a straight line
    assert [float(x) for x in vertex(3.0, 3.0, 3.0)] == [0, 0]
    # A tie is half-way, also where rounding puts it a little further.
    assert [float(x) for x in vertex(3.84, 3.61, 3.61)] == [0.5, 0]


def test_slack_beside_a_diverged_neighbour_is_a_quarter_of_the_rise_to_the_other():
    assert slack(3.06, 3.0, math.inf) == pytest.approx(0.015)
    assert slack(math.nan, 3.0, 3.2) == pytest.approx(0.05)
    assert slack(math.inf, 3.0, math.inf) == math.inf
    assert slack(3.1, math.nan, 3.1) == math.inf
    assert slack(3.0, 3.06, 3.0) == pytest.approx(0.01)  # a hill is no better known than a bowl


# --- the search -----------------------------------------------------------------------------


def test_a_search_grid_is_exactly_threefold_and_as_wide_as_asked():
    assert search_grid([1e-3, 3e-3, 1e-2]) == GRID
    assert search_grid([3e-3]) == GRID
    assert search_grid([1e-2, 1e-4, 1e-3]) == (1.111e-4, 3.333e-4, 9.999e-4, 3e-3, 8.999e-3)
    with pytest.raises(BlocklabError, match="positive"):
        search_grid([0.0, 1e-3])


@given(st.lists(st.floats(1e-5, 1e-1), min_size=1, max_size=5))
def test_a_search_first_tries_the_grid_that_is_told(rates):
    assert next_rates({}, DELTA / 2, rates).rates == search_grid(rates)


def test_the_search_asks_for_the_grid_then_for_half_steps_about_the_best():
    decision, asked = searched(bowl(3e-3, 0.1))
    assert asked == [1e-3, 3e-3, 9e-3, 1.732e-3, 5.196e-3]
    assert (decision.kind, decision.rates) == ("report", (1.732e-3, 3e-3, 5.196e-3))
    assert decision.slack == pytest.approx(0.05 / 12, rel=1e-2)  # D₂ = 2·0.1/4 is below 6δ


def test_a_flat_enough_curve_needs_no_half_steps():
    decision, asked = searched(bowl(3e-3, 0.0299))
    assert (asked, decision.rates) == (list(GRID), GRID)
    assert len(searched(bowl(3e-3, 0.0301))[1]) == 5


def test_half_steps_follow_the_best():
    decision, _ = searched(bowl(5.196e-3, 0.1))
    assert decision.rates == (3e-3, 5.196e-3, 9e-3)


def test_an_edge_is_passed_twice_and_no_further():
    decision, asked = searched(bowl(2.7e-2, 0.02))
    assert asked == [*GRID, 2.7e-2, 8.1e-2]
    assert decision.rates == (9e-3, 2.7e-2, 8.1e-2)
    decision, asked = searched(bowl(1e-6, 0.02))
    assert len(asked) == 5 and min(asked) == pytest.approx(1e-3 / 9, rel=1e-3)
    assert (decision.kind, decision.why) == ("undecided", AT_THE_EDGE)


def test_a_curve_that_diverges_above_its_best_rate_is_halved_until_a_quarter_of_its_rise_is_small():
    decision, _ = searched(lambda rate: bowl(3e-3, 0.1)(rate) if rate <= 3e-3 else None)
    # Quarter-steps: the rise of 0.1/16 leaves 0.0016 open; half-steps left 0.1/4/4 > δ/2.
    assert decision.kind == "report"
    assert decision.rates[1] == 3e-3
    assert decision.slack == pytest.approx(0.1 / 16 / 4, rel=1e-2)


def test_what_diverges_everywhere_or_on_both_sides_is_undecided():
    decision, asked = searched(lambda rate: math.nan)
    assert (decision.why, min(asked)) == ("diverged at every rate", 1.111e-4)
    decision, _ = searched(lambda rate: 3.0 if rate == 3e-3 else math.inf)
    assert decision.why == "both rates beside the best diverge"


def test_a_curve_that_never_flattens_is_reported_with_the_slack_it_has():
    decision, asked = searched(lambda rate: 3.0 if rate == 3e-3 else 4.0)
    assert len(asked) == 3 + 2 * 4
    assert decision.kind == "report"
    assert decision.slack == pytest.approx(2 / 12)
    assert "above the resolution" in decision.why


def test_a_rate_of_another_grid_is_refused():
    with pytest.raises(BlocklabError, match=r"0\.0012"):
        next_rates({1.2e-3: 3.0}, DELTA / 2, GRID)


@given(st.floats(1e-4, 5e-2), st.floats(0.001, 3), st.floats(0, 0.05), st.integers(0, 1000))
def test_every_search_ends_and_reports_a_best_rate_between_two_worse(optimum, c, noise, seed):
    curve, draws = bowl(optimum, c), np.random.default_rng(seed)
    seen = {}

    def loss_of(rate):
        return seen.setdefault(rate, curve(rate) + noise * draws.standard_normal())

    decision, asked = searched(loss_of)
    assert len(asked) <= len(GRID) + 2 + 2 * 4
    if decision.kind == "report":
        lower, best, upper = (seen[rate] for rate in decision.rates)
        assert best <= min(lower, upper)
        assert best == min(seen.values())


# --- reading the reporting seeds ------------------------------------------------------------

RATES = (1e-3, 3e-3, 9e-3)


def table(*columns, rates=RATES):
    return {rate: dict(enumerate(column)) for rate, column in zip(rates, columns, strict=True)}


def test_every_seed_is_read_on_its_own_curve_at_the_mean_curves_vertex():
    arm = tuned(table((3.30, 3.40), (3.20, 3.30), (3.24, 3.34)))
    assert arm.vertex == pytest.approx(0.2142857, abs=1e-7)
    assert arm.losses == pytest.approx({0: 3.1967857, 1: 3.2967857}, abs=1e-7)
    assert arm.learning_rate == pytest.approx(3e-3 * 3**0.2142857)
    assert (arm.curvature, arm.slack) == pytest.approx((0.14, 0.14 / 12))
    assert arm.add is None and arm.undecided is None
    # Two seeds whose curves differ: the vertex is the mean's, the loss each one's own.
    arm = tuned(table((3.2, 3.4), (3.2, 3.2), (3.4, 3.2)))
    assert arm.vertex == 0
    assert arm.losses == pytest.approx({0: 3.2, 1: 3.2})


def test_a_best_rate_beyond_the_three_asks_for_the_next_and_then_reads_about_it():
    columns = [(3.3, 3.3), (3.2, 3.2), (3.15, 3.15)]
    arm = tuned(table(*columns))
    assert arm.add == 2.7e-2
    assert arm.vertex == 0.5
    assert arm.undecided is not None
    arm = tuned(table(*columns, (3.3, 3.3), rates=(*RATES, 2.7e-2)))
    assert (arm.rates, arm.add, arm.undecided) == ((3e-3, 9e-3, 2.7e-2), None, None)
    arm = tuned(table(*columns, (3.1, 3.1), (3.0, 3.0), rates=(*RATES, 2.7e-2, 8.1e-2)))
    assert (arm.add, arm.undecided) == (None, AT_THE_EDGE)


def test_a_rate_to_add_is_one_that_the_search_would_have_tried():
    origin = search_grid([3e-3, 1e-2, 3e-2])[0]
    # The rates of the search a quarter of a step apart: the next one is 0.03, by either way.
    rates = [float(f"{origin * 3 ** (place / 4):.4g}") for place in (5, 6, 7)]
    falling = table((3.2,) * 2, (3.1,) * 2, (3.0,) * 2, rates=tuple(rates))
    assert tuned(falling).add == 0.02999
    assert tuned(falling, origin).add == 0.03 == search_grid([3e-3, 1e-2, 3e-2])[-1]


def test_half_steps_are_added_at_half_steps():
    rates = (1.732e-3, 3e-3, 5.196e-3)
    assert tuned(table((3.0,) * 2, (3.1,) * 2, (3.2,) * 2, rates=rates)).add == 1e-3


@pytest.mark.parametrize("halvings", range(5))
def test_close_rates_are_followed_as_far_past_an_edge_as_distant_ones(halvings):
    # One noisy seed had placed three rates 15 % apart beside the best: an arm was left undecided
    # a step of 1.3 before it.
    each = 2**halvings  # rates in one step of the grid
    places = [-1, 0, 1]
    rates = [1e-2 * 3 ** (place / each) for place in places]
    while True:
        columns = [(3 - rate, 3 - rate) for rate in rates]
        arm = tuned(table(*columns, rates=rates))
        if arm.add is None:
            break
        assert arm.undecided is not None
        rates.append(arm.add)
    assert arm.undecided == AT_THE_EDGE
    assert rates[-1] / rates[2] == pytest.approx(3**2, rel=0.01)


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_beside_a_neighbour_that_diverged_once_the_best_rate_itself_is_read(bad):
    arm = tuned(table((3.1, 3.2, 3.3), (3.0, 3.1, 3.2), (2.9, bad, 3.0)))
    assert arm.losses == {0: 3.0, 1: 3.1, 2: 3.2}
    assert (arm.learning_rate, arm.curvature) == (3e-3, None)
    assert arm.slack == pytest.approx(0.1 / 4)
    assert arm.undecided is None


def test_a_seed_that_diverged_at_the_best_rate_stays_diverged():
    arm = tuned(table((3.2, None, 3.4), (3.0, None, 3.2), (3.1, None, 3.3)))
    assert arm.losses[1] is None
    assert arm.losses[0] == pytest.approx(3.0 - 0.1**2 / (8 * 0.3))
    assert arm.undecided is None


def test_a_rate_at_which_no_seed_diverged_comes_before_a_lower_mean():
    arm = tuned(table((3.2, 3.2), (3.0, None), (None, None)))
    assert arm.add == pytest.approx(3.333e-4)
    assert arm.losses == {0: 3.2, 1: 3.2}


def test_nothing_is_claimed_where_nothing_can_be_read():
    assert tuned(table((None,) * 2, (None,) * 2, (None,) * 2)).undecided == "diverged at every rate"
    lonely = tuned(table((None, 3.0), (3.0, 3.0), (3.0, None)))
    assert lonely.undecided == "both rates beside the best diverge"
    with pytest.raises(BlocklabError, match="three or more"):
        tuned(table((3.0,), (3.1,), rates=RATES[:2]))
    with pytest.raises(BlocklabError, match="equal factors"):
        tuned(table((3.0,), (3.1,), (3.2,), rates=(1e-3, 3e-3, 3e-2)))
    with pytest.raises(BlocklabError, match="no seed"):
        tuned({1e-3: {1: 3.0}, 3e-3: {2: 3.0}, 9e-3: {1: 3.0}})
