"""The folder of a run: who may be in it, which run it holds, and how far that one is.

How a run is trained is in `run`, what a checkpoint is in `checkpoint`.
"""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from blocklab.data.dataset import DataConfig
from blocklab.errors import BlocklabError, RunFailed
from blocklab.files import alone_in
from blocklab.record import first_difference
from blocklab.training.checkpoint import (
    METRICS,
    NEWEST,
    PREVIOUS,
    JsonObject,
    load_checkpoint,
    read_metrics,
)
from blocklab.training.numerics import Numerics
from blocklab.training.run_record import RunOutcome, RunSpec
from blocklab.training.strict_json import restored

RECORD = "run.json"

MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""A folder with one of these holds a model, or what reads its text; a run writes most of them."""

PATIENCE = 2.0
"""Seconds in which a process that was killed, or whose parent was, leaves its run's folder."""


def finished(folder: Path) -> RunOutcome | None:
    """The outcome of a finished run, or None while there is none."""
    found = _record(folder)
    return None if found is None else found[1]


def finished_run(spec: RunSpec, folder: Path) -> RunOutcome | None:
    """What this run came to, or None while it is not finished.

    Raises BlocklabError where the folder holds another run that is finished.
    """
    found = _record(folder)
    if found is None:
        return None
    stored, outcome = found
    require_same(folder, "finished", stored, spec)
    return outcome


def held_unless_finished(spec: RunSpec, folder: Path, held: ExitStack) -> RunOutcome | None:
    """From now on `held` keeps others out of a run's folder, made if missing.

    The outcome where whoever was in there before has finished the run. Raises BlocklabError where
    another process trains there.
    """
    held.enter_context(_alone(folder, patience=PATIENCE))
    return finished_run(spec, folder)


def require_nobody_training(folder: Path) -> None:
    """Raise BlocklabError where another process trains in `folder` at this moment."""
    if folder.is_dir():
        with _alone(folder):
            pass


def require_room_for_run(folder: Path) -> None:
    """Raise BlocklabError where a study is, or files that a run writes and that are no run's."""
    if (folder / "study.yaml").exists():
        raise BlocklabError(f"{folder}: holds a study; choose another folder")
    if any((folder / name).exists() for name in (RECORD, METRICS, NEWEST, PREVIOUS)):
        return
    found = next((name for name in MODEL_FILES if (folder / name).exists()), None)
    if found is not None:
        raise BlocklabError(
            f"{folder}: holds a {found} that is no run's and would be written over; choose another "
            "folder"
        )


@dataclass(frozen=True)
class StoppedRun:
    """What decides how a stopped run goes on, whoever asks for it, and a finished one is read."""

    numerics: Numerics
    data: DataConfig | None
    """How its text was named; None in a checkpoint that does not say."""
    data_fingerprint: str | None
    note: str | None = None
    """What was wrong with its newest checkpoint."""

    def named(self, data: DataConfig, fingerprint: str) -> DataConfig:
        """The record of the text with that fingerprint: the run's own where it is the same text,
        however it is spelt and wherever it is seen from.
        """
        same = self.data is not None and fingerprint == self.data_fingerprint
        return self.data if same and self.data is not None else data


def stopped_run(folder: Path, processes: int = 1) -> StoppedRun | None:
    """The run that was stopped, or is finished, in a folder; None where none is.

    Raises BlocklabError where that run was spread over another number of processes, and where
    another process is in the folder.
    """
    if not folder.is_dir():
        return None
    with _alone(folder):
        done = _record(folder)
        checkpoint = None if done is not None else load_checkpoint(folder)
    if done is not None:
        state = done[0]["spec"] | {"spec": done[0]["spec"]}
    elif checkpoint is not None:
        state = checkpoint.state
    else:
        return None
    before = state.get("processes", 1)
    if before != processes:
        raise BlocklabError(
            f"{folder}: the run there is spread over {before} processes, these are {processes}; "
            "it goes on with as many, for they decide its last digits"
        )
    spec = state.get("spec")
    return StoppedRun(
        numerics=Numerics.parse(state["numerics"]),
        data=None if spec is None else DataConfig.parse(spec["data"], at=f"{folder}: data"),
        data_fingerprint=None if spec is None else spec["data_fingerprint"],
        note=None if checkpoint is None else checkpoint.note,
    )


def require_same(folder: Path, what: str, stored: JsonObject, spec: RunSpec) -> None:
    """Raise BlocklabError, naming the first path that differs, where `stored` is of another run.

    `what` is "stopped" or "finished"; `stored` holds a run's id, and its record where it has one.
    """
    if stored["id"] == spec.id:
        return
    found = first_difference(stored["spec"], spec.plain()) if "spec" in stored else None
    if found is None:
        raise BlocklabError(f"{folder}: holds another {what} run; choose another folder")
    path, there, here = found
    if path == "data_fingerprint":
        raise BlocklabError(
            f"{folder}: holds a {what} run on another text: what its corpus gives, or the "
            f"tokenizer that cuts it, has changed (fingerprint {there} there, {here} here); train "
            "on the text as it was, or choose another folder"
        )
    raise BlocklabError(
        f"{folder}: holds a {what} run of another recipe: {path.removeprefix('model.')} is "
        f"{there!r} there and {here!r} here; ask for the same, or choose another folder"
    )


def rows_of(folder: Path, steps: int) -> Sequence[JsonObject]:
    """What a run measured, a row a step.

    Raises RunFailed where these are not the rows of steps 1 to `steps`: then they are not, or not
    only, this run's.
    """
    rows = read_metrics(folder / METRICS)
    for expected, row in enumerate(rows, start=1):
        if row.get("step") != expected:
            break
    else:
        if len(rows) == steps:
            return rows
    raise RunFailed(
        f"{folder / METRICS}: holds {len(rows):,} rows that are not those of steps 1 to {steps:,}; "
        "were they lost, or did another process write there? Remove the folder to train anew"
    )


def _record(folder: Path) -> tuple[JsonObject, RunOutcome] | None:
    path = folder / RECORD
    if not path.exists():
        return None
    try:
        stored = restored(json.loads(path.read_text(encoding="utf-8")))
        return stored, RunOutcome.read(stored["outcome"])
    except (ValueError, LookupError, TypeError) as error:
        raise BlocklabError(f"{path}: not a run's record ({error}); remove its folder") from None


def _alone(folder: Path, patience: float = 0.0) -> AbstractContextManager[None]:
    refusal = f"another process is training in {folder}; wait for it or choose another folder"
    return alone_in(folder, refusal, patience=patience)
