"""`blocklab plan`: what a study would train, and how long it would take. Trains nothing."""

from pathlib import Path
from typing import Annotated

import typer

from blocklab.cli.options import CorpusOption, Out, Plugin, Set, Variant


def plan(
    study: Annotated[
        str | None, typer.Argument(metavar="[STUDY]", help="A shipped question or a YAML file.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="quick, standard or thorough (what the study defines).")
    ] = None,
    corpus: CorpusOption = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds.")] = None,
    out: Out = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes, one thread each; default: the cores.")
    ] = None,
    changes: Set = None,
    variant: Variant = None,
    plugin: Plugin = None,
) -> None:
    """Show the runs of a study, sizes after matching, and the time they would take."""
    from blocklab.cli.plan_table import print_plan
    from blocklab.cli.question import asked_study, default_folder
    from blocklab.study.engines import default_workers
    from blocklab.study.folder import StudyFolder
    from blocklab.study.runner import prepare_study

    asked = asked_study(study, budget, corpus, seeds, changes, variant)
    folder = out or default_folder(study, asked)
    ready = prepare_study(
        asked, folder, plugins=plugin or (), say=lambda line: typer.echo(line, err=True)
    )
    print_plan(ready, StudyFolder(Path(folder)), workers or default_workers())
