"""A page of sections: sentences, tables, charts. For whatever is not a study's report."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blocklab.files import write_atomically
from blocklab.report.drawing import Chart
from blocklab.report.standalone import rendered, written_chart


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; the first column names its row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: str = ""
    words: tuple[int, ...] = ()
    """Columns that hold words: aligned left, and allowed to wrap."""
    marked: Mapping[int, str] | None = None
    """A class for the last cell of a row, by the row's number."""


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    name: str
    """The anchor; unique on the page."""
    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()


@dataclass(frozen=True)
class Page:
    """A whole page."""

    title: str
    kicker: str
    headline: str
    sections: tuple[Section, ...]
    command: str | None = None
    """What makes it again."""
    warnings: tuple[str, ...] = ()


def write_page(page: Page, folder: Path, file: str) -> Path:
    """Write the page and, under `charts/`, its charts as SVG and PNG; returns the page's path.

    Raises RunFailed when the disk refuses.
    """
    drawn = {
        chart.name: written_chart(chart, folder)
        for section in page.sections
        for chart in section.charts
    }
    text = rendered("page.html.j2", {"page": page, "drawn": drawn})
    write_atomically(folder / file, text.encode())
    return folder / file
