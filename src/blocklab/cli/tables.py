"""A page's tables as a terminal shows them."""

from rich.table import Table as RichTable
from rich.text import Text

from blocklab.report.page import Table

STYLES = {"match": "green", "close": "yellow", "off": "bold red"}


def terminal_table(table: Table, title: str = "") -> RichTable:
    """The table, its first column and its words aligned left."""
    shown = RichTable(title=Text(title, "table.title") if title else None, title_justify="left")
    for i, column in enumerate(table.columns):
        left = i == 0 or i in table.words
        shown.add_column(Text(column), justify="left" if left else "right")
    for number, row in enumerate(table.rows):
        mark = (table.marked or {}).get(number, "")
        *cells, last = row
        shown.add_row(
            *(Text(cell or "–") for cell in cells), Text(last or "–", style=STYLES.get(mark, ""))
        )
    return shown
