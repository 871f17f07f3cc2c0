"""One run: a pure function from a record to a folder, that can be stopped and resumed anywhere.

The record says everything that decides the result, and its hash is the run's id. The folder holds
`metrics.jsonl` (one line a step), checkpoints while it runs, and at the end `model.safetensors`,
`validation.safetensors` (the loss of every window) and `run.json`, written last: a folder with it
is finished.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from blocklab.data.corpora import place_of
from blocklab.data.dataset import Dataset
from blocklab.errors import BlocklabError
from blocklab.files import write_atomically
from blocklab.model.transformer import Transformer
from blocklab.training.checkpoint import (
    METRICS,
    JsonObject,
    MetricsFile,
    load_checkpoint,
    remove_checkpoints,
    save_checkpoint,
)
from blocklab.training.devices import usable_device
from blocklab.training.inspection import Inspection, summarised_looks
from blocklab.training.memory import peak_memory, start_measuring_memory
from blocklab.training.numerics import Numerics
from blocklab.training.observed import Divergence, Evaluation, StepMetrics
from blocklab.training.ranks import ALONE, Alone
from blocklab.training.recall import answers_of, recall
from blocklab.training.run_folder import (
    RECORD,
    finished,
    finished_run,
    held_unless_finished,
    require_nobody_training,
    require_room_for_run,
    require_same,
    rows_of,
    stopped_run,
)
from blocklab.training.run_record import RESULTS, RunOutcome, RunSpec
from blocklab.training.spread import placed_like, whole
from blocklab.training.stability import (
    ended_high,
    find_spikes,
    summarised_norms,
)
from blocklab.training.start import require_fitting, starting_weights
from blocklab.training.state import state_of
from blocklab.training.strict_json import strict
from blocklab.training.tensors import write_tensors
from blocklab.training.trainer import Trainer

CHECKPOINT_SECONDS = 60.0

SAVING = 0.05
"""Share of a training's time that saving may take: of a large model it is done less often."""

WINDOWS = "validation.safetensors"
"""The final loss of every validation window: `losses` in nats, `n_targets` as their weights."""


class Stopped(Exception):
    """The run was asked to stop; its checkpoint is saved."""


OnStep = Callable[[int, int, float], None]
"""Called with steps done, steps in all, and the training loss."""

OnEvaluation = Callable[[int, float], None]
"""Called with steps done and the validation loss, for every evaluation before the last."""


def train_run(
    spec: RunSpec,
    folder: Path,
    dataset: Dataset,
    *,
    start: Transformer | None = None,
    ranks: Alone = ALONE,
    lies_at: Path | None = None,
    keep: Callable[[Path], object] = lambda folder: None,
    on_begin: Callable[[Trainer], None] | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> RunOutcome:
    """Train `spec` in `folder`, from its last checkpoint if there is one.

    `start` holds the weights that `spec.weights` is the fingerprint of. Where the model is spread
    over `ranks`, all of them call this, and rank 0 keeps the folder, alone in it until the end.
    `lies_at` is where its text lies now; null is where the name in the record leads. `keep` adds to
    the folder what else belongs to the run, once what was there is known to be of this one. A
    finished folder is read, not trained again. Raises Stopped when `should_stop` says
    so to any of them, after saving; RunFailed when the disk fails; BlocklabError when the folder
    holds another run, or another process trains in it.
    """
    if ranks.told(lambda: spec.id) != spec.id:
        raise BlocklabError(
            f"{folder}: the processes do not train the same run; give all machines the same text, "
            "model, torch and plugins"
        )
    done = ranks.told(partial(finished_run, spec, folder))
    if done is not None:
        return done
    usable_device(spec.numerics.device)
    with ExitStack() as held:
        done = ranks.told(partial(held_unless_finished, spec, folder, held))
        if done is not None:
            return done
        return _trained(
            spec,
            folder,
            dataset,
            start=start,
            ranks=ranks,
            lies_at=lies_at or place_of(spec.data.corpus),
            keep=keep,
            on_begin=on_begin,
            on_step=on_step,
            on_evaluation=on_evaluation,
            should_stop=should_stop,
            checkpoint_seconds=checkpoint_seconds,
        )


def _trained(
    spec: RunSpec,
    folder: Path,
    dataset: Dataset,
    *,
    start: Transformer | None,
    ranks: Alone,
    lies_at: Path | None,
    keep: Callable[[Path], object],
    on_begin: Callable[[Trainer], None] | None,
    on_step: OnStep | None,
    on_evaluation: OnEvaluation | None,
    should_stop: Callable[[], bool],
    checkpoint_seconds: float,
) -> RunOutcome:
    """Train in a folder in which nobody else is."""
    start_measuring_memory(spec.numerics.device)
    trainer = Trainer(
        spec.model,
        corpus=dataset,
        training=spec.training,
        seed=spec.seed,
        draw=spec.draw,
        numerics=spec.numerics,
        ranks=ranks,
    )
    total = trainer.total_steps
    if total is None:
        raise BlocklabError("how long? give training.steps or training.tokens")
    _begin(trainer, spec, start)
    lies_at = _resume(trainer, spec, folder) or lies_at
    # There before all else: by it the folder is known to be a run's.
    metrics = MetricsFile(folder / METRICS)
    ranks.told(partial(metrics.truncate_to, trainer.steps_done))
    ranks.told(partial(rows_of, folder, trainer.steps_done))
    ranks.told(partial(keep, folder))
    if on_begin is not None:
        on_begin(trainer)
    saved_at, pause = time.monotonic(), checkpoint_seconds
    for measured in trainer.steps(total):
        row = {name: value for name, value in asdict(measured).items() if value is not None}
        every = spec.training.evaluate_every
        if every and measured.step % every == 0 and measured.step < total:
            row["validation_loss"] = trainer.evaluate()
        if ranks.leads:
            metrics.append(row)
        if on_step is not None:
            on_step(measured.step, total, measured.train_loss)
        if on_evaluation is not None and "validation_loss" in row:
            on_evaluation(measured.step, row["validation_loss"])
        if measured.step == total or trainer.diverged is not None:
            continue
        due = ranks.leads and time.monotonic() - saved_at >= pause
        stop, due = ranks.any(should_stop(), due)
        if stop or due:
            began = time.monotonic()
            ranks.told(metrics.flush)
            _save(trainer, spec, folder, lies_at)
            saved_at = time.monotonic()
            pause = pause_after(saved_at - began, checkpoint_seconds)
        if stop:
            raise Stopped
    ranks.told(metrics.flush)
    return _finish(trainer, spec, folder, dataset, lies_at)


def pause_after(took: float, asked: float) -> float:
    """Seconds until the next checkpoint, after one that took so many; 0 saves after every step."""
    return max(asked, took * (1 - SAVING) / SAVING) if asked else 0.0


def _begin(trainer: Trainer, spec: RunSpec, start: Transformer | None) -> None:
    """Put the weights it starts from into the model that was just drawn."""
    if (start is None) != (spec.weights is None):
        raise BlocklabError("weights: starting weights and their fingerprint go together")
    if start is None:
        return
    require_fitting(trainer.config, start)
    _put(trainer, starting_weights(trainer.config, start))


@torch.no_grad()
def _put(trainer: Trainer, weights: Mapping[str, Tensor]) -> None:
    for path, tensor in state_of(trainer.model).items():
        tensor.copy_(placed_like(weights[path], tensor))


def _resume(trainer: Trainer, spec: RunSpec, folder: Path) -> Path | None:
    """Take up the run where it was saved; says where its text lay then, if that is there still."""
    ranks = trainer.ranks
    found: dict[str, Tensor] = {}  # where the folder is

    def known() -> tuple[int, JsonObject, list[str]] | None:
        checkpoint = load_checkpoint(folder)
        if checkpoint is None:
            return None
        require_same(folder, "stopped", checkpoint.state, spec)
        found.update(checkpoint.tensors)
        return checkpoint.step, checkpoint.state, list(found)

    saved = ranks.told(known)
    if saved is None:
        return None
    step, state, names = saved
    groups: dict[str, list[str]] = {"model": [], "optimizer": []}
    for name in names:
        group, _, path = name.partition("/")
        groups[group].append(path)
    weights, remembered = (
        ranks.tensors(paths, {path: found[f"{group}/{path}"] for path in paths if found})
        for group, paths in groups.items()
    )
    _put(trainer, weights)
    trainer.optimizer.load_state_tensors(remembered)
    trainer.steps_done = step
    trainer.train_seconds = state["train_seconds"]
    trainer.inspect_seconds = state["inspect_seconds"]
    trainer.compile_seconds = state.get("compile_seconds", 0.0)
    lies_at = state.get("text_lies_at")
    return Path(lies_at) if lies_at is not None and Path(lies_at).exists() else None


def _save(trainer: Trainer, spec: RunSpec, folder: Path, lies_at: Path | None) -> None:
    tensors: dict[str, Tensor] = {}
    for group, named in (
        ("model", state_of(trainer.model)),
        ("optimizer", trainer.optimizer.state_tensors()),
    ):
        tensors |= {f"{group}/{name}": tensor for name, tensor in named.items()}
    state = {
        "id": spec.id,
        "spec": spec.plain(),
        "train_seconds": trainer.train_seconds,
        "inspect_seconds": trainer.inspect_seconds,
        "compile_seconds": trainer.compile_seconds,
        "numerics": spec.numerics.plain(),
        "processes": spec.processes,
        "text_lies_at": str(lies_at) if lies_at else None,
    }
    kept = _for_the_folder(trainer.ranks, tensors)
    trainer.ranks.told(partial(save_checkpoint, folder, trainer.steps_done, kept, state))


def _for_the_folder(ranks: Alone, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All of them whole and on the processor, where they will be written; nothing elsewhere."""
    kept = {}
    for name, tensor in tensors.items():
        found = whole(tensor.detach())
        if ranks.leads:
            kept[name] = found.cpu().contiguous()
    return kept


def _finish(
    trainer: Trainer, spec: RunSpec, folder: Path, dataset: Dataset, lies_at: Path | None
) -> RunOutcome:
    ranks = trainer.ranks
    rows = ranks.told(partial(rows_of, folder, trainer.steps_done))
    losses = [row["train_loss"] for row in rows]
    evaluation = trainer.evaluation() if trainer.diverged is None else None
    validation = evaluation.mean if evaluation is not None else math.nan
    diverged = trainer.diverged
    # Trained weights start low: there only the chance level says that training went wrong.
    began = losses[0] if spec.weights is None else math.inf
    if diverged is None and ended_high(validation, began, trainer.config.rows):
        where = "final loss" if math.isfinite(validation) else "validation loss"
        diverged = Divergence(trainer.steps_done, where)
    tokens = trainer.steps_done * trainer.training.batch_size * trainer.config.context_length
    outcome = RunOutcome(
        validation_loss=None if diverged else validation,
        train_loss=None if diverged else _mean_of_last_tenth(losses),
        start_loss=losses[0],
        diverged_at=diverged.step if diverged else None,
        diverged_in=diverged.where if diverged else None,
        steps=trainer.steps_done,
        tokens=tokens,
        epochs=tokens / len(dataset.train),
        seconds=trainer.train_seconds,
        tokens_per_second=tokens / trainer.train_seconds,
        peak_memory=peak_memory(spec.numerics.device),
        inspect_seconds=trainer.inspect_seconds,
        compile_seconds=trainer.compile_seconds,
        recall=_recall(trainer, spec) if diverged is None else None,
        spikes=find_spikes(losses),
        norms=summarised_norms([row["gradient_norm"] for row in rows], spec.training.clip),
        log_z=_mean_of_last_tenth([row["log_z"] for row in rows]),
        insides=summarised_looks(
            [Inspection(**row["inspection"]) for row in rows if "inspection" in row]
        ),
    )
    kept = _for_the_folder(ranks, state_of(trainer.model))
    ranks.told(partial(_write_finished, folder, spec, outcome, kept, evaluation, lies_at))
    return outcome


def _write_finished(
    folder: Path,
    spec: RunSpec,
    outcome: RunOutcome,
    tensors: Mapping[str, Tensor],
    evaluation: Evaluation | None,
    lies_at: Path | None,
) -> None:
    write_tensors(folder / "model.safetensors", tensors)
    if evaluation is not None:
        windows = {"losses": evaluation.losses, "n_targets": evaluation.n_targets}
        write_tensors(folder / WINDOWS, windows)
    # Where the text lay decides nothing, so it is no part of the record that the id is made from.
    record = {
        "id": spec.id,
        "spec": spec.plain(),
        "outcome": asdict(outcome),
        "text_lies_at": str(lies_at) if lies_at else None,
    }
    write_atomically(folder / RECORD, json.dumps(strict(record), indent=1).encode())
    remove_checkpoints(folder)


def _mean_of_last_tenth(values: Sequence[float]) -> float | None:
    """None where it is not finite."""
    tenth = values[-max(1, len(values) // 10) :]
    mean = math.fsum(tenth) / len(tenth)
    return mean if math.isfinite(mean) else None


def _recall(trainer: Trainer, spec: RunSpec) -> float | None:
    if "recall" not in spec.metrics:
        return None
    batch = trainer.training.batch_size
    found = recall(trainer.model, trainer.validation, answers_of(spec.data), batch, trainer.device)
    trainer.ranks.let_go(trainer.model)
    return found


__all__ = [
    "RESULTS",
    "Numerics",
    "RunOutcome",
    "RunSpec",
    "StepMetrics",
    "Stopped",
    "finished",
    "require_nobody_training",
    "require_room_for_run",
    "stopped_run",
    "train_run",
]
