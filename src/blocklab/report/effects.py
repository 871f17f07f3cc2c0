"""The chart of effects: what each variant changed, seed by seed, with its interval."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from blocklab.report import formats
from blocklab.report.canvas import NARROW, TEXT, WIDE, Canvas, Layout, Row, styled
from blocklab.report.drawing import Chart, Spec
from blocklab.report.frame import Frame
from blocklab.report.palette import INK, QUIET, Style, styles
from blocklab.study.results import Arm, StudyResult

if TYPE_CHECKING:
    import altair as alt

ROW = 44
CLOSE_UP = 5.0
"""How many times farther out the farthest row must lie before the near ones are drawn again."""


def effects_chart(result: StudyResult) -> Chart | None:
    """One row per variant and placebo; None where there is none with a complete pair."""
    arms = result.arms[1:]
    if not any(arm.effect for arm in arms):
        return None
    base = formats.clean(result.baseline.name)
    near = _near(arms)
    reading = (
        "Each dot is one seed: the arm's validation loss at its best rate minus "
        f"{base}'s at its own. The diamond is their mean, the bar its 95 % interval. Left of the "
        "line the arm had the lower loss. The dashed placebo shows what chance alone does here."
    )
    if near:
        reading += " The lower panel draws the rows near zero again, larger."
    shown = "; ".join(f"{formats.clean(arm.name)} {_numbers(arm)}" for arm in arms)
    return Chart(
        "effects",
        "What each change did",
        reading,
        f"Differences in validation loss from {base}, in nats: {shown}.",
        _spec(result, near, WIDE),
        _spec(result, near, NARROW),
    )


def _near(arms: Sequence[Arm]) -> list[Arm]:
    """The rows that the farthest one presses flat, if any."""
    reach = {arm.name: max(map(abs, _extent(arm))) for arm in arms if arm.effect}
    farthest = max(reach.values())
    return [arm for arm in arms if arm.name in reach and reach[arm.name] * CLOSE_UP < farthest]


def _extent(arm: Arm) -> list[float]:
    if arm.effect is None:
        return []
    ends = (arm.effect.low, arm.effect.high, *arm.effect.differences.values(), arm.effect.mean)
    return [end for end in ends if end is not None]


def _numbers(arm: Arm) -> str:
    effect = arm.effect
    if effect is None:
        return "no complete pair"
    mean = formats.fixed(effect.mean, 3, signed=True)
    if effect.low is None or effect.high is None:
        return formats.real_minus(f"{mean} (one seed)")
    low, high = (formats.fixed(end, 3, signed=True) for end in (effect.low, effect.high))
    return formats.real_minus(f"{mean} ({low} to {high})")


def _spec(result: StudyResult, near: Sequence[Arm], layout: Layout) -> Spec:
    import altair as alt

    # Names stand at the left here, numbers at the right; what is left over is the plot's.
    layout = replace(layout, plot=layout.plot - (140 if layout.beside else 40))
    base = formats.clean(result.baseline.name)
    looks = styles(result)
    title = f"validation loss minus {base}’s, nats (negative is better)"
    if not layout.beside:
        title = "nats from the baseline (negative is better)"
    panels = [_canvas(result.arms[1:], layout, title)]
    drawn = [_panel(panels[0], result.arms[1:], looks)]
    if near:
        # The two panels share one store of rows.
        panels.append(replace(_canvas(near, layout, title), datasets=panels[0].datasets))
        drawn.append(_panel(panels[1], near, looks, "The rows near zero, larger"))
    return styled(alt.vconcat(*drawn, bounds="flush", spacing=108), panels[0].datasets)


def _canvas(arms: Sequence[Arm], layout: Layout, title: str) -> Canvas:
    extents = [0.0, *(end for arm in arms for end in _extent(arm))]
    rows = Frame(-0.5, len(arms) - 0.5, ROW * len(arms))
    return Canvas(layout, Frame.around(extents, layout.plot), rows, title, bare_y=True)


def _panel(
    canvas: Canvas, arms: Sequence[Arm], looks: Mapping[str, Style], headline: str = ""
) -> "alt.LayerChart":
    import altair as alt

    layout, height, zero = canvas.layout, canvas.y.length, canvas.x.pixel(0)
    layers = [
        canvas.on([{"x": 0, "y": 0}])
        .mark_rule(color=INK, strokeWidth=1)
        .encode(y=alt.value(-4), y2=alt.value(height)),
        canvas.words(
            [{**canvas.place(min(zero, layout.plot - 30), -13), "text": "no difference"}],
            "center", QUIET,
        ),
    ]  # fmt: skip
    layers += _names_and_numbers(canvas, arms)
    layers += _bars_and_dots(canvas, arms, looks)
    if headline:
        layers.append(canvas.words([{**canvas.place(0, -38), "text": headline}], bold=True))
    return alt.layer(*layers).properties(width=layout.plot, height=height)


def _names_and_numbers(canvas: Canvas, arms: Sequence[Arm]) -> "list[alt.Chart | alt.LayerChart]":
    middles = [(row + 0.5) * ROW for row in range(len(arms))]
    names = [
        {**canvas.place(-14, middle), "text": formats.clean(arm.name)}
        for arm, middle in zip(arms, middles, strict=True)
    ]
    layers = [
        canvas.on(names)
        .mark_text(align="right", baseline="middle", fontSize=TEXT + 1, color=INK,
                   limit=canvas.layout.names)
        .encode(text="text:N")
    ]  # fmt: skip
    beside = canvas.layout.plot + 18
    if canvas.layout.beside:
        numbers = [
            {**canvas.place(beside, middle), "text": _numbers(arm)}
            for arm, middle in zip(arms, middles, strict=True)
        ]
        head = [{**canvas.place(beside, -13), "text": "mean (95 % interval)"}]
        layers += [canvas.words(numbers), canvas.words(head, colour=QUIET)]
    else:
        empty = [
            {**canvas.place(canvas.layout.plot / 2, middle), "text": _numbers(arm)}
            for arm, middle in zip(arms, middles, strict=True)
            if arm.effect is None
        ]
        layers.append(canvas.words(empty, "center", QUIET))
    return layers


def _bars_and_dots(
    canvas: Canvas, arms: Sequence[Arm], looks: Mapping[str, Style]
) -> "list[alt.Chart]":
    """The interval as a bar with ends, the mean as a diamond on it, the seeds as dots below."""
    import altair as alt

    bars: list[Row] = []
    means: list[Row] = []
    seeds: list[Row] = []
    for row, arm in enumerate(arms):
        effect, look = arm.effect, looks[arm.name]
        if effect is None:
            continue
        means.append({"x": effect.mean, "y": row, "fill": look.colour, "stroke": "white"})
        seeds += [{"x": d, "y": row + 0.26, **look.dot()} for d in effect.differences.values()]
        for order, end in enumerate((effect.low, effect.high)):
            if end is not None:
                bars.append({"x": end, "y": row, "order": order, "line": arm.name, **look.row()})
    ends = (
        canvas.on(bars)
        .mark_tick(orient="vertical", size=11, thickness=2, opacity=1)
        .encode(color=alt.Color("colour:N", scale=None))
    )
    return [
        canvas.lines(bars),
        ends,
        canvas.points(seeds, 22, opacity=0.5),
        canvas.points(means, 100, "diamond"),
    ]
