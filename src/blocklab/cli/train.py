"""`blocklab train`: one run, from scratch or on from where it was stopped."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    from blocklab.training.numerics import Numerics
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

    `--set training.PATH=VALUE` changes how (learning_rate, batch_size, accumulation, tokens,
    evaluate_every, optimizer.kind …), `data.PATH` the text, `numerics.PATH` what is otherwise
    measured (dtype, threads, compile), other paths the model. A model too large for one device is
    spread over several: torchrun --nproc-per-node N -m blocklab train …
    """
    import torch

    from blocklab.cli.model_argument import changed_model
    from blocklab.cli.models import foreign
    from blocklab.cli.options import settings
    from blocklab.cli.run_progress import RunProgress
    from blocklab.cli.starting_point import starting_point
    from blocklab.cli.training_text import told_of_text, training_text
    from blocklab.data.corpora import place_of
    from blocklab.data.dataset import prepare, require_windows
    from blocklab.errors import BlocklabError
    from blocklab.model.transformer import Transformer
    from blocklab.record import with_changes
    from blocklab.study.plugins import load_plugins, used_by
    from blocklab.study.probes import evaluated
    from blocklab.training.devices import usable_device
    from blocklab.training.numerics import Numerics
    from blocklab.training.ranks import joined, require_shares
    from blocklab.training.run import RunSpec, Stopped, train_run
    from blocklab.training.run_text import RunText
    from blocklab.training.self_test import share_tested
    from blocklab.training.start import require_fitting
    from blocklab.training.texts import resolved_vocabulary
    from blocklab.training.trainer import self_tested

    values = _all_said(
        settings(changes),
        {
            "training.steps": ("--steps", steps),
            "data.corpus": ("--corpus", corpus),
            "data.tokenizer": ("--tokenizer", tokenizer),
            "data.encoding": ("--encoding", encoding),
            "numerics.device": ("--device", device),
        },
    )
    asked = _of(values, "numerics.")
    computing = with_changes(Numerics(), asked, at="numerics")
    device = computing.device if asked.pop("device", None) is not None else None
    if device is not None:
        usable_device(device)
    plugins = load_plugins(plugin or ())
    training = _recipe(values)
    start = starting_point(model, from_scratch)
    config = changed_model(model, start.config, _of_the_model(values))
    training.n_steps(config.context_length)
    known = None if from_scratch else RunText.of(model)
    named = _of(values, "data.")
    own = None if named.get("tokenizer") else start.tokenizer_name(config.vocab_size)
    data = training_text(named, own, known)
    with joined(device) as (ranks, device), _told_of_memory(training):
        require_shares(training, ranks)
        stopped = ranks.told(partial(_to_go_on_with, out, ranks.size, resume=resume))
        if stopped is not None and device not in (None, stopped.numerics.device):
            raise BlocklabError(
                f"--device {device}: the stopped run trains on {stopped.numerics.device} and goes "
                "on there"
            )
        progress = RunProgress(out, one_of_several=ranks.size > 1, quiet=not ranks.leads)
        for note in (*start.notes, stopped and stopped.note):
            if note:
                progress.say(note)
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
            numerics = with_changes(stopped.numerics, asked, at="numerics")
        elif asked:
            numerics = _computing(asked, device)
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
                    lies_at=place_of(data.corpus),
                    keep=partial(start.keep, dataset),
                    on_begin=progress.begun,
                    on_step=progress.stepped,
                    on_evaluation=progress.evaluated,
                    should_stop=progress.should_stop,
                )
        except Stopped:
            progress.say_how_to_go_on()
            raise typer.Exit(130) from None
        progress.say_outcome(outcome)


@contextmanager
def _told_of_memory(training: "TrainingConfig") -> Iterator[None]:
    """Raise RunFailed, with what takes less, where a step does not fit into memory."""
    from blocklab.errors import RunFailed
    from blocklab.training.memory import is_too_little

    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_too_little(error):
            raise
        parts, windows = training.accumulation, training.batch_size
        less = (
            f"training.accumulation above {parts} takes the step of {windows} windows in more parts"
            if parts < windows
            else "a smaller model or context_length takes less"
        )
        raise RunFailed(f"not enough memory: {str(error).splitlines()[0]}; {less}") from error


def _to_go_on_with(out: Path, processes: int, *, resume: bool) -> "StoppedRun | None":
    """The stopped run of the folder, where it is to be resumed.

    Raises BlocklabError where the folder is not free for what was asked.
    """
    from blocklab.errors import BlocklabError
    from blocklab.training.checkpoint import NEWEST, PREVIOUS
    from blocklab.training.run import (
        finished,
        require_nobody_training,
        require_room_for_run,
        stopped_run,
    )

    require_nobody_training(out)
    require_room_for_run(out)
    if resume:
        return stopped_run(out, processes)
    if finished(out) is not None:
        raise BlocklabError(
            f"{out}: holds a finished run; choose another --out (with {out} as MODEL it goes on "
            "from these weights)"
        )
    if any((out / name).exists() for name in (NEWEST, PREVIOUS)):
        raise BlocklabError(f"{out}: holds a stopped run; add --resume, or choose another --out")
    return None


def _all_said(
    changes: Mapping[str, object], options: Mapping[str, tuple[str, object]]
) -> dict[str, object]:
    """What --set says by path, with what options say of the same paths.

    Raises BlocklabError where both speak of one path and disagree.
    """
    from blocklab.errors import BlocklabError

    values = dict(changes)
    for path, (option, value) in options.items():
        if value is not None and values.setdefault(path, value) != value:
            raise BlocklabError(f"--set {path}: given twice, once as {option}; give one")
    return values


def _recipe(values: Mapping[str, object]) -> "TrainingConfig":
    from blocklab.record import with_changes
    from blocklab.training.config import TrainingConfig

    training = with_changes(TrainingConfig(), _of(values, "training."), at="training")
    if training.steps is None and training.tokens is None:
        return with_changes(training, {"steps": DEFAULT_STEPS})
    return training


def _computing(asked: Mapping[str, object], device: str | None) -> "Numerics":
    """The numerics that are asked for; nothing is measured then."""
    import torch

    from blocklab.record import with_changes
    from blocklab.training.devices import PROCESSOR, available_devices
    from blocklab.training.numerics import Numerics

    place = device or available_devices()[-1]
    threads = torch.get_num_threads() if place == PROCESSOR else 1
    return with_changes(Numerics(device=place, threads=threads), asked, at="numerics")


def _of(values: Mapping[str, object], record: str) -> dict[str, object]:
    """The values whose path begins so, without that beginning."""
    return {p.removeprefix(record): v for p, v in values.items() if p.startswith(record)}


def _of_the_model(values: Mapping[str, object]) -> dict[str, object]:
    others = ("training.", "data.", "numerics.")
    return {p: v for p, v in values.items() if not p.startswith(others)}
