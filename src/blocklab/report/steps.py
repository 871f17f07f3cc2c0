"""The charts over steps: training loss and gradient norm of every arm at its best rate."""

import math
from collections.abc import Callable, Mapping

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
from blocklab.report.curves import Band, band, best_runs
from blocklab.report.drawing import Chart, Spec
from blocklab.report.frame import Frame, decade_ticks
from blocklab.report.palette import styles
from blocklab.report.standing import not_drawn
from blocklab.study.results import Point, StudyResult


def loss_chart(result: StudyResult) -> Chart | None:
    """Training loss over steps; None where no run finished."""
    bands = _bands(result, lambda point: point.train_loss)
    if not bands:
        return None
    return Chart(
        "training-loss",
        "Training loss",
        f"Each arm at its best rate: the mean over its seeds, {_smoothing(bands)}, and the "
        "lowest and highest seed around it. A model that has learnt nothing stands at ln V, one "
        "that knows only how often each token occurs at the unigram entropy."
        + not_drawn(result, bands),
        "Training loss over steps: " + _course(bands),
        _loss_spec(result, bands, WIDE),
        _loss_spec(result, bands, NARROW),
    )


def gradient_chart(result: StudyResult) -> Chart | None:
    """Gradient norm before clipping over steps; None where no run finished."""
    bands = _bands(result, lambda point: point.gradient_norm, log=True)
    if not bands:
        return None
    return Chart(
        "gradient-norm",
        "Gradient norm",
        "The norm over all parameters before clipping, on a logarithmic axis: the geometric mean "
        f"over the seeds at the arm’s best rate, {_smoothing(bands)}. A line that climbs or "
        "leaps is the first sign of a training about to fail." + not_drawn(result, bands),
        "Gradient norm over steps: " + _course(bands),
        _gradient_spec(result, bands, WIDE),
        _gradient_spec(result, bands, NARROW),
    )


def _bands(
    result: StudyResult, value: Callable[[Point], float | None], log: bool = False
) -> dict[str, Band]:
    found = {arm.name: band(best_runs(arm, result.runs), value, log) for arm in result.arms}
    return {name: one for name, one in found.items() if one}


def _smoothing(bands: Mapping[str, Band]) -> str:
    window = max(one.window for one in bands.values())
    if window == 1:
        return "as logged"
    return f"smoothed by a running mean over {window} logged steps"


def _course(bands: Mapping[str, Band]) -> str:
    courses = (
        f"{formats.clean(name)} from {one.middle[0]:.2f} to {one.middle[-1]:.2f}"
        for name, one in bands.items()
    )
    return "; ".join(courses) + "."


def _loss_spec(result: StudyResult, bands: Mapping[str, Band], layout: Layout) -> Spec:
    uniform, unigram = math.log(result.facts.vocab_size), result.facts.unigram_entropy
    values = [v for one in bands.values() for v in (*one.low, *one.high)]
    height = _height(layout, bands)
    canvas = _canvas(bands, layout, Frame.around([*values, uniform, unigram], height).upright())
    lines = [list(zip(one.steps, one.middle, strict=True)) for one in bands.values()]
    # Each rule keeps the other's name off itself too.
    rules = [[(0.0, value), (canvas.x.last, value)] for value in (uniform, unigram)]
    layers = [
        *canvas.heading("training loss, nats"),
        _ranges(canvas, result, bands),
        *_lines(canvas, result, bands),
        *level(canvas, uniform, "uniform guess, ln V", [*lines, rules[1]]),
        *level(canvas, unigram, "unigram entropy", [*lines, rules[0]]),
    ]
    return finished(plot(canvas, layers))


def _gradient_spec(result: StudyResult, bands: Mapping[str, Band], layout: Layout) -> Spec:
    height = _height(layout, bands)
    values = [v for one in bands.values() for v in (*one.low, *one.high)]
    frame = Frame.around(values, height, log=True).upright()
    canvas = _canvas(bands, layout, frame, tuple(decade_ticks(*frame.domain)))
    layers = [*canvas.heading("gradient norm"), *_lines(canvas, result, bands)]
    return finished(plot(canvas, layers))


def _height(layout: Layout, bands: Mapping[str, Band]) -> float:
    return max(layout.height, LINE * len(bands))


def _canvas(
    bands: Mapping[str, Band], layout: Layout, y: Frame, y_ticks: tuple[float, ...] = ()
) -> Canvas:
    last = max(one.steps[-1] for one in bands.values())
    return Canvas(layout, Frame(0, last, layout.plot), y, "step", y_ticks=y_ticks)


def _ranges(canvas: Canvas, result: StudyResult, bands: Mapping[str, Band]) -> Layer:
    """From the lowest seed to the highest, for every arm with more than one."""
    looks = styles(result)
    rows: list[Row] = []
    for name, one in bands.items():
        if one.n_runs > 1:
            look = {"line": name, "colour": looks[name].colour}
            ends = zip(one.steps, one.low, one.high, strict=True)
            rows += [
                {"x": x, "y": _short(low), "high": _short(high), **look} for x, low, high in ends
            ]
    within = {"y2": {"field": "high"}, "color": literal("colour"), "detail": {"field": "line"}}
    return canvas.on(rows, {"type": "area", "opacity": 0.12}, within)


def _lines(canvas: Canvas, result: StudyResult, bands: Mapping[str, Band]) -> list[Layer]:
    """The means, the baseline's uppermost, and their names."""
    looks = styles(result)
    names = [arm.name for arm in result.arms if arm.name in bands]
    rows: list[Row] = []
    for name in reversed(names):
        points = zip(bands[name].steps, bands[name].middle, strict=True)
        look = {"line": name, **looks[name].row()}
        rows += [{"x": x, "y": _short(y), "order": x, **look} for x, y in points]
    ends = [
        End(name, looks[name], (bands[name].steps[-1], bands[name].middle[-1])) for name in names
    ]
    return [canvas.lines(rows), *canvas.key(ends)]


def _short(value: float) -> float:
    """Five digits are more than a pixel tells, and keep the description small."""
    return float(f"{value:.5g}")
