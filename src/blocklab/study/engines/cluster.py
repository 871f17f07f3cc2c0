"""Runs on the machines of a Ray cluster, which share neither disk nor installation of blocklab.

Ray finds a machine for each run and says when one is lost; what travels is in `travelling`.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from blocklab.errors import BlocklabError, RunFailed
from blocklab.interrupts import patient
from blocklab.study.engines.connection import in_a_line, ray_library
from blocklab.study.engines.engine import (
    MOST_ON_AN_ACCELERATOR,
    REPORT_EVERY_SECONDS,
    Job,
    Progress,
)
from blocklab.study.engines.travelling import Luggage, Return, files_of, packed, train_away, unpack

RETRIES = 3
"""How often a run may lose its machine before the study gives up."""

ANSWERS_WITHIN = 45.0
"""Seconds that a cluster may take; after a minute Ray itself would end the process."""

BEGINS_WITHIN = 300.0
"""Seconds that a machine may take until it runs blocklab, which travels there first."""

SAVES_WITHIN = 60.0
"""Seconds that stopped runs may take to save and come back."""


class RayCluster:
    """Trains jobs on the cluster that this process is `connected` to, as a context: leaving it
    stops what still runs.

    A run takes `threads` processor cores, and a share of an accelerator where it is `accelerated`;
    at most `workers` train at once, by default as many as the cluster has room for. Running jobs
    come back with a checkpoint before they stop. One whose machine is lost goes on elsewhere from
    its last checkpoint. `tell` hears at the end how many seconds of processor time the runs took.

    Raises BlocklabError where no machine has room for a run, or one cannot run blocklab.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        threads: int = 1,
        accelerated: bool = False,
        tell: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._ray = ray_library()
        _require_room(self._ray, threads, accelerated)
        self._board = _new_board(self._ray)
        self._train = self._ray.remote(_train).options(
            num_cpus=threads,
            num_gpus=1 / MOST_ON_AN_ACCELERATOR if accelerated else 0,
            max_retries=0,  # what a retry goes on from is only known here
        )
        self._most = workers
        self._tell = tell
        self._waiting: deque[Job] = deque()
        self._running: dict[Any, Job] = {}
        self._lost: dict[Path, int] = {}
        self._texts: dict[Path, Any] = {}
        self._seconds = 0.0
        self._gone = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with patient():
            try:
                self._stop()
            finally:
                self._tell(self._seconds)

    def submit(self, job: Job) -> None:
        """Train it when a machine is free."""
        self._waiting.append(job)

    def events(self) -> Iterator[Progress | Path]:
        """Progress as it comes, and each folder when its run is finished, until none is left.

        Further jobs may be submitted meanwhile. Raises RunFailed when a run fails, or is lost with
        its machine once too often.
        """
        while self._waiting or self._running:
            self._send()
            with self._lost_cluster_fails():
                done, _ = self._ray.wait([*self._running], timeout=REPORT_EVERY_SECONDS)
                news = self._news()
            yield from news
            for task in done:
                folder = self._running[task].folder
                if self._returned(task):
                    yield folder

    def _send(self) -> None:
        while self._waiting and (self._most is None or len(self._running) < self._most):
            job = self._waiting.popleft()
            luggage = packed(job)
            text = files_of(job.dataset) if job.dataset not in self._texts else {}
            with self._lost_cluster_fails():
                if text:
                    self._texts[job.dataset] = self._ray.put(text)
                # In a list it stays where it is until a machine asks for it.
                asked = (str(job.folder), luggage, [self._texts[job.dataset]])
                self._running[self._train.remote(self._board, *asked)] = job

    def _news(self) -> list[Progress]:
        """Write what runs have saved, and hear how far they are."""
        saved, progress = self._ray.get(self._board.news.remote(), timeout=ANSWERS_WITHIN)
        running = {str(job.folder) for job in self._running.values()}
        for folder in saved.keys() & running:  # of one that has returned it would be old
            with contextlib.suppress(self._ray.exceptions.RayError):  # lost with its machine
                unpack(self._ray.get(saved[folder][0]), Path(folder))
        return [Progress(Path(folder), *far) for folder, far in progress.items()]

    def _returned(self, task: Any) -> bool:
        """Write what a run came back with; False where it was lost and is sent once more."""
        job, errors = self._running[task], self._ray.exceptions
        lost: Exception | None = None
        try:
            with self._lost_cluster_fails(errors.RayError):
                back: Return = self._ray.get(task)
        except errors.RayTaskError as error:
            del self._running[task]
            raise RunFailed(f"{job.folder}: {error.cause}") from error
        except errors.RayError as error:
            lost = error
        del self._running[task]
        if lost is not None:
            self._send_again(job, lost)
            return False
        self._seconds += back.seconds
        if back.refused is not None:
            raise BlocklabError(f"{job.folder}: {back.refused}")
        unpack(back.files, job.folder)
        return True

    def _send_again(self, job: Job, why: Exception) -> None:
        times = self._lost[job.folder] = self._lost.get(job.folder, 0) + 1
        if times > RETRIES:
            raise RunFailed(
                f"{job.folder}: lost with its machine {times} times ({in_a_line(why)}); run the "
                "same command again to go on, with fewer --workers"
            ) from why
        self._board.forget.remote(str(job.folder))
        self._waiting.append(job)

    def _stop(self) -> None:
        # What went wrong first is on its way already, a cluster that is gone included.
        with contextlib.suppress(BlocklabError), self._lost_cluster_fails():
            self._wait_for_what_has_begun()

    def _wait_for_what_has_begun(self) -> None:
        if self._gone or not self._running:
            return
        begun = self._ray.get(self._board.stop.remote(), timeout=ANSWERS_WITHIN)
        for task, job in self._running.items():
            if str(job.folder) not in begun:
                self._ray.cancel(task)
        until = time.monotonic() + SAVES_WITHIN
        while self._running and time.monotonic() < until:
            done, _ = self._ray.wait([*self._running], timeout=REPORT_EVERY_SECONDS)
            self._news()
            for task in done:
                with contextlib.suppress(BlocklabError):
                    self._returned(task)

    @contextlib.contextmanager
    def _lost_cluster_fails(self, *expected: type[Exception]) -> Iterator[None]:
        """Whatever says that the cluster is gone, but for what is `expected`, is a failed run."""
        try:
            yield
        except expected:
            raise
        except Exception as error:
            # A client that has lost its cluster raises nothing more special.
            bare = type(error) is Exception
            if not bare and not isinstance(error, self._ray.exceptions.RayError | ConnectionError):
                raise
            self._gone = True
            raise RunFailed(
                f"--ray: the cluster does not answer ({in_a_line(error)}); run the same command "
                "again to go on"
            ) from error


def _new_board(ray: Any) -> Any:
    """Begun anew elsewhere when its machine is lost: it holds nothing that is not said again."""
    anew = {"max_restarts": -1, "max_task_retries": -1}
    board = ray.remote(_Board).options(num_cpus=0, **anew).remote()
    try:
        ray.get(board.news.remote(), timeout=BEGINS_WITHIN)
    except ray.exceptions.RayError as error:
        raise BlocklabError(
            f"--ray: a machine of the cluster cannot run blocklab: {in_a_line(error, last=True)}"
        ) from None
    return board


def _require_room(ray: Any, threads: int, accelerated: bool) -> None:
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(
        machine.get("CPU", 0) >= threads and (machine.get("GPU", 0) > 0 or not accelerated)
        for machine in machines
    ):
        return
    wanted = f"{threads} core{'s' if threads > 1 else ''}"
    wanted += " and a GPU, as the study's numerics ask" if accelerated else ""
    raise BlocklabError(f"--ray: no machine of the cluster has {wanted}")


class _Board:
    """Where runs say how far they are and leave what they saved; one for all, somewhere."""

    def __init__(self) -> None:
        self._progress: dict[str, tuple[int, float]] = {}
        self._saved: dict[str, list[Any]] = {}
        self._begun: set[str] = set()
        self._stopping = False

    def report(self, folder: str, step: int, loss: float) -> bool:
        """Whether the run is to stop."""
        self._begun.add(folder)
        self._progress[folder] = (step, loss)
        return self._stopping

    def keep(self, folder: str, files: list[Any]) -> None:
        """Where the files lie that a run has saved: they travel once, to whoever writes them."""
        self._saved[folder] = files

    def forget(self, folder: str) -> None:
        """Its machine is lost: it has not begun."""
        self._begun.discard(folder)

    def news(self) -> tuple[dict[str, list[Any]], dict[str, tuple[int, float]]]:
        """What came since this was asked last."""
        news = self._saved, self._progress
        self._saved, self._progress = {}, {}
        return news

    def stop(self) -> set[str]:
        """Which runs have begun, and hear of it."""
        self._stopping = True
        return self._begun


def _train(board: Any, folder: str, luggage: Luggage, text: list[Any]) -> Return:
    """The task of one run. It never waits by `ray.get`: meanwhile its core would count as free, and
    another run begin on it.
    """
    ray = ray_library()
    asked: Any = None

    def report(step: int, loss: float) -> bool:
        """What the last report was answered, if it was."""
        nonlocal asked
        if asked is not None and not asked.done():
            return False
        stop = asked is not None and bool(asked.result())
        asked = board.report.remote(folder, step, loss).future()
        return stop

    return train_away(
        luggage,
        text=lambda: text[0].future().result(),
        report=report,
        keep=lambda files: board.keep.remote(folder, [ray.put(files)]),
    )
