"""The terminal says what the page says, in eighty columns."""

import io

import pytest
from rich.console import Console

from blocklab.report import words
from blocklab.report.terminal import summary_table, summary_text

from .factory import modern_block, study
from .simulated import INITIALIZATIONS, POST, bowl, simulated
from .simulated import study as asked


def shown(result, width=80):
    out = io.StringIO()
    Console(file=out, width=width).print(summary_table(result, width))
    return out.getvalue()


def test_the_table_names_every_arm_and_fits_eighty_columns():
    text = shown(modern_block(5, (3e-3, 1e-2, 3e-2)))
    for name in ("modern", "layer-norm", "plain-mlp", "post-norm", "placebo"):
        assert name in text
    for cell in ("0.003 (lowest)", "4/15", "+0.693 to +0.720"):
        assert cell in text
    assert max(map(len, text.split("\n"))) <= 80


def test_a_name_with_brackets_is_not_taken_for_markup():
    assert "[red]x[/red]" in shown(study({"m": {(0, 1.0): 3.5}, "[red]x[/red]": {(0, 1.0): 3.5}}))


def test_the_sentences_are_those_of_the_page():
    result = modern_block()
    text = summary_text(result)
    assert text[-5:] == words.sentences(result)
    assert words.headline(result) in text
    assert "3 seeds" in text[0]


def flipping(run):
    return bowl(run) + (0 if run.arm != "post" else 0.3 if "fan_in" in run.cell else -0.3)


@pytest.mark.parametrize(
    ("asked_for", "loss", "said"),
    [
        (asked(variants=POST), bowl, "equivalent within 0.01 nats"),
        (
            asked(variants=POST, nuisances=INITIALIZATIONS),
            flipping,
            "better or worse depending on initialization",
        ),
    ],
)
def test_a_verdict_takes_lines_and_neither_a_word_nor_a_figure_is_cut(asked_for, loss, said):
    text = shown(simulated(asked_for, loss))
    assert max(map(len, text.split("\n"))) <= 80
    assert "…" not in text
    assert set(said.split()) <= set(text.split())


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_figure_is_lost_in_a_narrow_terminal(width):
    result = modern_block(5, (3e-3, 1e-2, 3e-2))
    text = shown(result, width)
    assert max(map(len, text.split("\n"))) <= width
    words_shown = text.split()
    for arm in result.arms:
        assert f"{arm.n_diverged}/{arm.n_runs}" in words_shown
        assert f"{arm.mean:.3f}" in words_shown
        assert arm.name in words_shown
        if arm.effect is not None:
            assert f"{arm.effect.low:+.3f}".replace("-", "\N{MINUS SIGN}") in words_shown
