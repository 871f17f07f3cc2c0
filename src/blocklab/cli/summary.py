"""A study's answer, as a terminal shows it."""

from pathlib import Path

from rich.console import Console

from blocklab.report.terminal import summary_table, summary_text
from blocklab.study.results import StudyResult

PIPED_WIDTH = 110
"""Columns where no terminal says how many it has."""


def print_summary(result: StudyResult, report: Path) -> None:
    """The sentences, the table, and where the report lies."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    for line in summary_text(result):
        console.print(line, markup=False)
    console.print()
    console.print(summary_table(result))
    console.print(f"\nreport: {report}", markup=False, soft_wrap=True)
