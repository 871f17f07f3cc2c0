"""`blocklab ablate`: train a study and report what each part was worth."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

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
    path_to_read,
    word,
)
from blocklab.study.engines.server import begin_as_copy


def ablate(
    study: StudyName = None,
    budget: Budget = None,
    corpus: CorpusOption = None,
    encoding: Encoding = None,
    seeds: Seeds = None,
    out: Out = None,
    reuse: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", parser=path_to_read, help="Take finished runs of another study."
        ),
    ] = None,
    workers: Workers = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            parser=word,
            help="Train on a Ray cluster: auto, HOST:PORT, ray://HOST:PORT, or local to try it.",
        ),
    ] = None,
    changes: Set = None,
    variant: Variant = None,
    plugin: Plugin = None,
) -> None:
    """Train the same model several ways and report what each part was worth.

    Without arguments: the four-way study of the modern block, on text that needs no network.
    """
    fresh = "torch" not in sys.modules  # elsewhere threads may have computed, which no copy has
    from blocklab.cli.progress import LiveProgress
    from blocklab.cli.question import asked_study, default_folder
    from blocklab.cli.summary import print_summary
    from blocklab.experiment import run_study

    asked = asked_study(study, budget, corpus, seeds, changes, variant, encoding)
    if ray is None and fresh:
        begin_as_copy()
    folder = out or default_folder(study, asked)
    progress = LiveProgress(folder)
    try:
        with progress:
            done = run_study(
                asked,
                folder,
                workers=workers,
                plugins=plugin or (),
                reuse=reuse,
                ray=ray,
                watcher=progress,
                say=progress.say,
                command=shlex.join(["blocklab", *sys.argv[1:]]),
            )
    except KeyboardInterrupt:
        progress.say_how_to_go_on()
        raise typer.Exit(130) from None
    print_summary(done.result, done.report)
