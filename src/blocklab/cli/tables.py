"""A page's tables as a terminal shows them."""

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from blocklab.report.page import Table

PIPED_WIDTH = 150
"""Columns where no terminal says how many it has."""

STYLES = {"match": "green", "close": "yellow", "off": "bold red"}


def console() -> Console:
    """Where tables are printed."""
    found = Console(highlight=False)
    if not found.is_terminal:
        found.width = PIPED_WIDTH
    return found


def terminal_table(table: Table, title: str = "") -> RichTable:
    """The table, its first column and its words aligned left."""
    shown = RichTable(title=title or None, title_justify="left")
    for i, column in enumerate(table.columns):
        left = i == 0 or i in table.words
        shown.add_column(column, justify="left" if left else "right")
    for number, row in enumerate(table.rows):
        mark = (table.marked or {}).get(number, "")
        *cells, last = row
        shown.add_row(
            *(Text(cell or "–") for cell in cells), Text(last or "–", style=STYLES.get(mark, ""))
        )
    return shown
