"""The chart of effects: what each variant changed, seed by seed, with its interval."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from blocklab.report import formats
from blocklab.report.canvas import (
    NARROW,
    TEXT,
    WIDE,
    Canvas,
    Layer,
    Layout,
    Row,
    finished,
    literal,
    plot,
)
from blocklab.report.drawing import Chart, Spec
from blocklab.report.frame import Frame
from blocklab.report.palette import INK, QUIET, Style, styles
from blocklab.study.results import Arm, StudyResult
from blocklab.study.wording import percent

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
    level = percent(result.level)
    reading = (
        "Each dot is one seed: the arm’s validation loss at its best rate minus "
        f"{base}’s at its own. The diamond is their mean, the bar its {level} interval. Left of "
        "the line the arm had the lower loss."
    )
    if result.baseline.undecided is None and any(map(_is_chance, arms)):
        reading += " The dashed placebo shows what chance alone does here."
    if open_ones := _without_interval(arms):
        reading += f" No interval: {open_ones}."
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


def _is_chance(arm: Arm) -> bool:
    """A placebo that was read at its best rate, and no further off than chance takes one."""
    warned = arm.chance is not None and arm.chance.warning is not None
    return arm.role == "placebo" and arm.undecided is None and not warned


def _without_interval(arms: Sequence[Arm]) -> str:
    """The arms whose mean stands without a bar, each with its reason."""
    return "; ".join(
        f"{formats.clean(arm.name)} ({formats.clean(arm.effect.no_interval)})"
        for arm in arms
        if arm.effect is not None and arm.effect.no_interval
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
        return formats.real_minus(f"{mean} (no interval)")
    low, high = (formats.fixed(end, 3, signed=True) for end in (effect.low, effect.high))
    return formats.real_minus(f"{mean} ({low} to {high})")


def _spec(result: StudyResult, near: Sequence[Arm], layout: Layout) -> Spec:
    looks = styles(result)
    # Names stand at the left here, numbers at the right; what is left over is the plot's.
    longest = max(len(formats.clean(arm.name)) for arm in result.arms[1:])
    room = min(layout.names, 7 * longest + 6)
    layout = replace(layout, plot=layout.plot + (10 if layout.beside else 36) - room)
    base = formats.clean(result.baseline.name)
    title = f"validation loss minus {base}’s, nats (negative is better)"
    if not layout.beside or len(base) > 20:
        title = "nats from the baseline (negative is better)"
    panels = [_panel(_canvas(result.arms[1:], layout, title), result.arms[1:], looks)]
    if near:
        panels.append(
            _panel(_canvas(near, layout, title), near, looks, "The rows near zero, larger")
        )
    return finished({"vconcat": panels, "bounds": "flush", "spacing": 108})


def _canvas(arms: Sequence[Arm], layout: Layout, title: str) -> Canvas:
    extents = [0.0, *(end for arm in arms for end in _extent(arm))]
    rows = Frame(-0.5, len(arms) - 0.5, ROW * len(arms))
    return Canvas(layout, Frame.around(extents, layout.plot), rows, title, bare_y=True)


def _panel(
    canvas: Canvas, arms: Sequence[Arm], looks: Mapping[str, Style], headline: str = ""
) -> Spec:
    zero = canvas.x.pixel(0)
    rule = {"type": "rule", "color": INK, "strokeWidth": 1}
    ends = {"y": {"value": -4}, "y2": {"value": canvas.y.length}}
    label = {**canvas.place(min(zero, canvas.layout.plot - 30), -13), "text": "no difference"}
    layers = [
        canvas.on([{"x": 0, "y": 0}], rule, ends),
        *canvas.words([label], "center", QUIET),
        *_names_and_numbers(canvas, arms, formats.told_apart(list(looks), canvas.layout.names)),
        *_bars_and_dots(canvas, arms, looks),
    ]
    if headline:
        layers += canvas.words([{**canvas.place(0, -38), "text": headline}], weight="bold")
    return plot(canvas, layers)


def _names_and_numbers(canvas: Canvas, arms: Sequence[Arm], told: Mapping[str, str]) -> list[Layer]:
    middles = [(row + 0.5) * ROW for row in range(len(arms))]
    names = [
        {**canvas.place(-14, middle), "text": told[arm.name]}
        for arm, middle in zip(arms, middles, strict=True)
    ]
    layers = canvas.words(names, "right", size=TEXT + 1)
    beside = canvas.layout.plot + 18
    if canvas.layout.beside:
        numbers = [
            {**canvas.place(beside, middle), "text": _numbers(arm)}
            for arm, middle in zip(arms, middles, strict=True)
        ]
        head = [{**canvas.place(beside, -13), "text": "mean (interval)"}]
        layers += canvas.words(numbers) + canvas.words(head, colour=QUIET)
    else:
        empty = [
            {**canvas.place(canvas.layout.plot / 2, middle), "text": _numbers(arm)}
            for arm, middle in zip(arms, middles, strict=True)
            if arm.effect is None
        ]
        layers += canvas.words(empty, "center", QUIET)
    return layers


def _bars_and_dots(canvas: Canvas, arms: Sequence[Arm], looks: Mapping[str, Style]) -> list[Layer]:
    """The interval as a bar with ends, the mean as a diamond on it, the seeds as dots below."""
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
    caps = {"type": "tick", "orient": "vertical", "size": 11, "thickness": 2, "opacity": 1}
    return [
        canvas.lines(bars),
        canvas.on(bars, caps, {"color": literal("colour")}),
        canvas.points(seeds, 22, opacity=0.5),
        canvas.points(means, 140, "diamond"),
    ]
