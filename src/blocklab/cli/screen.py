"""Where the commands print by rich: consoles on which text is only text.

Names of models, arms and folders come from the user and may hold what rich would read: `[bold]`,
`[/x]`, `:fire:`. Tables and sentences are put together elsewhere.
"""

from rich.console import Console

PIPED_WIDTH = 150
"""Columns where no terminal says how many it has."""


def console(
    *,
    stderr: bool = False,
    quiet: bool = False,
    soft_wrap: bool = False,
    piped_width: int | None = None,
) -> Console:
    """A console that reads no markup, emoji or numbers in what it is given.

    `piped_width` is how many columns it has where it is no terminal.
    """
    found = Console(
        stderr=stderr,
        quiet=quiet,
        soft_wrap=soft_wrap,
        markup=False,
        emoji=False,
        highlight=False,
    )
    if piped_width is not None and not found.is_terminal:
        found.width = piped_width
    return found
