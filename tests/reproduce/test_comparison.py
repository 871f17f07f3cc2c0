"""When a figure matches, is close, or off."""

import pytest

from blocklab.reproduce import comparison


@pytest.mark.parametrize(
    ("published", "ours", "decimals", "tolerance", "word"),
    [
        (0.31, 0.3101, 2, None, "match"),
        (0.31, 0.3151, 2, None, "off"),
        (6.361, 6.212, 3, 0.35, "close"),
        (6.361, 6.361, 3, 0.35, "match"),
        (6.361, 5.9, 3, 0.35, "off"),
        (-0.17, -0.1700408, 2, None, "match"),
        (1.0, float("nan"), 2, 0.1, "off"),
    ],
)
def test_a_number_is_judged_by_its_printed_digits_then_by_the_tolerance(
    published: float, ours: float, decimals: int, tolerance: float | None, word: str
) -> None:
    assert comparison.number("x", published, ours, decimals, tolerance).word == word


def test_a_row_shows_both_numbers_and_the_signed_difference() -> None:
    row = comparison.number("loss", 6.361, 6.2124, 3, 0.35)
    assert (row.published, row.ours, row.difference) == ("6.361", "6.212", "-0.149")
    assert comparison.number("loss", 1.5, 1.5, 1).difference == "0"


def test_counts_and_words_must_be_equal() -> None:
    assert comparison.whole("n", 163_037_184, 163_037_184).word == "match"
    row = comparison.whole("n", 163_037_184, 163_037_185)
    assert (row.word, row.difference) == ("off", "+1")
    assert comparison.text("t", "a b", "a c").word == "off"


def test_a_range_holds_every_value() -> None:
    assert comparison.between("g", 0.8, 1.7, [0.8, 1.2, 1.7]).word == "close"
    assert comparison.between("g", 0.8, 1.7, [0.8, 1.2, 1.71]).word == "off"


def test_rows_without_a_published_figure_are_not_counted() -> None:
    rows = [comparison.alone("x", "1"), comparison.whole("n", 1, 1), comparison.whole("n", 1, 2)]
    assert comparison.tally(rows) == {"match": 1, "off": 1}
