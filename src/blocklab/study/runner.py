"""A study from question to result: prepare, plan, train what is missing, summarise."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import torch

from blocklab.data.dataset import Dataset, prepare, require_windows
from blocklab.study.engines import Job, ProcessPool, Progress, default_workers
from blocklab.study.folder import StudyFolder
from blocklab.study.liveness import require_differences
from blocklab.study.plan import Plan, plan
from blocklab.study.plugins import load_plugins
from blocklab.study.results import Facts, RunResult, StudyResult, Text
from blocklab.study.study import Study
from blocklab.study.summary import summarised
from blocklab.training.run import CHECKPOINT_SECONDS

Say = Callable[[str], None]


class Watcher(Protocol):
    """Whoever wants to know how far a study is."""

    def planned(self, plan: Plan, missing: int) -> None:
        """Before anything is trained; all but `missing` runs were found finished."""
        ...

    def progressed(self, steps_done: int, steps_total: int, runs_done: int) -> None:
        """Steps and runs of this call, the found ones not among them."""
        ...


@dataclass(frozen=True)
class Prepared:
    """A study that is ready to train: its text and its plan, everything checked."""

    plan: Plan
    dataset: Dataset
    text: Text
    plugins: tuple[Path, ...]


def prepare_study(
    study: Study,
    folder: Path | None = None,
    *,
    plugins: Sequence[Path] = (),
    say: Say | None = None,
) -> Prepared:
    """Find here whatever is wrong, before anything is trained or written in `folder`.

    Raises BlocklabError for a bad model, too little text, a variant that changes nothing, a folder
    that holds another study.
    """
    files = tuple(Path(file).resolve() for file in plugins)
    fingerprints = load_plugins(files)
    baseline = study.baseline.config()
    # Bad paths and sizes are found before a text that may take long to read.
    plan(study, Text("", baseline.vocab_size or 1024, "", 0.0, 0, 0), fingerprints)
    dataset = prepare(study.data, say=say)
    require_windows(dataset, baseline.context_length)
    text = described(dataset)
    if folder is not None:
        study = StudyFolder(folder).widened(study, text.fingerprint)
    ready = Prepared(plan(study, text, fingerprints), dataset, text, files)
    require_differences(ready.plan)
    return ready


def train_study(
    study: Study,
    folder: str | Path,
    *,
    workers: int | None = None,
    plugins: Sequence[Path] = (),
    watcher: Watcher | None = None,
    say: Say | None = None,
    command: str | None = None,
    reuse: Path | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> StudyResult:
    """Train every run of `study` that is not finished in `folder` yet, and say what came out.

    Raises BlocklabError for bad input before anything is written, RunFailed when a run or the disk
    fails. A KeyboardInterrupt stops the workers after they have saved; the same call goes on.
    Finished runs of the study in `reuse` are copied, not trained again.
    """
    path = Path(folder)
    if reuse is not None:
        StudyFolder(reuse).read()
    ready = prepare_study(study, path, plugins=plugins, say=say)
    place = StudyFolder(path)
    again = command or f"blocklab ablate {path / 'study.yaml'} --out {path}"
    with place.locked():
        place.write(ready.plan.study, ready.text, again, ready.plugins)
        if reuse is not None:
            place.take_finished(ready.plan.runs, StudyFolder(reuse))
        _train_missing(ready, place, workers or default_workers(), watcher, checkpoint_seconds)
        return collected(ready.plan, ready.text, place, again)


def stored_result(folder: str | Path) -> StudyResult:
    """The result from what a folder holds; trains nothing and needs no corpus."""
    place = StudyFolder(Path(folder))
    fingerprints = load_plugins(place.plugins)
    study, text, command = place.read()
    return collected(plan(study, text, fingerprints), text, place, command)


def collected(plan: Plan, text: Text, place: StudyFolder, command: str) -> StudyResult:
    """The result from whatever runs of the plan are finished."""
    found = (place.result_of(run) for run in plan.runs)
    runs: tuple[RunResult, ...] = tuple(run for run in found if run is not None)
    arms = summarised(plan.arms, runs, text.unigram_entropy)
    return StudyResult(_facts(plan, text, command), arms, runs)


def described(dataset: Dataset) -> Text:
    """What a study keeps of its text."""
    return Text(
        fingerprint=dataset.fingerprint,
        vocab_size=dataset.vocab_size,
        tokenizer=dataset.tokenizer.name if dataset.tokenizer is not None else "none",
        unigram_entropy=dataset.unigram_entropy,
        train_tokens=len(dataset.train),
        validation_tokens=len(dataset.validation),
        notes=tuple(dataset.notes),
    )


def _train_missing(
    ready: Prepared,
    place: StudyFolder,
    workers: int,
    watcher: Watcher | None,
    checkpoint_seconds: float,
) -> None:
    paths = {place.run_folder(run): run for run in ready.plan.runs}
    missing = {path: run for path, run in paths.items() if not (path / "run.json").exists()}
    if watcher is not None:
        watcher.planned(ready.plan, len(missing))
    if not missing:
        return
    assert ready.dataset.folder is not None
    jobs = [
        Job(
            spec=run.spec.model_dump_json(),
            folder=path,
            dataset=ready.dataset.folder,
            plugins=ready.plugins,
            checkpoint_seconds=checkpoint_seconds,
        )
        for path, run in missing.items()
    ]
    steps = dict.fromkeys(missing, 0)
    total = sum(ready.plan.steps_of(run) for run in missing.values())
    runs_done = 0
    for event in ProcessPool(workers).train(jobs):
        if isinstance(event, Progress):
            steps[event.folder] = event.steps_done
        else:
            runs_done += 1
            steps[event] = ready.plan.steps_of(missing[event])
        if watcher is not None:
            watcher.progressed(sum(steps.values()), total, runs_done)


def _facts(plan: Plan, text: Text, command: str) -> Facts:
    study, baseline = plan.study, plan.arms[0]
    swept = study.training.validation_tokens or text.validation_tokens
    numerics = study.numerics
    return Facts(
        question=study.question,
        budget=study.budget,
        command=command,
        corpus=study.data.corpus,
        tokenizer=text.tokenizer,
        vocab_size=text.vocab_size,
        unigram_entropy=text.unigram_entropy,
        train_tokens=text.train_tokens,
        validation_tokens=min(swept, text.validation_tokens),
        context_length=baseline.config.context_length,
        d_model=baseline.config.d_model,
        n_layers=baseline.config.n_layers,
        batch_size=study.training.batch_size,
        steps=study.training.n_steps(baseline.config.context_length) or 0,
        seeds=tuple(range(1, study.seeds + 1)),
        learning_rates=study.training.learning_rates,
        match=study.match,
        versions={
            "blocklab": version("blocklab"),
            "torch": torch.__version__,
            "Python": platform.python_version(),
            "device": numerics.device,
            "dtype": numerics.dtype,
            "threads a run": str(numerics.threads),
        },
        notes=text.notes,
    )
