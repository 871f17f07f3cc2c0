"""All charts of a study, in the order in which a report shows them."""

from blocklab.report.drawing import Chart
from blocklab.report.effects import effects_chart
from blocklab.report.rates import rates_chart
from blocklab.report.steps import gradient_chart, loss_chart
from blocklab.study.results import StudyResult


def charts(result: StudyResult) -> tuple[Chart, ...]:
    """Those that can be drawn: a study in which nothing finished has none."""
    makers = (effects_chart, rates_chart, loss_chart, gradient_chart)
    made = (make(result) for make in makers)
    return tuple(chart for chart in made if chart)
