"""Numbers and names read the same everywhere."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklab.report import formats


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.003, "0.003"), (1e-2, "0.01"), (3e-5, "3e-5"), (1.5e-4, "0.00015"), (1.0, "1"),
        (2e-10, "2e-10"),
    ],
)  # fmt: skip
def test_a_rate_reads_as_one_types_it(value, text):
    assert formats.rate(value) == text
    assert float(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [(832_512, "833 k"), (999_600, "1.00 M"), (4_921_344, "4.92 M"), (124e9, "124 G"), (12, "12")],
)
def test_a_large_number_keeps_three_digits(value, text):
    assert formats.compact(value) == text


@given(st.floats(-20, 20))
def test_nats_never_round_a_difference_to_nothing(value):
    text = formats.nats(value).replace("−", "-")
    assert math.isclose(float(text), value, abs_tol=0.000501)
    assert (float(text) == 0) == (value == 0)
    assert "-" not in formats.nats(value)


@given(st.text())
def test_a_clean_text_is_one_printable_line(text):
    assert formats.clean(text).isprintable()
    assert len(formats.clean(text).splitlines()) <= 1


def test_a_hyphen_is_a_minus_only_before_a_number():
    assert formats.real_minus("-0.003 to +0.1") == "−0.003 to +0.1"
    assert formats.real_minus("layer-2 at 3e-5 (-0.1)") == "layer-2 at 3e-5 (−0.1)"


def test_a_value_reads_as_a_study_file_spells_it():
    value = {"kind": "mlp", "bias": False, "d_ff": None, "betas": (0.9, 0.95)}
    assert formats.plain_value(value) == "{kind: mlp, bias: false, d_ff: null, betas: [0.9, 0.95]}"


def test_words_are_listed_as_in_english():
    assert [formats.listed(list(w)) for w in ("", "a", "ab", "abc")] == [
        "", "a", "a and b", "a, b and c",
    ]  # fmt: skip


@given(
    st.lists(st.text("ab-", min_size=1, max_size=40), min_size=1, max_size=12, unique=True),
    st.integers(98, 200),
)
def test_no_two_names_are_shown_alike_and_each_fits_its_room(names, room):
    told = formats.told_apart(names, room)
    assert list(told) == names
    assert len(set(told.values())) == len(names)
    for name, text in told.items():
        assert len(text) <= room / formats.CHARACTER
        if len(name) <= room / formats.CHARACTER and "(" not in text:
            assert text == name


def test_names_that_begin_alike_are_told_apart_by_their_ends():
    names = ["a-variant-with-a-long-name-one", "a-variant-with-a-long-name-two"]
    one, two = formats.told_apart(names, 140).values()
    assert one.startswith("a-variant") and one.endswith("-one")
    assert two.startswith("a-variant") and two.endswith("-two")


def test_names_that_differ_in_the_middle_alone_are_numbered():
    names = [f"a-variant-with-{n}-in-the-very-middle-of-it" for n in (1, 2)]
    assert [text[-4:] for text in formats.told_apart(names, 140).values()] == [" (1)", " (2)"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (89, "89 s"), (90, "2 min"), (5000, "83 min"), (6000, "1.7 h")],
)
def test_a_duration_is_told_in_a_unit_of_its_size(seconds, text):
    assert formats.duration(seconds) == text


@pytest.mark.parametrize(
    ("n", "of", "text"),
    [(1, 1, "one seed"), (5, 5, "5 seeds"), (1, 5, "1 of 5 seeds"), (0, 1, "0 of 1 seed")],
)
def test_seeds_are_counted_out_of_those_there_were_to_be(n, of, text):
    assert formats.seeds(n, of) == text
