"""`blocklab reproduce`: published figures beside ours."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from blocklab.cli.options import Out

DEFAULT_FOLDER = Path("out/reproduce")


def reproduce(
    name: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Experiments; none: all of them.")
    ] = None,
    out: Out = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out those that train.")] = False,
) -> None:
    """Find published figures again: each beside ours, with match, close or off.

    Results are kept in the folder (default out/reproduce), and a stopped run goes on there.
    """
    from blocklab.cli.quiet_line import QuietLine
    from blocklab.cli.screen import PIPED_WIDTH, console
    from blocklab.cli.tables import terminal_table
    from blocklab.report.page import write_page
    from blocklab.reproduce.experiments import chosen
    from blocklab.reproduce.page import counted, reproduction_page, table_of
    from blocklab.reproduce.runner import kept
    from blocklab.reproduce.runner import reproduce as reproduced

    folder = out or DEFAULT_FOLDER
    screen = console(piped_width=PIPED_WIDTH)
    command = shlex.join(["blocklab", *sys.argv[1:]])
    outcomes = []
    for experiment in chosen(name or (), quick=quick):
        if experiment.long:
            typer.echo(
                f"{experiment.name}: about {experiment.takes}; Ctrl-C stops, the same command goes "
                "on",
                err=True,
            )
        try:
            with QuietLine() as line:
                outcome = reproduced(experiment, folder, line.say)
        except KeyboardInterrupt:
            typer.echo(f"stopped; what is finished is kept in {folder}", err=True)
            raise typer.Exit(130) from None
        outcomes.append(outcome)
        screen.print(terminal_table(table_of(outcome), f"{experiment.name}: {experiment.title}"))
        for note in outcome.found.notes:
            screen.print(f"  {note}", soft_wrap=True)
        write_page(reproduction_page(kept(folder), command), folder, "reproduce.html")
    screen.print(f"\n{counted(outcomes)}; page: {folder / 'reproduce.html'}", soft_wrap=True)
