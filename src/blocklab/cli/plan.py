"""`blocklab plan`: what a study would train, and how long it would take. Trains nothing."""

from pathlib import Path

import typer

from blocklab.cli.options import (
    Budget,
    CorpusOption,
    Encoding,
    Out,
    Plugin,
    Seeds,
    Set,
    StudyName,
    Variant,
    Workers,
)


def plan(
    study: StudyName = None,
    budget: Budget = None,
    corpus: CorpusOption = None,
    encoding: Encoding = None,
    seeds: Seeds = None,
    out: Out = None,
    workers: Workers = None,
    changes: Set = None,
    variant: Variant = None,
    plugin: Plugin = None,
) -> None:
    """Show the runs of a study, sizes after matching, and the time they would take."""
    from blocklab.cli.plan_table import print_plan
    from blocklab.cli.question import asked_study, default_folder
    from blocklab.study.folder import StudyFolder
    from blocklab.study.runner import prepare_study, usual_workers

    asked = asked_study(study, budget, corpus, seeds, changes, variant, encoding)
    folder = out or default_folder(study, asked)
    ready = prepare_study(
        asked, folder, plugins=plugin or (), say=lambda line: typer.echo(line, err=True)
    )
    print_plan(ready, StudyFolder(Path(folder)), workers or usual_workers(ready.plan))
