"""Line charts of a few named curves, for whatever is not a study's run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from blocklab.report import formats
from blocklab.report.canvas import (
    LINE,
    NARROW,
    WIDE,
    Canvas,
    Curve,
    End,
    Layout,
    Row,
    finished,
    level,
    plot,
)
from blocklab.report.drawing import Chart, Spec
from blocklab.report.frame import Frame, decade_ticks
from blocklab.report.palette import Style, numbered_style


@dataclass(frozen=True)
class Lines:
    """Named curves on common axes."""

    curves: Mapping[str, Curve]
    x_title: str
    y_title: str
    log: bool = False
    levels: Mapping[str, float] = field(default_factory=dict)
    """Named values to read the curves against."""
    dashed: Sequence[str] = ()
    """Curves drawn as published: dashed, in the colour of the curve before them."""
    whole_x: bool = True
    """Whether the horizontal axis counts."""


def line_chart(name: str, title: str, reading: str, lines: Lines) -> Chart:
    """The curves as one chart; curves without points are left out."""
    courses = (
        f"{curve_name} from {curve[0][1]:.3g} to {curve[-1][1]:.3g}"
        for curve_name, curve in lines.curves.items()
        if curve
    )
    description = f"{lines.y_title} over {lines.x_title}: {'; '.join(courses)}."
    return Chart(name, title, reading, description, _spec(lines, WIDE), _spec(lines, NARROW))


def _spec(lines: Lines, layout: Layout) -> Spec:
    curves = {name: sorted(curve) for name, curve in lines.curves.items() if curve}
    xs = [x for curve in curves.values() for x, _ in curve]
    ys = [y for curve in curves.values() for _, y in curve] + list(lines.levels.values())
    height = max(layout.height, LINE * len(curves))
    y = Frame.around(ys, height, log=lines.log).upright()
    width = Frame(min(xs), max(max(xs), min(xs) + 1e-9), layout.plot)
    canvas = Canvas(
        layout,
        width,
        y,
        lines.x_title,
        x_ticks=_counting_ticks(min(xs), max(xs), layout) if lines.whole_x else (),
        y_ticks=tuple(decade_ticks(*y.domain)) if lines.log else (),
    )
    looks = _styles(list(curves), lines.dashed)
    rows: list[Row] = []
    for name, curve in reversed(curves.items()):
        look = {"line": name, **looks[name].row()}
        rows += [{"x": px, "y": float(f"{py:.5g}"), "order": px, **look} for px, py in curve]
    ends = [End(name, looks[name], curve[-1]) for name, curve in curves.items()]
    layers = [*canvas.heading(lines.y_title), canvas.lines(rows)]
    for text, value in lines.levels.items():
        layers += level(canvas, value, formats.clean(text), list(curves.values()))
    return finished(plot(canvas, [*layers, *canvas.key(ends)]))


def _styles(names: Sequence[str], dashed: Sequence[str]) -> dict[str, Style]:
    looks: dict[str, Style] = {}
    for name in names:
        if name in dashed and looks:
            before = list(looks.values())[-1]
            looks[name] = Style(before.colour, (3, 3), 1.8)
        else:
            looks[name] = numbered_style(sum(one not in dashed for one in looks))
    return looks


def _counting_ticks(first: float, last: float, layout: Layout) -> tuple[float, ...]:
    """Whole numbers, as many as there is room for."""
    room = max(layout.plot // 45, 2)
    step = max(1, math.ceil((last - first) / room))
    return tuple(float(x) for x in range(math.ceil(first / step) * step, round(last) + 1, step))
