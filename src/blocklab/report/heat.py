"""Grids of coloured cells: one number for each row and column, in one panel or several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from blocklab.report.canvas import TEXT, finished
from blocklab.report.drawing import Chart, Spec
from blocklab.report.palette import INK, QUIET

Grid: TypeAlias = Sequence[Sequence[float | None]]
"""Rows from top to bottom; None leaves a cell empty."""


@dataclass(frozen=True)
class Panels:
    """Grids of equal size beside one another, coloured on one scale from pale to dark."""

    grids: Mapping[str, Grid]
    x_title: str
    y_title: str
    scale: tuple[float, float]
    numbers: bool = False
    """Whether each cell's number is written in it."""


def heat_chart(name: str, title: str, reading: str, panels: Panels) -> Chart:
    """The panels as one chart."""
    description = f"{title}: cells by {panels.y_title} and {panels.x_title}."
    return Chart(name, title, reading, description, _spec(panels, 640), _spec(panels, 320))


def _spec(panels: Panels, width: int) -> Spec:
    if len(panels.grids) == 1:
        ((_, grid),) = panels.grids.items()
        return finished(_grid(panels, grid, "", width - 60, numbers=panels.numbers))
    columns = 4 if width > 400 else 2
    size = (width - 24 * columns) // columns - 16
    shown = [
        _grid(panels, grid, title, size, numbers=False) for title, grid in panels.grids.items()
    ]
    return finished({"concat": shown, "columns": columns, "spacing": 12})


def _grid(panels: Panels, grid: Grid, title: str, width: int, *, numbers: bool) -> Spec:
    cells = [
        {"x": x, "y": y, "value": float(f"{value:.4g}"), "text": _short(value)}
        for y, row in enumerate(grid)
        for x, value in enumerate(row)
        if value is not None
    ]
    n_columns = max(len(row) for row in grid)
    cell = width / n_columns
    height = min(cell, 34) * len(grid) if numbers else cell * len(grid)
    axis = {"domain": False, "ticks": False, "grid": False, "labelAngle": 0}
    x, y = (
        {"field": field, "type": "ordinal", "axis": None if title else {**axis, "title": words}}
        for field, words in (("x", panels.x_title), ("y", panels.y_title))
    )
    colour = {
        "field": "value", "type": "quantitative", "legend": None,
        "scale": {"domain": list(panels.scale), "scheme": "blues", "clamp": True},
    }  # fmt: skip
    layers: list[Spec] = [{"mark": {"type": "rect"}, "encoding": {"x": x, "y": y, "color": colour}}]
    if numbers and cell > 26:
        middle = (panels.scale[0] + panels.scale[1]) / 2 + 0.1 * (panels.scale[1] - panels.scale[0])
        ink = {"condition": {"test": f"datum.value > {middle}", "value": "white"}, "value": INK}
        layers.append(
            {
                "mark": {"type": "text", "fontSize": min(TEXT - 1, cell / 3)},
                "encoding": {"x": x, "y": y, "text": {"field": "text"}, "color": ink},
            }
        )
    heading = {"text": title, "fontSize": TEXT, "fontWeight": "normal", "color": QUIET}
    named = {"title": heading} if title else {}
    return {"data": {"values": cells}, "width": width, "height": height, "layer": layers, **named}


def _short(value: float) -> str:
    return f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"
