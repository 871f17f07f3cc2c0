"""All charts of a study, in the order in which a report shows them."""

from dataclasses import replace

from blocklab.report.blocks import blocks_chart
from blocklab.report.drawing import Chart
from blocklab.report.effects import effects_chart
from blocklab.report.formats import clean
from blocklab.report.rates import rates_chart
from blocklab.report.steps import gradient_chart, loss_chart
from blocklab.study.results import StudyResult


def charts(result: StudyResult) -> tuple[Chart, ...]:
    """Those that can be drawn: a study in which nothing finished has none.

    Effects are those over all settings of the nuisances; curves are of the first one, and say so.
    """
    name = next(iter(result.cells), "")
    shown = result.shown()
    curves = (make(shown) for make in (rates_chart, loss_chart, gradient_chart, blocks_chart))
    where = f" Shown for one setting of the nuisances: {clean(name)}." if name else ""
    made = [effects_chart(result)]
    made += [chart and replace(chart, reading=chart.reading + where) for chart in curves]
    return tuple(chart for chart in made if chart)
