"""All charts of a study, in the order in which a report shows them."""

from dataclasses import replace

from blocklab.report.blocks import blocks_chart
from blocklab.report.drawing import Chart
from blocklab.report.effects import effects_chart
from blocklab.report.formats import clean
from blocklab.report.rates import rates_chart
from blocklab.report.steps import gradient_chart, loss_chart
from blocklab.study.results import StudyResult

MOST_SETTINGS = 4
"""Settings of the nuisances of which each has its own curves over learning rates."""


def charts(result: StudyResult) -> tuple[Chart, ...]:
    """Those that can be drawn: a study in which nothing finished has none.

    Effects are those over all settings of the nuisances, and each setting has its learning rates;
    curves over steps are of the first one, and say so.
    """
    name = next(iter(result.cells), "")
    shown = result.shown()
    over_steps = (make(shown) for make in (loss_chart, gradient_chart, blocks_chart))
    where = f" Shown for one setting of the nuisances: {clean(name)}." if name else ""
    made = [effects_chart(result), *_rates(result)]
    made += [chart and replace(chart, reading=chart.reading + where) for chart in over_steps]
    return tuple(chart for chart in made if chart)


def _rates(result: StudyResult) -> list[Chart | None]:
    if not result.cells:
        return [rates_chart(result.shown())]
    made: dict[str, Chart] = {}
    for number, cell in enumerate(list(result.cells)[:MOST_SETTINGS], 1):
        chart = rates_chart(result.in_cell(cell))
        if chart is not None:
            title = f"{chart.title}: {clean(cell)}"
            made[cell] = replace(chart, name=f"{chart.name}-{number}", title=title)
    left_out = [clean(cell) for cell in result.cells if cell not in made]
    if made and left_out:
        last = list(made)[-1]
        told = f"{made[last].reading} Not drawn: {'; '.join(left_out)}."
        made[last] = replace(made[last], reading=told)
    return list(made.values())
