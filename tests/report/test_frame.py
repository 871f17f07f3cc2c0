"""Values, pixels and labels that keep their distance."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklab.report.frame import Frame, apart, decade_ticks

places = st.lists(st.floats(-100, 250, allow_subnormal=False), max_size=20)


@given(places)
def test_labels_keep_their_order_their_distance_and_the_room(wanted):
    placed = apart(wanted, 17, 0, 400)
    assert all(-1e-6 <= place <= 400 + 1e-6 for place in placed)
    in_order = [placed[i] for i in sorted(range(len(wanted)), key=lambda i: wanted[i])]
    assert all(b - a >= 17 - 1e-6 for a, b in pairwise(in_order))


def test_labels_that_have_room_stay_where_they_are():
    assert apart([50, 10, 100], 17, 0, 400) == pytest.approx([50, 10, 100])


def test_two_labels_at_one_place_give_way_equally():
    assert apart([100, 100], 20, 0, 400) == pytest.approx([90, 110])


def test_a_label_that_gives_way_may_push_the_next():
    assert apart([0, 20, 20], 17, -100, 400) == pytest.approx([-11 / 3, 40 / 3, 91 / 3])


def test_too_many_labels_share_the_room():
    assert apart([0.0] * 5, 17, 0, 40) == pytest.approx([0, 10, 20, 30, 40])


@given(st.floats(0.01, 50), st.booleans())
def test_a_pixel_leads_back_to_its_value(value, log):
    frame = Frame(0.005, 70, 300, log)
    assert frame.value(frame.pixel(value)) == pytest.approx(value)


@given(st.lists(st.floats(0.01, 50), min_size=1), st.floats(0, 100))
def test_an_upright_axis_holds_its_values_below_the_headroom(values, headroom):
    frame = Frame.around(values, 300).upright(headroom)
    assert frame.length == 300 + headroom
    assert all(headroom <= frame.pixel(value) <= frame.length for value in values)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.4, 6, [0.5, 1, 2, 5]),
        (0.2, 200, [0.3, 1, 3, 10, 30, 100]),
        (0.05, 5e4, 6),
        (0.33, 0.81, [0.4, 0.5, 0.6, 0.7, 0.8]),
        (0.42, 0.58, [0.45, 0.5, 0.55]),
        (1.05, 1.5, [1.2, 1.4]),
    ],
)
def test_a_logarithmic_axis_has_round_ticks_and_not_too_many(low, high, ticks):
    found = decade_ticks(low, high)
    assert len(found) == ticks if isinstance(ticks, int) else found == pytest.approx(ticks)


@given(st.floats(0.01, 100), st.floats(1.25, 1e6))
def test_a_logarithmic_axis_can_be_read_in_any_range(low, factor):
    assert 2 <= len(decade_ticks(low, low * factor)) <= 10
