"""Line charts, grids and pages that are no study's: valid descriptions that hold every curve."""

import json
from pathlib import Path

import altair
import pytest

from blocklab.report.canvas import NARROW, WIDE
from blocklab.report.drawing import to_svg
from blocklab.report.heat import Panels, heat_chart
from blocklab.report.lines import Lines, _counting_ticks, line_chart
from blocklab.report.page import Page, Section, Table, write_page


@pytest.mark.parametrize(
    ("first", "last", "ticks"),
    [
        (0.0, 4.0, [0, 1, 2, 3, 4]),
        (1.0, 48.0, [5, 10, 15, 20, 25, 30, 35, 40, 45]),
        (1.0, 10.0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ],
)
def test_ticks_are_whole_multiples(first: float, last: float, ticks: list[float]) -> None:
    assert list(_counting_ticks(first, last, WIDE)) == ticks
    assert len(_counting_ticks(first, last, NARROW)) <= 6


def test_every_curve_and_level_is_drawn_and_described() -> None:
    lines = Lines(
        {"ours": [(1, 8.0), (2, 6.0)], "published": [(1, 8.1), (2, 6.2)], "empty": []},
        "epoch",
        "nats",
        levels={"unigram entropy": 6.346},
        dashed=("published",),
    )
    chart = line_chart("losses", "Losses", "How to read it.", lines)
    assert chart.description == "nats over epoch: ours from 8 to 6; published from 8.1 to 6.2."
    for spec in (chart.wide, chart.narrow):
        svg = to_svg(spec)
        for text in ("ours", "published", "unigram entropy", "epoch", "nats"):
            assert text in svg
        assert "empty" not in svg
        assert "stroke-dasharray" in svg


def test_a_curve_of_one_point_and_one_that_is_flat_can_be_drawn() -> None:
    to_svg(line_chart("a", "A", "", Lines({"one": [(3, 1.0)]}, "x", "y")).wide)
    to_svg(line_chart("b", "B", "", Lines({"flat": [(0, 0.0), (1, 0.0)]}, "x", "y")).wide)


def test_descriptions_are_valid_vega_lite() -> None:
    lines = Lines({"a": [(0, 1), (1, 2)]}, "x", "y", log=True, levels={"level": 1.5})
    grid = [[0.5, None], [1.5, 12.0]]
    charts = [
        line_chart("lines", "Lines", "", lines),
        heat_chart("one", "One", "", Panels({"": grid}, "x", "y", (0, 12), numbers=True)),
        heat_chart("two", "Two", "", Panels({"a": grid, "b": grid}, "x", "y", (0, 12))),
    ]
    for chart in charts:
        for spec in (chart.wide, chart.narrow):
            altair.Chart.from_dict(json.loads(json.dumps(spec)), validate=True)


def test_a_grid_shows_its_numbers_and_leaves_out_what_is_not_there() -> None:
    chart = heat_chart(
        "grid", "Grid", "", Panels({"": [[0.5, None], [1.5, 12.0]]}, "head", "block", (0, 12), True)
    )
    svg = to_svg(chart.wide)
    assert svg.count("role-mark") >= 1
    for text in ("0.5", "1.5", "12", "head", "block"):
        assert f">{text}</text>" in svg


def test_a_page_escapes_what_it_shows_and_writes_its_charts(tmp_path: Path) -> None:
    chart = line_chart("curve", "Curve", "Read <so>.", Lines({"a": [(0, 1), (1, 2)]}, "x", "y"))
    table = Table(
        ("what", "word"), (("<b>", "match"), ("c", "")), "Notes & more.", marked={0: "match"}
    )
    page = Page("T & U", "kicker", "headline", (Section("s", "S", ("<p>",), (table,), (chart,)),))
    text = write_page(page, tmp_path, "page.html").read_text(encoding="utf-8")
    assert "T &amp; U" in text
    assert "&lt;b&gt;" in text
    assert '<td class=" match">match</td>' in text
    assert "<script" not in text
    assert {p.name for p in (tmp_path / "charts").iterdir()} == {"curve.svg", "curve.png"}
