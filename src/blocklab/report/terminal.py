"""The answer in a terminal: the same sentences as the page, and a table that fits its width."""

from typing import TYPE_CHECKING

from blocklab.report import formats, limits, table, words
from blocklab.study.results import StudyResult

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = ("Loss", "Effect", "Verdict", "Best rate", "Diverged")


def summary_table(result: StudyResult) -> "Table":
    """Every arm, the placebo too, with what matters first."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    shown.add_column("Arm", overflow="fold", min_width=8)
    columns = [column for column in table.columns(result) if _is_shown(column.heading)]
    for column in columns:
        heading = f"{column.heading}\n{column.unit}" if column.unit else column.heading
        # Words may take lines where figures would lose digits.
        shown.add_column(heading, justify="right", no_wrap=column.is_number, overflow="fold")
    for arm, row in zip(result.arms, table.rows(result), strict=True):
        style = {"baseline": "bold", "placebo": "dim"}.get(arm.role, "")
        texts = [formats.clean(row.arm)]
        texts += [formats.real_minus(column.cell(row)) for column in columns]
        # Text, not markup: a name may hold brackets.
        shown.add_row(*(Text(text) for text in texts), style=style)
    return shown


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
