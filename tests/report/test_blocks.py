"""The chart of gradients by block and the table of a model's insides say what the looks say."""

import math
from dataclasses import replace

import pytest

from blocklab.report.blocks import blocks_chart
from blocklab.report.drawing import to_svg
from blocklab.report.html import page
from blocklab.report.insides import COLUMNS, rows
from blocklab.study.cost import Cost
from blocklab.training.inspection import Inspection, summarised_looks
from blocklab.training.stability import GradientNorms
from tests.report import factory

PARTS = ("embedding", "blocks.0", "blocks.1", "head")


def look(norm, n_blocks=2):
    parts = ("embedding", *(f"blocks.{i}" for i in range(n_blocks)), "head")
    return Inspection(
        gradient_norm={part: norm * (1 + i) for i, part in enumerate(parts)},
        update_ratio=dict.fromkeys(parts, 0.001),
        stream_rms=(1.0,) + (2.0,) * n_blocks,
        position_similarity=(0.1,) * n_blocks,
        largest_attention_logit=(5.0,) * n_blocks,
    )


def seen(n_blocks=2):
    """The study of the modern block, every run looked into at steps 1 and 101."""
    result = factory.modern_block(seeds=3)
    runs = []
    for run in result.runs:
        scale = 1.0 if run.seed == 1 else 4.0
        looks = ((1, look(scale, n_blocks)), (101, look(10 * scale, n_blocks)))
        norms = GradientNorms(0.5, 3.0, 0.25, 0)
        insides = summarised_looks([one for _, one in looks])
        runs.append(replace(run, looks=looks, insides=insides, norms=norms, log_z=7.0))
    return replace(result, runs=tuple(runs))


def cells(chart):
    """The values of the first arm's marks."""
    return chart.wide["vconcat"][0]["layer"][0]["data"]["values"]


def test_a_cell_is_the_geometric_mean_over_the_seeds_at_its_block_and_look():
    found = {(row["y"], row["x"]): row["norm"] for row in cells(blocks_chart(seen()))}
    assert found[0, 0.0] == pytest.approx(math.sqrt(1 * 4))
    assert found[2, 0.0] == pytest.approx(3 * math.sqrt(1 * 4))
    assert found[2, 51.0] == pytest.approx(30 * math.sqrt(1 * 4))
    assert len(found) == len(PARTS) * 2


def test_looks_stand_for_all_steps_without_a_gap():
    spans = sorted({(row["x"], row["right"]) for row in cells(blocks_chart(seen()))})
    assert spans == [(0.0, 51.0), (51.0, 300.0)]


def test_norms_that_are_zero_or_not_finite_leave_their_cell_empty():
    result = seen()
    runs = []
    for run in result.runs:
        lost = replace(run.looks[0][1], gradient_norm=dict.fromkeys(PARTS, 0.0))
        runs.append(replace(run, looks=((1, lost), run.looks[1])))
    found = cells(blocks_chart(replace(result, runs=tuple(runs))))
    assert {row["x"] for row in found} == {51.0}


def test_without_a_look_there_is_no_chart_and_no_table():
    assert blocks_chart(factory.modern_block()) is None
    assert rows(factory.modern_block()) == []


def test_a_deep_model_keeps_its_chart_small_and_names_its_ends():
    chart = blocks_chart(seen(n_blocks=48))
    panel = chart.wide["vconcat"][0]
    assert panel["height"] <= 150
    words = [row["text"] for layer in panel["layer"][1:] for row in layer["data"]["values"]]
    assert {"embedding", "head"} <= set(words)
    assert "block 24" not in words


def test_both_pictures_can_be_drawn():
    chart = blocks_chart(seen())
    for spec in (chart.wide, chart.narrow):
        assert "gradient norm" in to_svg(spec)


def test_the_page_says_what_looking_inside_cost():
    result = seen()
    runs = tuple(replace(run, seconds=10.0, inspect_seconds=0.1) for run in result.runs)
    assert "1.0 % of the time of training" in page(replace(result, runs=runs), [])
    assert "Looking inside" not in page(factory.modern_block(), [])


def test_the_page_says_what_compiling_took():
    result = factory.modern_block()
    runs = tuple(replace(run, seconds=10.0, compile_seconds=0.2) for run in result.runs)
    assert "2.0 % of the time of training, beside it" in page(replace(result, runs=runs), [])
    assert "Compiling" not in page(result, [])


def test_the_page_says_what_the_main_process_took():
    result = factory.modern_block()
    facts = replace(result.facts, cost=Cost(main=2.34, workers=1200.0))
    shown = page(replace(result, facts=facts), [])
    assert "1,202 s, 2.3 s of them in the process that planned and watched" in shown
    assert "Processor time" not in page(result, [])


def test_the_table_shows_the_medians_of_the_seeds():
    found = rows(seen())
    assert [row["name"] for row in found] == [
        "modern", "layer-norm", "plain-mlp", "post-norm", "placebo",
    ]  # fmt: skip
    by_column = dict(
        zip([f"{c.heading} {c.unit}" for c in COLUMNS], found[0]["cells"], strict=True)
    )
    assert by_column["Gradient norm p 99.9"] == "3"
    assert by_column["Clipped of steps"] == "25 %"
    assert by_column["Attention logit largest"] == "5"
    assert by_column["Growth × a block"] == "1.41"
    assert by_column["log Z nats"] == "7.00"


def test_what_the_chart_and_the_table_leave_out_is_said():
    whole = seen()
    lost = tuple(
        replace(run, diverged_at=7, validation_loss=None)
        if (run.arm, run.seed) == ("modern", 1)
        else run
        for run in whole.runs
    )
    result = replace(whole, runs=lost)
    assert "Without the runs that diverged: modern (2 of 3 seeds)" in blocks_chart(result).reading
    assert rows(result)[0]["runs"] == "1 of 3 runs"
    assert '<span class="unit">1 of 3 runs</span>' in page(result, [])
    blind = tuple(replace(run, log_z=None) if run.seed == 1 else run for run in whole.runs)
    cells_of_modern = rows(replace(whole, runs=blind))[0]["cells"]
    assert cells_of_modern[4] == "7.00 (1 of 2 runs)"
