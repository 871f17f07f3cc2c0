"""One table in four spellings, and every run as it was."""

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklab.report import results_csv, table

from .factory import modern_block, study

NAMES = st.text(st.sampled_from("ab1 -_&%$#{}~^\\<>\"'`|*[]/;=.é"), min_size=1, max_size=12)


def named(name):
    return study({"base": {(0, 1e-2): 3.5}, name: {(0, 1e-2): 3.6}}, points=1)


def test_every_run_reads_back_exactly():
    result = modern_block(5, (3e-3, 1e-2, 3e-2))
    rows = list(csv.DictReader(io.StringIO(results_csv.as_csv(result))))
    assert len(rows) == len(result.runs) == 75
    for row, run in zip(rows, result.runs, strict=True):
        assert (row["variant"], row["run"]) == (run.arm, run.id)
        assert int(row["seed"]) == run.seed
        for name in ("learning_rate", "start_loss", "epochs", "seconds", "tokens_per_second"):
            assert float(row[name]) == getattr(run, name)
        for name in ("steps", "tokens", "peak_memory"):
            assert int(row[name]) == getattr(run, name)
        lost = run.diverged_at is not None
        assert row["diverged"] == str(lost).lower()
        assert row["diverged_in"] == (run.diverged_in or "")
        for name in ("validation_loss", "train_loss", "diverged_at"):
            value = getattr(run, name)
            assert row[name] == "" if value is None else float(row[name]) == value
        assert not lost or row["validation_loss"] == row["train_loss"] == ""


def test_no_cell_is_nan():
    assert "nan" not in results_csv.as_csv(modern_block()).lower().replace("finan", "")


@given(NAMES)
def test_csv_gives_any_name_back(name):
    result = named(name)
    for text, column in ((results_csv.as_csv(result), "variant"), (table.as_csv(result), "arm")):
        assert [row[column] for row in csv.DictReader(io.StringIO(text))] == ["base", name]


def test_table_csv_has_the_same_numbers_as_the_arms():
    result = modern_block(5, (3e-3, 1e-2, 3e-2))
    for row, arm in zip(
        csv.DictReader(io.StringIO(table.as_csv(result))), result.arms, strict=True
    ):
        assert float(row["validation_loss"]) == pytest.approx(arm.mean, abs=0.0005)
        assert int(row["parameters"]) == arm.n_parameters
        assert (int(row["diverged"]), int(row["runs"])) == (arm.n_diverged, arm.n_runs)
        if arm.effect:
            assert float(row["effect"]) == pytest.approx(arm.effect.mean, abs=0.0005)
            assert float(row["interval_low"]) == pytest.approx(arm.effect.low, abs=0.0005)
            assert float(row["interval_high"]) == pytest.approx(arm.effect.high, abs=0.0005)


def test_a_cell_shows_real_minus_signs_and_marks_the_edge():
    result = modern_block(5, (3e-3, 1e-2, 3e-2))
    shown = table.columns(result)
    headings = [column.heading for column in shown]
    by_arm = {
        row.arm: dict(zip(headings, table.cells(row, shown), strict=True))
        for row in table.rows(result)
    }
    assert by_arm["layer-norm"]["95 % interval"].startswith("−0.0")
    assert by_arm["post-norm"]["Best rate"] == "0.003 (lowest)"
    assert by_arm["post-norm"]["Diverged"] == "4/15"
    assert by_arm["modern"]["Effect"] == ""
    assert by_arm["plain-mlp"]["Changes"].endswith("matched: block.feed_forward.d_ff: 248")


@given(NAMES)
def test_latex_is_escaped(name):
    text = table.as_latex(named(name))
    body = text.split("\\midrule\n")[1].split("\n\\bottomrule")[0].split("\n")
    assert len(body) == 2
    plain = re.sub(r"\\text\w+\{\}|\$\\pm\$|\$-\$|\\[&%$#_{}]", "", body[1])
    assert plain.count("&") == len(table.columns(named(name))) - 2
    assert not set("%$#_{}~^<>\"'`|") & set(plain.removesuffix(r" \\"))
    assert "\\" not in plain.removesuffix(r" \\")


@given(NAMES)
def test_markdown_keeps_its_columns(name):
    rows = table.as_markdown(named(name)).split("\n")[:4]
    for row in rows:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == len(table.columns(named(name))) + 1
