"""A study from question to result: prepare, plan, train what is missing, summarise."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from blocklab.data.dataset import Dataset, prepare, require_windows
from blocklab.data.windows import ValidationWindows
from blocklab.errors import BlocklabError
from blocklab.record import with_changes
from blocklab.study.carried_over import carried_over
from blocklab.study.cost import counted, spent
from blocklab.study.course import all_courses, missing_runs
from blocklab.study.engines.cluster import RayCluster
from blocklab.study.engines.connection import connected
from blocklab.study.engines.engine import Engine, Job, Progress, default_workers
from blocklab.study.engines.pool import ProcessPool
from blocklab.study.evidence import at_look
from blocklab.study.folder import Circumstances, StudyFolder
from blocklab.study.liveness import Difference, require_differences
from blocklab.study.own_faults import overwritten_values, unnamed_writers
from blocklab.study.plan import Plan, PlannedRun, plan
from blocklab.study.plugins import load_plugins
from blocklab.study.results import StudyResult, Text
from blocklab.study.stored import collected
from blocklab.study.study import Study
from blocklab.study.timing import Say, with_numerics, with_timed_widths
from blocklab.training.devices import PROCESSOR, usable_device
from blocklab.training.memory import give_back_freed_memory
from blocklab.training.recall import answers_of, require_answers
from blocklab.training.run import CHECKPOINT_SECONDS


class Watcher(Protocol):
    """Whoever wants to know how far a study is."""

    def planned(self, plan: Plan, found: int, expected: int) -> None:
        """Before anything is trained: `found` of the `expected` runs are finished already."""
        ...

    def progressed(self, steps_done: int, steps_expected: int, found: int, expected: int) -> None:
        """Steps of this call, and runs finished in all. While rates are searched it is not known
        how many runs there will be: expectations move."""
        ...


@dataclass(frozen=True)
class Prepared:
    """A study that is ready to train: its text and its plan, everything checked."""

    plan: Plan
    dataset: Dataset
    text: Text
    plugins: tuple[Path, ...]
    differences: Mapping[str, str]
    """By variant: where it was seen to differ from the baseline, before any training."""


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
    # Bad paths are found before a text that may take long to read; sizes depend on it.
    unmatched = with_changes(study, {"match": "none"})
    plan(unmatched, Text("", baseline.vocab_size or 1024, "", 0.0, 0, 0), fingerprints)
    dataset = prepare(study.data, say=say)
    require_windows(dataset, baseline.context_length)
    text = described(dataset)
    if folder is not None:
        study = StudyFolder(folder).widened(study, text.fingerprint)
    study = with_numerics(study, plan(study, text, fingerprints), dataset, say)
    if study.numerics is not None:
        usable_device(study.numerics.device)
    if study.match == "time":
        study = with_timed_widths(study, plan(study, text, fingerprints), dataset, say)
    planned = plan(study, text, fingerprints)
    if say is not None:
        arms = [arm for part in planned.whole for arm in part.arms]
        notes = (
            note
            for arm in arms
            for note in (*unnamed_writers(arm.config), *overwritten_values(arm.config))
        )
        for note in dict.fromkeys(notes):
            say(note)
    give_back_freed_memory()
    if "recall" in study.metrics:
        _require_answers(planned, dataset)
    checked = [_checked(cell) for part in planned.whole for cell in part.cells]
    # Those of the study itself, at the first setting of its nuisances.
    differences = {
        found.arm: found.sentence + carried_over(planned.cells[0], found.arm)
        for found in checked[0]
    }
    return Prepared(planned, dataset, text, files, differences)


def _require_answers(planned: Plan, dataset: Dataset) -> None:
    """Every arm must find an answer in what it is evaluated on."""
    swept = dataset.validation[: planned.study.training.validation_tokens]
    lengths = {arm.config.context_length for part in planned.whole for arm in part.arms}
    for length in sorted(lengths):
        require_answers(ValidationWindows(swept, length), answers_of(planned.study.data))


def _checked(cell: Plan) -> tuple[Difference, ...]:
    try:
        return require_differences(cell)
    except BlocklabError as error:
        rung = f"ladder: at {cell.rung}" if cell.rung else ""
        where = ", ".join(filter(None, (rung, cell.arms[0].cell)))
        raise BlocklabError(f"{where}: {error}" if where else str(error)) from None


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
    ray: str | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> StudyResult:
    """Train every run of `study` that is not finished in `folder` yet, and say what came out.

    Runs are trained by `workers` processes here, or on the Ray cluster at the address `ray`.

    Raises BlocklabError for bad input before anything is written, RunFailed when a run or the disk
    fails. A KeyboardInterrupt stops the workers after they have saved; the same call goes on.
    Finished runs of the study in `reuse` are copied, not trained again.
    """
    if workers is not None and workers < 1:
        raise BlocklabError(f"workers: {workers}; give at least 1")
    path = Path(folder)
    began = spent()
    with connected(ray, say) if ray is not None else nullcontext():
        if reuse is not None:
            study = StudyFolder(reuse).continued_by(study)
        ready = prepare_study(study, path, plugins=plugins, say=say)
        place = StudyFolder(path)
        again = command or f"blocklab ablate {path / 'study.yaml'} --out {path}"
        with place.locked():
            circumstances = Circumstances(ready.text, again, ready.differences)
            place.write(ready.plan.study, circumstances, ready.plugins)
            training = _Training(ready, place, watcher, checkpoint_seconds)
            if reuse is not None:
                training.take_finished(StudyFolder(reuse))
            with counted(path, began) as tell:
                training.run(partial(_engine, ready.plan, workers, ray is not None, tell))
            return collected(ready.plan, circumstances, place)


def _engine(
    plan: Plan, workers: int | None, on_cluster: bool, tell: Callable[[float], None]
) -> Engine:
    if not on_cluster:
        return ProcessPool(workers or usual_workers(plan), tell)
    numerics = plan.numerics
    accelerated = numerics.device != PROCESSOR
    return RayCluster(workers=workers, threads=numerics.threads, accelerated=accelerated, tell=tell)


def usual_workers(plan: Plan) -> int:
    """How many processes train a study where nobody says."""
    accelerated = plan.numerics.device != PROCESSOR
    return default_workers(plan.numerics.threads, accelerated=accelerated)


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


class _Training:
    """One call's worth of training: what is finished, what is under way, what is asked for next."""

    def __init__(
        self,
        ready: Prepared,
        place: StudyFolder,
        watcher: Watcher | None,
        checkpoint_seconds: float,
    ) -> None:
        self.ready, self.place, self.watcher = ready, place, watcher
        self.plan = ready.plan
        self.checkpoint_seconds = checkpoint_seconds
        self.known = place.known()
        self.under_way: dict[str, PlannedRun] = {}
        """By id, as their steps are."""
        self.steps: dict[str, int] = {}

    def take_finished(self, other: StudyFolder) -> None:
        """Copy the finished runs of another study, and those that they let this one ask for."""
        while True:
            before = len(self.known)
            self._go_on()
            asked = missing_runs(self.ways, self.known)
            self.place.take_finished(asked, other)
            self.known = self.place.known()
            if len(self.known) == before:
                return

    def run(self, start: Callable[[], Engine]) -> None:
        """Train until nothing more is asked for, by an engine that is started if anything is."""
        jobs = self._asked()
        if self.watcher is not None:
            self.watcher.planned(self.plan, self.found, self.expected)
        if not jobs:
            return
        with start() as engine:
            for job in jobs:
                engine.submit(job)
            for event in engine.events():
                if isinstance(event, Progress):
                    self.steps[event.folder.name] = event.steps_done
                else:
                    run = self.under_way.pop(event.name)
                    self.steps[run.id] = run.steps
                    self.known[run.id] = self.place.loss_of(event)
                    for job in self._asked():
                        engine.submit(job)
                self._tell()

    def _asked(self) -> list[Job]:
        """Jobs for what the known losses ask for and is not under way yet."""
        self._go_on()
        jobs = []
        for run in missing_runs(self.ways, self.known):
            if run.id not in self.under_way:
                self.under_way[run.id] = run
                jobs.append(self._job(run, self.place.run_folder(run)))
        return jobs

    def _go_on(self) -> None:
        """Bring the plan and its courses to where the finished runs have come."""
        self.ways = all_courses(self.plan, self.known)
        # A study that looks twice has no ladder: these are its own courses.
        plan = at_look(self.plan, self.ways, self.place.windows_of)
        if plan is not self.plan:
            self.plan, self.ways = plan, all_courses(plan, self.known)
        # Kept, because they are told several times a second and only a finished run changes them.
        asked = [run for way in self.ways for run in way.runs]
        self.found = sum(run.id in self.known for run in asked)
        self.expected = sum(way.n_expected for way in self.ways)
        self.steps_of_a_run = sum(run.steps for run in asked) / len(asked)

    def _job(self, run: PlannedRun, folder: Path) -> Job:
        assert self.ready.dataset.folder is not None
        return Job(
            spec=run.spec.model_dump_json(),
            folder=folder,
            dataset=self.ready.dataset.folder,
            plugins=self.ready.plugins,
            checkpoint_seconds=self.checkpoint_seconds,
        )

    def _tell(self) -> None:
        if self.watcher is None:
            return
        done = sum(self.steps.values())
        left = sum(run.steps - self.steps.get(i, 0) for i, run in self.under_way.items())
        unknown = max(0, self.expected - self.found - len(self.under_way))
        expected = done + left + round(unknown * self.steps_of_a_run)
        self.watcher.progressed(done, max(expected, 1), self.found, self.expected)
