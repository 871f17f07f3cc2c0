"""The answer in a terminal: the same sentences as the page, and a table that fits its width."""

from typing import TYPE_CHECKING

from blocklab.report import formats, limits, table, words
from blocklab.study.results import StudyResult

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = ("Loss", "Effect", "Verdict", "Best rate", "Diverged")


def summary_table(result: StudyResult, width: int) -> "Table":
    """Every arm, the placebo too, with what matters first, in so many columns of a terminal."""
    from rich.console import Console
    from rich.measure import Measurement

    whole = _table(result, figures_wrap=False)
    console = Console(width=width)
    needed = Measurement.get(console, console.options.update_width(10_000), whole).minimum
    return whole if needed <= width else _table(result, figures_wrap=True)


def _table(result: StudyResult, *, figures_wrap: bool) -> "Table":
    """Words take lines before figures do; a figure that is cut would be another one."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    rows = table.rows(result)
    shown = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    shown.add_column("Arm", overflow="fold", min_width=8)
    columns = [column for column in table.columns(result) if _is_shown(column.heading)]
    for column in columns:
        heading = f"{column.heading}\n{column.unit}" if column.unit else column.heading
        whole = column.is_number and not figures_wrap
        lines = [heading, *(_lines(column, row) for row in rows)]
        widest = max(cell_len(line) for text in lines for line in text.split("\n"))
        shown.add_column(
            heading,
            justify="right",
            no_wrap=whole,
            overflow="fold",
            min_width=widest if whole else None,
        )
    for arm, row in zip(result.arms, rows, strict=True):
        style = {"baseline": "bold", "placebo": "dim"}.get(arm.role, "")
        texts = [formats.clean(row.arm), *(_lines(column, row) for column in columns)]
        # Text, not markup: a name may hold brackets.
        shown.add_row(*(Text(text) for text in texts), style=style)
    return shown


def _lines(column: table.Column, row: table.Row) -> str:
    """A cell, and on a line below of how many it is: `(4 of 5)`, without the word for width."""
    counts = column.counts(row).rpartition(" ")[0]
    return formats.real_minus(column.cell(row)) + (f"\n({counts})" if counts else "")


def _is_shown(heading: str) -> bool:
    return heading in _SHOWN or heading.endswith("interval")


def summary_text(result: StudyResult) -> list[str]:
    """Warnings first, then the study in one sentence, then one for each arm."""
    return [
        *limits.warnings(result),
        words.headline(result),
        *words.sentences(result),
        *words.interactions(result),
    ]
