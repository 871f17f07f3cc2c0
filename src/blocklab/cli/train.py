"""`blocklab train`: one run, from scratch or on from where it was stopped."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from blocklab.cli.options import CorpusOption, Model, Plugin, Set

DEFAULT_STEPS = 1000


def train(
    model: Model,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the run goes.")],
    corpus: CorpusOption = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="bytes, bpe:N, gpt2 or a tokenizer.json; default: what fits the model."),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps.")] = None,
    seed: Annotated[int, typer.Option(help="Decides data order, weights and dropout.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped run.")] = False,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Draw new weights for a model that has some.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or mps; default: the fastest that is there.")
    ] = None,
    changes: Set = None,
    plugin: Plugin = None,
) -> None:
    """Train one model: from scratch for a preset or a YAML file, else on from its weights.

    `--set training.PATH=VALUE` changes how, other paths the model.
    """
    import torch

    from blocklab.cli.options import settings
    from blocklab.cli.run_progress import RunProgress
    from blocklab.cli.starting_point import starting_point
    from blocklab.data.dataset import DataConfig, prepare, require_windows
    from blocklab.errors import BlocklabError
    from blocklab.record import with_changes
    from blocklab.study.plugins import load_plugins, used_by
    from blocklab.training.config import TrainingConfig
    from blocklab.training.devices import usable_device
    from blocklab.training.run import (
        RunSpec,
        Stopped,
        finished,
        require_fitting,
        stopped_numerics,
        train_run,
    )
    from blocklab.training.trainer import resolved_vocabulary, self_tested

    plugins = load_plugins(plugin or ())
    values = settings(changes)
    recipe = {path: value for path, value in values.items() if path.startswith("training.")}
    data_changes = {path: value for path, value in values.items() if path.startswith("data.")}
    others = {p: v for p, v in values.items() if p not in recipe and p not in data_changes}
    training = with_changes(
        TrainingConfig(),
        {path.removeprefix("training."): value for path, value in recipe.items()},
        at="training",
    )
    if steps is not None:
        training = with_changes(training, {"steps": steps, "tokens": None})
    elif training.steps is None and training.tokens is None:
        training = with_changes(training, {"steps": DEFAULT_STEPS})
    start = starting_point(model, from_scratch)
    config = start.config.with_changes(others)
    training.n_steps(config.context_length)
    data = with_changes(
        DataConfig(tokenizer=tokenizer or start.tokenizer_name(config.vocab_size)),
        {path.removeprefix("data."): value for path, value in data_changes.items()}
        | ({"corpus": corpus} if corpus is not None else {}),
        at="data",
    )
    if finished(out) is not None:
        raise BlocklabError(f"{out}: holds a finished run; choose another --out")
    if (out / "checkpoint.safetensors").exists() and not resume:
        raise BlocklabError(f"{out}: holds a stopped run; add --resume, or choose another --out")
    progress = RunProgress(out)
    dataset = prepare(data, say=progress.say)
    require_windows(dataset, config.context_length)
    config = resolved_vocabulary(config, dataset.vocab_size)
    numerics = stopped_numerics(out) if resume else None
    if numerics is not None and device not in (None, numerics.device):
        raise BlocklabError(
            f"--device {device}: the stopped run trains on {numerics.device} and goes on there"
        )
    if numerics is None:
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
        data=data,
        data_fingerprint=dataset.fingerprint,
        seed=seed,
        weights=start.fingerprint(),
        numerics=numerics,
        plugins=used_by(config, plugins),
    )
    if start.model is not None:
        require_fitting(spec.model, start.model)
    out.mkdir(parents=True, exist_ok=True)
    if dataset.folder is not None:
        shutil.copyfile(dataset.folder / "tokenizer.json", out / "tokenizer.json")
    try:
        with progress:
            outcome = train_run(
                spec,
                out,
                dataset,
                start=start.model,
                on_step=progress.stepped,
                should_stop=progress.should_stop,
            )
    except Stopped:
        progress.say_how_to_go_on()
        raise typer.Exit(130) from None
    progress.say_outcome(outcome)
