"""The parameter table as a terminal shows it."""

from rich.table import Table

from blocklab.cli.screen import console
from blocklab.model.count import HEADINGS, Count, facts, part_rows


def print_count(name: str, count: Count) -> None:
    """Subtotals by part, then what follows from them."""
    table = Table(title=f"{name}: {count.total:,} parameters", title_justify="left")
    for number, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if number else "left")
    for row in part_rows(count):
        table.add_row(*row)
    screen = console()
    screen.print(table)
    for fact in facts(count):
        screen.print(f"  {fact}")
