"""`blocklab train`: one run, from scratch or on from where it was stopped."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blocklab.cli.options import (
    WORD,
    CorpusOption,
    Encoding,
    LearntTokenizer,
    Model,
    Plugin,
    Set,
    folder_to_write,
    word,
)

if TYPE_CHECKING:
    from blocklab.training.config import TrainingConfig
    from blocklab.training.run_folder import StoppedRun

DEFAULT_STEPS = 1000


def train(
    model: Model,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FOLDER", parser=folder_to_write, help="Where the run goes."),
    ],
    corpus: CorpusOption = None,
    tokenizer: LearntTokenizer = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps.")] = None,
    seed: Annotated[int, typer.Option(help="Decides data order, weights and dropout.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped run.")] = False,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Draw new weights for a model that has some.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            metavar=WORD, parser=word, help="cpu, cuda or mps; default: the fastest that is there."
        ),
    ] = None,
    encoding: Encoding = None,
    changes: Set = None,
    plugin: Plugin = None,
) -> None:
    """Train one model: from scratch for a preset or a YAML file, else on from its weights.

    `--set training.PATH=VALUE` changes how, other paths the model. A model too large for one
    device is spread over several: torchrun --nproc-per-node N -m blocklab train …
    """
    import torch

    from blocklab.cli.model_argument import changed_model
    from blocklab.cli.models import foreign
    from blocklab.cli.options import settings
    from blocklab.cli.run_progress import RunProgress
    from blocklab.cli.starting_point import starting_point
    from blocklab.cli.training_text import told_of_text, training_text
    from blocklab.data.dataset import prepare, require_windows
    from blocklab.errors import BlocklabError
    from blocklab.model.transformer import Transformer
    from blocklab.study.plugins import load_plugins, used_by
    from blocklab.study.probes import evaluated
    from blocklab.training.devices import usable_device
    from blocklab.training.ranks import joined, require_shares
    from blocklab.training.run import (
        RunSpec,
        Stopped,
        require_fitting,
        train_run,
    )
    from blocklab.training.run_text import RunText
    from blocklab.training.self_test import share_tested
    from blocklab.training.texts import resolved_vocabulary
    from blocklab.training.trainer import self_tested

    if device is not None:
        usable_device(device)
    plugins = load_plugins(plugin or ())
    values = settings(changes)
    training = _recipe(values, steps)
    start = starting_point(model, from_scratch)
    config = changed_model(model, start.config, _of_the_model(values))
    training.n_steps(config.context_length)
    known = None if from_scratch else RunText.of(model)
    named = _of(values, "data.") | _given({"corpus": corpus, "encoding": encoding})
    data = training_text(named, tokenizer or start.tokenizer_name(config.vocab_size), known)
    with joined(device) as (ranks, device):
        require_shares(training, ranks)
        stopped = ranks.told(partial(_to_go_on_with, out, ranks.size, resume=resume))
        if stopped is not None and device not in (None, stopped.numerics.device):
            raise BlocklabError(
                f"--device {device}: the stopped run trains on {stopped.numerics.device} and goes "
                "on there"
            )
        progress = RunProgress(out, one_of_several=ranks.size > 1, quiet=not ranks.leads)
        dataset = prepare(data, say=progress.say)
        progress.say_text(dataset, data.corpus)
        if note := foreign(dataset.tokenizer, start.tokenizer):
            progress.say(note)
        if known is not None:
            for note in told_of_text(known, data, dataset):
                progress.say(note)
        require_windows(dataset, config.context_length)
        config = resolved_vocabulary(config, dataset.vocab_size)
        if plugins:
            # What is wrong with a part of the user's own is found here, in a line.
            evaluated(Transformer(config, seed=0))
        if resume and stopped is None:
            progress.say(f"{out}: holds no stopped run; this one begins at its first step")
        if stopped is not None:
            numerics = stopped.numerics
        elif device is not None and ranks.size > 1:
            numerics = share_tested(config, training, dataset, ranks, device, progress.say)
        else:
            # Alone on the machine, a run may take all of torch's threads.
            numerics = self_tested(
                config,
                training,
                dataset,
                threads=torch.get_num_threads(),
                devices=None if device is None else [str(usable_device(device))],
                say=progress.say,
            )
        spec = RunSpec(
            model=config,
            training=training,
            data=data if stopped is None else stopped.named(data, dataset.fingerprint),
            data_fingerprint=dataset.fingerprint,
            seed=seed,
            weights=start.fingerprint(),
            numerics=numerics,
            plugins=used_by(config, plugins) | used_by(training, plugins),
            processes=ranks.size,
        )
        if start.model is not None:
            require_fitting(spec.model, start.model)
        try:
            with progress:
                outcome = train_run(
                    spec,
                    out,
                    dataset,
                    start=start.model,
                    ranks=ranks,
                    keep=partial(start.keep, dataset),
                    on_begin=progress.begun,
                    on_step=progress.stepped,
                    should_stop=progress.should_stop,
                )
        except Stopped:
            progress.say_how_to_go_on()
            raise typer.Exit(130) from None
        progress.say_outcome(outcome)


def _to_go_on_with(out: Path, processes: int, *, resume: bool) -> "StoppedRun | None":
    """The stopped run of the folder, where it is to be resumed.

    Raises BlocklabError where the folder is not free for what was asked.
    """
    from blocklab.errors import BlocklabError
    from blocklab.training.checkpoint import NEWEST
    from blocklab.training.run import finished, require_nobody_training, stopped_run

    require_nobody_training(out)
    if finished(out) is not None:
        raise BlocklabError(f"{out}: holds a finished run; choose another --out")
    if resume:
        return stopped_run(out, processes)
    if (out / NEWEST).exists():
        raise BlocklabError(f"{out}: holds a stopped run; add --resume, or choose another --out")
    return None


def _recipe(values: Mapping[str, object], steps: int | None) -> "TrainingConfig":
    from blocklab.record import with_changes
    from blocklab.training.config import TrainingConfig

    training = with_changes(TrainingConfig(), _of(values, "training."), at="training")
    if steps is not None:
        return with_changes(training, {"steps": steps, "tokens": None})
    if training.steps is None and training.tokens is None:
        return with_changes(training, {"steps": DEFAULT_STEPS})
    return training


def _given(options: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}


def _of(values: Mapping[str, object], record: str) -> dict[str, object]:
    """The values whose path begins so, without that beginning."""
    return {p.removeprefix(record): v for p, v in values.items() if p.startswith(record)}


def _of_the_model(values: Mapping[str, object]) -> dict[str, object]:
    return {p: v for p, v in values.items() if not p.startswith(("training.", "data."))}
