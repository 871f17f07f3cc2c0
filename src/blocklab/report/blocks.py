"""The chart of gradients by block and time: where in the depth of a model training gets loud."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from blocklab.report import formats
from blocklab.report.canvas import NARROW, WIDE, Canvas, Layer, Layout, Row, finished, plot
from blocklab.report.curves import best_runs
from blocklab.report.drawing import Chart, Spec
from blocklab.report.frame import Frame, decade_ticks
from blocklab.report.palette import QUIET
from blocklab.report.standing import not_drawn
from blocklab.study.results import Arm, StudyResult

ROW = 15
"""Pixels of a block's row; less where there are many."""
TALLEST = 150
"""Pixels of one arm's rows together."""
LABELLED_FROM = 11
"""Pixels from which on a row's name is legible."""


@dataclass(frozen=True)
class _Strip:
    """One arm: rows are parts of the model from its embedding to its head, columns are looks."""

    name: str
    parts: tuple[str, ...]
    steps: tuple[int, ...]
    end: int
    """The run's last step."""
    norms: Mapping[str, tuple[float, ...]]
    """For each part the geometric mean over the runs at each look."""


def blocks_chart(result: StudyResult) -> Chart | None:
    """Gradient norm before clipping by block and step; None where no run was looked into."""
    found = {arm.name: _strip(arm, result) for arm in result.arms}
    drawn = {name: strip for name, strip in found.items() if strip is not None}
    strips = list(drawn.values())
    if not any(v > 0 for strip in strips for norms in strip.norms.values() for v in norms):
        return None
    return Chart(
        "gradient-by-block",
        "Gradient norm by block and time",
        "One row for each block, from the embedding at the top to the head at the bottom, steps "
        "from left to right: the brighter, the larger the gradient of its weights before "
        "clipping (geometric mean over the seeds at the arm’s best rate; logarithmic, one scale "
        "for all arms). Rows that differ by orders of magnitude are layers that one learning rate "
        "does not suit; a row that flares up is where an instability begins."
        + not_drawn(result, drawn),
        "Gradient norm at the last look, " + "; ".join(map(_said, strips)) + ".",
        _spec(strips, WIDE),
        _spec(strips, NARROW),
    )


def _strip(arm: Arm, result: StudyResult) -> _Strip | None:
    runs = [run for run in best_runs(arm, result.runs) if run.looks]
    if not runs:
        return None
    by_step = [dict(run.looks) for run in runs]
    steps = sorted(set.intersection(*(set(looks) for looks in by_step)))
    if not steps:
        return None
    parts = tuple(by_step[0][steps[0]].gradient_norm)
    norms = {
        part: tuple(
            _geometric([looks[step].gradient_norm.get(part, 0.0) for looks in by_step])
            for step in steps
        )
        for part in parts
    }
    end = max(run.steps for run in runs)
    return _Strip(formats.clean(arm.name), parts, tuple(steps), end, norms)


def _geometric(values: Sequence[float]) -> float:
    """0 where one of them is, or is not finite: then there is nothing to draw."""
    if any(not 0 < value < math.inf for value in values):
        return 0.0
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _said(strip: _Strip) -> str:
    blocks = [strip.norms[part][-1] for part in strip.parts if part.startswith("blocks.")]
    if not blocks:
        return f"{strip.name}: no block has parameters"
    return f"{strip.name}: {blocks[0]:.3g} in the first block, {blocks[-1]:.3g} in the last"


def _spec(strips: Sequence[_Strip], layout: Layout) -> Spec:
    # On a phone the rows' names take from the plot what other charts leave to its axis.
    layout = replace(layout, plot=layout.plot if layout.beside else layout.plot - 24)
    shown = [v for strip in strips for norms in strip.norms.values() for v in norms if v > 0]
    # Equal ends would leave the scale without a length.
    scale = (min(shown), max(shown) * 1.0001)
    panels = [_panel(strip, scale, layout, strip is strips[-1]) for strip in strips]
    return finished({"vconcat": panels, "bounds": "flush", "spacing": 54})


def _panel(strip: _Strip, scale: tuple[float, float], layout: Layout, last: bool) -> Spec:
    n = len(strip.parts)
    row = min(ROW, TALLEST / n)
    canvas = Canvas(
        layout,
        Frame(0, strip.end, layout.plot),
        Frame(0, n, row * n),
        "step" if last else "",
        bare_y=True,
    )
    names = [
        {**canvas.place(-8, (place + 0.5) * row), "text": _label(part)}
        for place, part in enumerate(strip.parts)
        if row >= LABELLED_FROM or place in (0, n - 1)
    ]
    title = [{**canvas.place(0, -12), "text": strip.name}]
    layers = [
        _cells(canvas, strip, scale),
        *canvas.words(names, "right", QUIET, size=11),
        *canvas.words(title, weight="bold"),
    ]
    return plot(canvas, layers)


def _cells(canvas: Canvas, strip: _Strip, scale: tuple[float, float]) -> Layer:
    # Each look stands for the steps around it, up to the next ones.
    between = [(a + b) / 2 for a, b in zip(strip.steps, strip.steps[1:], strict=False)]
    edges = [0.0, *between, float(strip.end)]
    rows: list[Row] = [
        {"x": edges[i], "right": edges[i + 1], "y": place, "below": place + 1, "norm": norm}
        for place, part in enumerate(strip.parts)
        for i, norm in enumerate(float(f"{value:.3g}") for value in strip.norms[part])
        if norm > 0
    ]
    key = {
        "orient": "bottom",
        "title": "gradient norm",
        "titleFontWeight": "normal",
        "titleColor": QUIET,
        "labelColor": QUIET,
        "values": decade_ticks(*scale),
        "format": "~g",
        "gradientLength": canvas.layout.plot,
        "offset": 12,
    }
    colour = {
        "field": "norm",
        "type": "quantitative",
        "scale": {"type": "log", "domain": list(scale), "scheme": "viridis", "nice": False},
        "legend": key,
    }
    corners = {"x2": {"field": "right"}, "y2": {"field": "below"}, "color": colour}
    return canvas.on(rows, {"type": "rect"}, corners)


def _label(part: str) -> str:
    """`block 3` for the third: a reader counts from one, an address from zero."""
    if part.startswith("blocks."):
        return f"block {int(part.removeprefix('blocks.')) + 1}"
    return part.replace("_", " ")
