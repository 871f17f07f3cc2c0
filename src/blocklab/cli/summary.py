"""A study's answer, as a terminal shows it."""

from pathlib import Path

from blocklab.cli.screen import console
from blocklab.report.terminal import summary_table, summary_text
from blocklab.study.results import StudyResult

PIPED_WIDTH = 110
"""Columns where no terminal says how many it has."""


def print_summary(result: StudyResult, report: Path) -> None:
    """The sentences, the table, and where the report lies."""
    screen = console(piped_width=PIPED_WIDTH)
    for line in summary_text(result):
        # A pipe takes a sentence as one line, a reader's terminal breaks it between words.
        screen.print(line, soft_wrap=not screen.is_terminal)
    screen.print()
    screen.print(summary_table(result, screen.width))
    screen.print(f"\nreport: {report}", soft_wrap=True)
