"""The chart of learning rates: a curve for every arm, because one rate can decide a ranking."""

import math
from collections.abc import Mapping, Sequence

from blocklab.report import formats
from blocklab.report.canvas import (
    LINE,
    NARROW,
    WIDE,
    Canvas,
    End,
    Layer,
    Layout,
    Row,
    finished,
    level,
    literal,
    plot,
)
from blocklab.report.circumstances import started_from
from blocklab.report.drawing import Chart, Spec
from blocklab.report.frame import Frame
from blocklab.report.palette import QUIET, Style, styles
from blocklab.study.rates import STEP
from blocklab.study.results import Arm, StudyResult

SEARCHED = " Beside the rates that an arm is read at there is the searching seed alone."


def rates_chart(result: StudyResult) -> Chart | None:
    """Validation loss over the grid of rates; None where every run diverged."""
    if not any(point.losses for arm in result.arms for point in arm.rates):
        return None
    best = "; ".join(
        f"{formats.clean(arm.name)} is lowest at {formats.rate(arm.best_rate)}"
        for arm in result.arms
        if arm.best_rate is not None
    )
    return Chart(
        "learning-rates",
        "Learning rate by learning rate",
        "The line joins the means over the seeds that finished, the faint dots are single seeds. "
        "A hollow point lacks seeds that diverged there; a cross at the top counts them. A curve "
        "that still falls at its end says that the grid was too short for that arm."
        + (SEARCHED if result.facts.searched else ""),
        f"Validation loss over the learning rate: {best}.",
        _spec(result, WIDE),
        _spec(result, NARROW),
    )


def _spec(result: StudyResult, layout: Layout) -> Spec:
    looks = styles(result)
    lost = [arm for arm in result.arms if any(point.n_diverged for point in arm.rates)]
    band = LINE * len(lost) + 8 if lost else 0
    canvas = _canvas(result, layout, band)
    layers = canvas.heading("validation loss, nats")
    layers += _curves(canvas, result, looks)
    lines = [_line(arm) for arm in result.arms]
    for value, text in (
        (math.log(result.facts.vocab_size), "uniform guess, ln V"),
        (result.facts.unigram_entropy, "unigram entropy"),
    ):
        if canvas.y.holds(value) and canvas.y.pixel(value) > band:
            layers += level(canvas, value, text, lines)
    layers += _crosses(canvas, lost, looks)
    ends = [End(arm.name, looks[arm.name], max(_line(arm), default=None)) for arm in result.arms]
    return finished(plot(canvas, [*layers, *canvas.key(ends, band)]))


def _canvas(result: StudyResult, layout: Layout, band: float) -> Canvas:
    points = [point for arm in result.arms for point in arm.rates]
    rates = sorted({point.learning_rate for point in points})
    losses = [loss for point in points for loss in point.losses.values()]
    x = Frame.around(rates, layout.plot, log=True)
    if len(rates) == 1:
        x = Frame(rates[0] / 3, rates[0] * 3, layout.plot, log=True)
    height = max(layout.height, LINE * len(result.arms))
    y = Frame.around(losses, height).upright(band)
    return Canvas(layout, x, y, "learning rate", x_ticks=_ticks(result, rates))


def _ticks(result: StudyResult, rates: Sequence[float]) -> tuple[float, ...]:
    """Rates that were trained: all of a grid; of a search, whose rates come to lie close together,
    those whole steps apart, from which it began and which it went on to past an edge."""
    if not result.facts.searched:
        return tuple(rates)
    first = started_from(result)[0]
    steps = {rate: math.log(rate / first, STEP) for rate in rates}
    return tuple(rate for rate, place in steps.items() if abs(place - round(place)) < 1e-3)


def _line(arm: Arm) -> list[tuple[float, float]]:
    means = ((point.learning_rate, point.mean) for point in arm.rates)
    return sorted((rate, mean) for rate, mean in means if mean is not None)


def _curves(canvas: Canvas, result: StudyResult, looks: Mapping[str, Style]) -> list[Layer]:
    seeds: list[Row] = []
    line: list[Row] = []
    means: list[Row] = []
    # The baseline comes last, so that it lies on top.
    for arm in reversed(result.arms):
        look = looks[arm.name]
        torn = {point.learning_rate for point in arm.rates if point.n_diverged}
        for point in arm.rates:
            seeds += [
                {"x": point.learning_rate, "y": loss, **look.dot()}
                for loss in point.losses.values()
            ]
        for order, (x, y) in enumerate(_line(arm)):
            line.append({"x": x, "y": y, "order": order, "line": arm.name, **look.row()})
            means.append({"x": x, "y": y, **look.dot("white" if x in torn else None)})
    return [canvas.points(seeds, 14, opacity=0.3), canvas.lines(line), canvas.points(means, 30)]


def _crosses(canvas: Canvas, arms: list[Arm], looks: Mapping[str, Style]) -> list[Layer]:
    """A line of crosses for each arm that lost runs, above all curves."""
    if not arms:
        return []
    told = formats.told_apart(list(looks), canvas.layout.names + 20)
    crosses: list[Row] = []
    counts: list[Row] = []
    names: list[Row] = []
    for i, arm in enumerate(arms):
        height = LINE * (i + 0.5)
        beside = canvas.place(canvas.layout.plot + 18, height)
        names.append({**beside, "text": told[arm.name]})
        for point in arm.rates:
            if point.n_diverged:
                across = canvas.x.pixel(point.learning_rate)
                crosses.append({**canvas.place(across, height), **looks[arm.name].dot()})
                # Each count stands on the side of its cross where the plot has room.
                aside = 26 if across < canvas.layout.plot / 2 else -26
                n = point.n_diverged + len(point.losses)
                text = f"{point.n_diverged} of {n}"
                counts.append({**canvas.place(across + aside, height), "text": text})
    saltire = {
        "type": "point",
        "shape": "cross",
        "angle": 45,
        "size": 64,
        "strokeWidth": 0,
        "opacity": 1,
    }
    layers = [canvas.on(crosses, saltire, {"fill": literal("fill")})]
    layers += canvas.words(counts, "center", QUIET)
    if canvas.layout.beside:
        layers += canvas.words(names, colour=QUIET)
        layers += canvas.words([{**canvas.place(canvas.layout.plot + 18, -16), "text": "diverged"}])
    return layers
