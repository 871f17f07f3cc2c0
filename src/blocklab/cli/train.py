"""`blocklab train`: one run, from scratch or on from where it was stopped."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blocklab.cli.options import CorpusOption, Encoding, Model, Plugin, Set

if TYPE_CHECKING:
    from blocklab.data.dataset import DataConfig
    from blocklab.training.config import TrainingConfig

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
    from blocklab.data.dataset import prepare, require_windows
    from blocklab.errors import BlocklabError
    from blocklab.files import make_folder, require_room_for_folder
    from blocklab.model.transformer import Transformer
    from blocklab.study.plugins import load_plugins, used_by
    from blocklab.study.probes import evaluated
    from blocklab.training.devices import usable_device
    from blocklab.training.ranks import joined, require_shares
    from blocklab.training.run import (
        RunSpec,
        Stopped,
        finished,
        require_fitting,
        stopped_numerics,
        train_run,
    )
    from blocklab.training.self_test import share_tested
    from blocklab.training.texts import resolved_vocabulary
    from blocklab.training.trained import trained_on
    from blocklab.training.trainer import self_tested

    plugins = load_plugins(plugin or ())
    values = settings(changes)
    training = _recipe(values, steps)
    start = starting_point(model, from_scratch)
    config = changed_model(model, start.config, _of_the_model(values))
    training.n_steps(config.context_length)
    if corpus is None and "data.corpus" not in values:
        # A run goes on with its own text.
        known = None if from_scratch else trained_on(model)
        corpus = None if known is None else known.corpus
    data = _data(values, tokenizer or start.tokenizer_name(config.vocab_size), corpus, encoding)
    require_room_for_folder(out)
    if finished(out) is not None:
        raise BlocklabError(f"{out}: holds a finished run; choose another --out")
    if (out / "checkpoint.safetensors").exists() and not resume:
        raise BlocklabError(f"{out}: holds a stopped run; add --resume, or choose another --out")
    with joined(device) as (ranks, device):
        require_shares(training, ranks)
        progress = RunProgress(out, one_of_several=ranks.size > 1, quiet=not ranks.leads)
        dataset = prepare(data, say=progress.say)
        progress.say_text(dataset, data.corpus)
        if note := foreign(dataset.tokenizer, start.tokenizer):
            progress.say(note)
        require_windows(dataset, config.context_length)
        config = resolved_vocabulary(config, dataset.vocab_size)
        if plugins:
            # What is wrong with a part of the user's own is found here, in a line.
            evaluated(Transformer(config, seed=0))
        numerics = None
        if resume:
            numerics = ranks.told(lambda: stopped_numerics(out, ranks.size))
            if numerics is None:
                progress.say(f"{out}: holds no stopped run; this one begins at its first step")
        if numerics is not None and device not in (None, numerics.device):
            raise BlocklabError(
                f"--device {device}: the stopped run trains on {numerics.device} and goes on there"
            )
        if numerics is None and device is not None and ranks.size > 1:
            numerics = share_tested(config, training, dataset, ranks, device, progress.say)
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
            plugins=used_by(config, plugins) | used_by(training, plugins),
            processes=ranks.size,
        )
        if start.model is not None:
            require_fitting(spec.model, start.model)
        if ranks.leads:
            make_folder(out)
            if dataset.folder is not None:
                shutil.copyfile(dataset.folder / "tokenizer.json", out / "tokenizer.json")
            start.keep_conventions(out, dataset.tokenizer)
        try:
            with progress:
                outcome = train_run(
                    spec,
                    out,
                    dataset,
                    start=start.model,
                    ranks=ranks,
                    on_begin=progress.begun,
                    on_step=progress.stepped,
                    should_stop=progress.should_stop,
                )
        except Stopped:
            progress.say_how_to_go_on()
            raise typer.Exit(130) from None
        progress.say_outcome(outcome)


def _recipe(values: Mapping[str, object], steps: int | None) -> "TrainingConfig":
    from blocklab.record import with_changes
    from blocklab.training.config import TrainingConfig

    training = with_changes(TrainingConfig(), _of(values, "training."), at="training")
    if steps is not None:
        return with_changes(training, {"steps": steps, "tokens": None})
    if training.steps is None and training.tokens is None:
        return with_changes(training, {"steps": DEFAULT_STEPS})
    return training


def _data(
    values: Mapping[str, object], tokenizer: str | None, corpus: str | None, encoding: str | None
) -> "DataConfig":
    from blocklab.data.dataset import DataConfig
    from blocklab.record import with_changes

    named = {"corpus": corpus, "encoding": encoding}
    changes = _of(values, "data.") | {key: said for key, said in named.items() if said is not None}
    return with_changes(DataConfig(tokenizer=tokenizer), changes, at="data")


def _of(values: Mapping[str, object], record: str) -> dict[str, object]:
    """The values whose path begins so, without that beginning."""
    return {p.removeprefix(record): v for p, v in values.items() if p.startswith(record)}


def _of_the_model(values: Mapping[str, object]) -> dict[str, object]:
    return {p: v for p, v in values.items() if not p.startswith(("training.", "data."))}
