"""What the charts share: two layouts, one look, and the key that names each line.

All positions are computed here in pixels, not left to chance, so that no two labels collide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from blocklab.report import formats
from blocklab.report.drawing import FONT, Spec
from blocklab.report.frame import Frame, apart
from blocklab.report.palette import EDGE, FAINT, INK, QUIET, Style

Row: TypeAlias = Mapping[str, float | str | Sequence[int]]
Layer: TypeAlias = Mapping[str, object]
"""One mark over its rows, in Vega-Lite's words."""
Curve: TypeAlias = Sequence[tuple[float, float]]
"""A line as its points (x, y) in the axes' values, x ascending."""

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
TEXT = 12
LINE = 17
"""Pixels from one line of text to the next."""


@dataclass(frozen=True)
class Layout:
    """How much room a chart has, in pixels."""

    plot: int
    """Width between the axes' ends."""
    height: int
    names: int
    """Longest name that is written out."""
    beside: bool
    """Whether names stand beside the lines' ends, or above the plot for want of room."""


WIDE = Layout(plot=510, height=300, names=140, beside=True)
NARROW = Layout(plot=262, height=240, names=98, beside=False)


@dataclass(frozen=True)
class End:
    """The last point of an arm's line, to which its name belongs; None for an arm without one."""

    name: str
    style: Style
    at: tuple[float, float] | None


@dataclass(frozen=True)
class Canvas:
    """One plot with its axes.

    Rows of marks carry `x` and `y` in the axes' values, and their arm's look where it differs.
    """

    layout: Layout
    x: Frame
    y: Frame
    x_title: str
    x_ticks: tuple[float, ...] = ()
    y_ticks: tuple[float, ...] = ()
    bare_y: bool = False
    """Without a vertical axis: the rows name themselves."""

    def on(
        self, rows: Sequence[Row], mark: Layer, encoding: Mapping[str, object] | None = None
    ) -> Layer:
        """A layer with a mark for the rows on these axes."""
        x: dict[str, object] = {"field": "x", "type": "quantitative", "axis": self._x_axis()}
        y: dict[str, object] = {"field": "y", "type": "quantitative", "axis": self._y_axis()}
        x["scale"] = _scale(self.x, [self.x.first, self.x.last])
        y["scale"] = _scale(self.y, [self.y.last, self.y.first])
        encodings = {"x": x, "y": y, **(encoding or {})}
        return {"data": {"values": rows}, "mark": mark, "encoding": encodings}

    def _x_axis(self) -> Mapping[str, object]:
        axis = {"title": self.x_title, "grid": self.bare_y, "tickSize": 4}
        if self.x_ticks:
            return {**axis, "values": self.x_ticks, "format": "~g", "labelOverlap": "greedy"}
        # Two alone may leave a single one in view, which tells no scale.
        return {**axis, "tickCount": max(self.layout.plot // 85, 3)}

    def _y_axis(self) -> Mapping[str, object] | None:
        if self.bare_y:
            return None
        axis = {"title": None, "domain": False, "ticks": False, "format": "~r"}
        return {**axis, **({"values": self.y_ticks} if self.y_ticks else {"tickCount": 6})}

    def place(self, x: float, y: float) -> dict[str, float | str]:
        """A row at a pixel counted from the plot's upper left corner; beyond the plot too."""
        return {"x": self.x.value(x), "y": self.y.value(y)}

    def words(
        self,
        rows: Sequence[Row],
        align: str = "left",
        colour: str = INK,
        weight: str = "normal",
        size: int = TEXT,
    ) -> list[Layer]:
        """Texts (`text` of each row), on a white seam that keeps them legible over lines."""
        ink = {
            "type": "text", "align": align, "baseline": "middle", "fontSize": size,
            "fontWeight": weight, "limit": 0, "color": colour,
        }  # fmt: skip
        seam = {**ink, "color": "white", "stroke": "white", "strokeWidth": 4, "strokeJoin": "round"}
        text = {"text": {"field": "text", "type": "nominal"}}
        return [self.on(rows, mark, text) for mark in (seam, ink)]

    def lines(self, rows: Sequence[Row]) -> Layer:
        """One line for each `line` that the rows name, through its rows as `order` says.

        They are drawn in the order of the rows: the last lies on top.
        """
        return self.on(
            rows,
            {"type": "line", "strokeJoin": "round"},
            {
                "color": literal("colour"),
                "strokeDash": literal("dash"),
                "strokeWidth": literal("width"),
                "detail": {"field": "line", "type": "nominal"},
                "order": {"field": "order", "type": "quantitative"},
            },
        )

    def points(
        self, rows: Sequence[Row], size: int, shape: str = "circle", opacity: float = 1.0
    ) -> Layer:
        """One point a row, with its own `fill` and `stroke`."""
        return self.on(
            rows,
            {"type": "point", "shape": shape, "size": size, "opacity": opacity, "strokeWidth": 2},
            {"fill": literal("fill"), "stroke": literal("stroke")},
        )

    def heading(self, text: str) -> list[Layer]:
        """The vertical axis's name, written upright above it."""
        return self.words([{**self.place(-44, -16), "text": text}], colour=QUIET)

    def key(self, ends: Sequence[End], below: float = 0.0) -> list[Layer]:
        """Names with their lines' looks: beside the ends, in order of height, or above the plot.

        Beside, they keep to at least `below` pixels under the plot's top.
        """
        if self.layout.beside:
            return self._key_beside([end for end in ends if end.at], below)
        lines = (len(ends) + 1) // 2
        spots = [
            (-44 + i % 2 * (self.layout.plot + 50) / 2, -40 - (lines - 1 - i // 2) * LINE)
            for i in range(len(ends))
        ]
        return self._names(ends, spots)

    def _key_beside(self, ends: Sequence[End], below: float) -> list[Layer]:
        edge = self.layout.plot
        tips = [end.at for end in ends if end.at]
        heights = apart(
            [self.y.pixel(y) for _, y in tips], LINE, below + LINE / 2, self.y.length + LINE / 2
        )
        leaders: list[Row] = []
        for end, (x, y), height in zip(ends, tips, heights, strict=True):
            if self.x.pixel(x) < 0.8 * edge:
                continue  # A leader from so far would cross the other lines.
            look = {"line": end.name, **end.style.row(), "dash": [1, 0], "width": 0.6}
            leaders.append({"x": x, "y": y, "order": 0, **look})
            leaders.append({**self.place(edge + 16, height), "order": 1, **look})
        return [
            self.lines(leaders),
            *self._names(ends, [(edge + 18, height) for height in heights]),
        ]

    def _names(self, ends: Sequence[End], spots: Sequence[tuple[float, float]]) -> list[Layer]:
        samples: list[Row] = []
        names: list[Row] = []
        told = formats.told_apart([end.name for end in ends], self.layout.names)
        for end, (x, y) in zip(ends, spots, strict=True):
            look = {"line": end.name, **end.style.row()}
            samples.append({**self.place(x, y), "order": 0, **look})
            samples.append({**self.place(x + 18, y), "order": 1, **look})
            names.append({**self.place(x + 24, y), "text": told[end.name]})
        return [self.lines(samples), *self.words(names)]


def level(canvas: Canvas, value: float, text: str, lines: Sequence[Curve]) -> list[Layer]:
    """A rule across the plot to read lines against, named where the lines leave most room."""
    mark = {"type": "rule", "color": QUIET, "strokeWidth": 1, "strokeDash": [1, 3]}
    whole = {"x": {"value": 0}, "x2": {"value": "width"}}
    rule = canvas.on([{"x": canvas.x.first, "y": value}], mark, whole)
    width, height = 6.2 * len(text), canvas.y.pixel(value)
    right, left = canvas.layout.plot - 2, 4.0
    places = [(down, align) for down in (-9, 10) for align in ("right", "left")]
    down, align = min(
        places,
        key=lambda place: _crossings(
            canvas, lines, left if place[1] == "left" else right - width, height + place[0], width
        ),
    )
    spot = canvas.place(left if align == "left" else right, height + down)
    return [rule, *canvas.words([{**spot, "text": text}], align, QUIET)]


def _crossings(
    canvas: Canvas, lines: Sequence[Curve], left: float, middle: float, width: float
) -> int:
    """How many of the lines pass through a text's box."""
    found = 0
    for line in lines:
        spots = [(canvas.x.pixel(x), canvas.y.pixel(y)) for x, y in line]
        found += any(_touches(a, b, left, middle, width) for a, b in pairwise(spots))
    return found


def _touches(
    a: tuple[float, float], b: tuple[float, float], left: float, middle: float, width: float
) -> bool:
    """Whether a segment comes into the box, which is half a line of text high on each side."""
    low, high = max(a[0], left), min(b[0], left + width)
    if low > high:
        return False
    slope = (b[1] - a[1]) / (b[0] - a[0]) if b[0] > a[0] else 0.0
    ends = [a[1] + slope * (x - a[0]) for x in (low, high)]
    return min(ends) < middle + LINE / 2 and max(ends) > middle - LINE / 2


def literal(name: str) -> Mapping[str, object]:
    """A field whose values are drawn as they stand: colours, widths, dashes."""
    return {"field": name, "type": "nominal", "scale": None}


def plot(canvas: Canvas, layers: Sequence[Layer]) -> Spec:
    """The layers as one plot."""
    return {"width": canvas.x.length, "height": canvas.y.length, "layer": layers}


def finished(chart: Spec) -> Spec:
    """A chart in the house's look, ready to be drawn."""
    axis = {
        "labelFontSize": TEXT, "titleFontSize": TEXT, "titleFontWeight": "normal",
        "labelColor": QUIET, "titleColor": QUIET, "gridColor": FAINT, "domainColor": EDGE,
        "tickColor": EDGE, "titlePadding": 10, "labelPadding": 5,
    }  # fmt: skip
    config = {"font": FONT, "view": {"stroke": None}, "axis": axis, "aria": False}
    # Room on the right, for a browser whose font is wider than ours.
    padding = {"left": 8, "top": 8, "bottom": 8, "right": 20}
    page = {"background": "white", "padding": padding}
    return {"$schema": SCHEMA, **page, **chart, "config": config}


def _scale(frame: Frame, ends: Sequence[float]) -> Mapping[str, object]:
    kind = "log" if frame.log else "linear"
    return {"domain": ends, "type": kind, "nice": False, **({} if frame.log else {"zero": False})}
