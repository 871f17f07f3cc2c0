"""A page of sections: sentences, tables, charts. For whatever is not a study's report.

It stands alone like the report: no script, nothing fetched, charts beside it as files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from blocklab.report.drawing import Chart, inline, to_png, to_svg


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
    from blocklab.files import write_atomically

    drawn = {
        chart.name: _drawn(chart, folder) for section in page.sections for chart in section.charts
    }
    write_atomically(folder / file, _rendered(page, drawn).encode())
    return folder / file


def _drawn(chart: Chart, folder: Path) -> dict[str, str]:
    from blocklab.files import write_atomically

    wide, narrow = to_svg(chart.wide), to_svg(chart.narrow)
    write_atomically(folder / "charts" / f"{chart.name}.svg", wide.encode())
    write_atomically(folder / "charts" / f"{chart.name}.png", to_png(wide))
    return {
        "wide": inline(wide, f"{chart.name}-wide", chart.description),
        "narrow": inline(narrow, f"{chart.name}-narrow", chart.description),
    }


def _rendered(page: Page, drawn: Mapping[str, Mapping[str, str]]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("blocklab.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(page=page, drawn=drawn)


def aligned(rows: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Rows as a table keeps them."""
    return tuple(tuple(row) for row in rows)
