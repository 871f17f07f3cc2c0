"""What the charts share: two layouts, one look, and the key that names each line.

All positions are computed here in pixels, not left to chance, so that no two labels collide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from blocklab.report import formats
from blocklab.report.drawing import FONT, Spec
from blocklab.report.frame import Frame, apart
from blocklab.report.palette import FAINT, INK, QUIET, Style

if TYPE_CHECKING:
    import altair as alt

Row: TypeAlias = Mapping[str, float | str | Sequence[int]]
Curve: TypeAlias = Sequence[tuple[float, float]]
"""A line as its points (x, y) in the axes' values, x ascending."""

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

    Rows of marks carry `x` and `y` in the axes' values, and their arm's look. A mark of all arms
    is one layer, for the drawing library takes its time over each.
    """

    layout: Layout
    x: Frame
    y: Frame
    x_title: str
    x_ticks: tuple[float, ...] = ()
    y_ticks: tuple[float, ...] = ()
    bare_y: bool = False
    """Without a vertical axis: the rows name themselves."""
    datasets: dict[str, Sequence[Row]] = field(default_factory=dict)
    """All rows drawn so far, by name: apart from the marks, which the library copies often."""

    def on(self, rows: Sequence[Row]) -> "alt.Chart":
        """A chart of the rows on these axes, still without a mark."""
        import altair as alt

        def scale(frame: Frame, ends: list[float]) -> alt.Scale:
            return alt.Scale(
                domain=ends, type="log" if frame.log else "linear", nice=False, zero=False
            )

        upright = [self.y.last, self.y.first]
        y_axis = alt.Axis(title=None, domain=False, ticks=False, tickCount=6, format="~r")
        if self.y_ticks:
            y_axis.values = list(self.y_ticks)
        x_axis = alt.Axis(
            title=self.x_title, grid=self.bare_y, tickSize=4, tickCount=self.layout.plot // 65
        )
        if self.x_ticks:
            x_axis.values, x_axis.format, x_axis.labelOverlap = list(self.x_ticks), "~g", "greedy"
        name = f"rows{len(self.datasets)}"
        self.datasets[name] = rows
        return alt.Chart(alt.NamedData(name)).encode(
            x=alt.X("x:Q", scale=scale(self.x, [self.x.first, self.x.last]), axis=x_axis),
            y=alt.Y("y:Q", scale=scale(self.y, upright), axis=None if self.bare_y else y_axis),
        )

    def place(self, x: float, y: float) -> dict[str, float | str]:
        """A row at a pixel counted from the plot's upper left corner; beyond the plot too."""
        return {"x": self.x.value(x), "y": self.y.value(y)}

    def words(
        self, rows: Sequence[Row], align: str = "left", colour: str = INK, bold: bool = False
    ) -> "alt.LayerChart":
        """Texts (`text` of each row), on a white seam that keeps them legible over lines."""
        import altair as alt

        seam, ink = (
            self.on(rows)
            .mark_text(
                align=align, baseline="middle", fontSize=TEXT, limit=self.layout.plot + 200,
                fontWeight="bold" if bold else "normal", color=paint, stroke=stroke, strokeWidth=4,
                strokeJoin="round",
            )
            .encode(text="text:N")
            for paint, stroke in (("white", "white"), (colour, None))
        )  # fmt: skip
        return alt.layer(seam, ink)

    def lines(self, rows: Sequence[Row]) -> "alt.Chart":
        """One line for each `line` that the rows name, through its rows as `order` says.

        They are drawn in the order of the rows: the last lies on top.
        """
        import altair as alt

        return (
            self.on(rows)
            .mark_line(strokeJoin="round")
            .encode(
                color=alt.Color("colour:N", scale=None),
                strokeDash=alt.StrokeDash("dash:N", scale=None),
                strokeWidth=alt.StrokeWidth("width:Q", scale=None),
                detail="line:N",
                order="order:Q",
            )
        )

    def points(
        self, rows: Sequence[Row], size: int, shape: str = "circle", opacity: float = 1.0
    ) -> "alt.Chart":
        """One filled point a row; hollow ones are filled with white (`fill`)."""
        import altair as alt

        return (
            self.on(rows)
            .mark_point(shape=shape, size=size, opacity=opacity, strokeWidth=2)
            .encode(fill=alt.Fill("fill:N", scale=None), stroke=alt.Stroke("stroke:N", scale=None))
        )

    def heading(self, text: str) -> "alt.LayerChart":
        """The vertical axis's name, written upright above it."""
        return self.words([{**self.place(-44, -16), "text": text}], colour=QUIET)

    def key(self, ends: Sequence[End], below: float = 0.0) -> list["alt.Chart"]:
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

    def _key_beside(self, ends: Sequence[End], below: float) -> list["alt.Chart"]:
        edge = self.layout.plot
        tips = [end.at for end in ends if end.at]
        heights = apart(
            [self.y.pixel(y) for _, y in tips], LINE, below + LINE / 2, self.y.length + LINE / 2
        )
        leaders: list[Row] = []
        for end, (x, y), height in zip(ends, tips, heights, strict=True):
            look = {"line": end.name, **end.style.row(), "dash": [1, 0], "width": 0.6}
            leaders.append({"x": x, "y": y, "order": 0, **look})
            leaders.append({**self.place(edge + 16, height), "order": 1, **look})
        return [
            self.lines(leaders),
            *self._names(ends, [(edge + 18, height) for height in heights]),
        ]

    def _names(
        self, ends: Sequence[End], spots: Sequence[tuple[float, float]]
    ) -> list["alt.Chart"]:
        samples: list[Row] = []
        names: list[Row] = []
        for end, (x, y) in zip(ends, spots, strict=True):
            look = {"line": end.name, **end.style.row()}
            samples.append({**self.place(x, y), "order": 0, **look})
            samples.append({**self.place(x + 18, y), "order": 1, **look})
            names.append({**self.place(x + 24, y), "text": formats.clean(end.name)})
        texts = (
            self.on(names)
            .mark_text(
                align="left", baseline="middle", fontSize=TEXT, color=INK, limit=self.layout.names
            )
            .encode(text="text:N")
        )
        return [self.lines(samples), texts]


def level(
    canvas: Canvas, value: float, text: str, lines: Sequence[Curve]
) -> list["alt.Chart | alt.LayerChart"]:
    """A rule across the plot to read lines against, named where the lines leave most room."""
    import altair as alt

    rule = (
        canvas.on([{"x": canvas.x.first, "y": value}])
        .mark_rule(color=QUIET, strokeWidth=1, strokeDash=[1, 3], strokeCap="round")
        .encode(x=alt.value(0), x2=alt.value("width"))
    )
    width, height = 6.2 * len(text), canvas.y.pixel(value)
    lefts = [canvas.layout.plot - width - 2, 4, (canvas.layout.plot - width) / 2]
    boxes = [(left, height + down) for down in (-9, 10) for left in lefts]
    left, middle = min(boxes, key=lambda box: _crossings(canvas, lines, *box, width))
    name = [{**canvas.place(left, middle), "text": text}]
    return [rule, canvas.words(name, colour=QUIET)]


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


def finished(layers: Sequence["alt.Chart"], canvas: Canvas) -> Spec:
    """The layers as one chart in the house's look."""
    import altair as alt

    chart = alt.layer(*layers).properties(width=canvas.x.length, height=canvas.y.length)
    return styled(chart, canvas.datasets)


def styled(
    chart: "alt.LayerChart | alt.VConcatChart", datasets: Mapping[str, Sequence[Row]]
) -> Spec:
    """The chart with the house's fonts and colours, and the rows that it names."""
    spec: Spec = (
        chart.configure(font=FONT, background="white", padding=8, aria=False)
        .configure_view(stroke=None)
        .configure_axis(
            labelFontSize=TEXT, titleFontSize=TEXT, titleFontWeight="normal", labelColor=QUIET,
            titleColor=QUIET, gridColor=FAINT, domainColor="#b8c0c8", tickColor="#b8c0c8",
            titlePadding=10, labelPadding=5,
        )
        .to_dict()
    )  # fmt: skip
    return {**spec, "datasets": datasets}
