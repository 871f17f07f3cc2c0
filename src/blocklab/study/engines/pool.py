"""Runs on this machine, in a pool of processes."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from types import TracebackType
from typing import Self

from blocklab.errors import RunFailed
from blocklab.interrupts import patient, undisturbed
from blocklab.study.engines.engine import REPORT_EVERY_SECONDS, Job, Progress
from blocklab.study.engines.server import process_context, without_main_module
from blocklab.study.engines.worker import SERVER, Spent, start_worker, train_job


class ProcessPool:
    """Trains jobs on `workers` processes, as a context: leaving it stops whatever still runs.

    Running jobs save a checkpoint before they stop. `tell` hears at the end how many seconds of
    processor time the workers took, with what they imported and started, as of the jobs that ended.
    """

    def __init__(self, workers: int, tell: Callable[[float], None] = lambda seconds: None) -> None:
        context = process_context()
        self._stop = context.Event()
        self._progress: SimpleQueue[Progress] = context.SimpleQueue()
        given = (self._stop, self._progress, dict(os.environ))
        self._pool = ProcessPoolExecutor(workers, context, start_worker, given)
        self._futures: dict[Future[Spent], Path] = {}
        self._spent: dict[str, float] = {}
        self._tell = tell

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with patient():
            self._stop.set()
            # Workers that report into a full pipe would wait for a reader for ever.
            ending = threading.Thread(target=partial(self._pool.shutdown, cancel_futures=True))
            ending.start()
            while ending.is_alive():
                self._heard()
                ending.join(REPORT_EVERY_SECONDS / 5)
        failure = self._failure()
        _charge(self._spent, self._tell)
        if failure is not None and kind is not None and not issubclass(kind, Exception):
            raise failure  # who interrupts is told that everything was saved

    def _failure(self) -> Exception | None:
        """The first among the jobs that nobody has asked after."""
        failure = None
        for future, folder in self._futures.items():
            if not future.cancelled():
                try:
                    self._spent_by(_result(future, folder))
                except Exception as error:
                    failure = failure or error
        return failure

    def _spent_by(self, processes: Spent) -> None:
        """Results come in any order; a process's later ones are larger."""
        for name, seconds in processes.items():
            self._spent[name] = max(seconds, self._spent.get(name, 0.0))

    def _heard(self) -> list[Progress]:
        """What is in the pipe."""
        found = []
        while not self._progress.empty():
            found.append(self._progress.get())
        return found

    def submit(self, job: Job) -> None:
        """Train it when a process is free."""
        # A process may be started here.
        with without_main_module(), undisturbed():
            self._futures[self._pool.submit(train_job, job)] = job.folder

    def events(self) -> Iterator[Progress | Path]:
        """Progress as it comes, and each folder when its run is finished, until none is left.

        Further jobs may be submitted meanwhile. Raises RunFailed when a run fails or a worker is
        killed.
        """
        while self._futures:
            done, _ = wait(self._futures, REPORT_EVERY_SECONDS, FIRST_COMPLETED)
            yield from self._heard()
            for future in done:
                folder = self._futures.pop(future)
                self._spent_by(_result(future, folder))
                yield folder


def _result(future: "Future[Spent]", folder: Path) -> Spent:
    try:
        return future.result()
    except BrokenProcessPool:
        raise RunFailed(
            f"{folder}: a worker process was killed, perhaps for want of memory; run the same "
            "command again to go on, with fewer --workers"
        ) from None


_charged: set[str] = set()


def _charge(processes: Spent, tell: Callable[[float], None]) -> None:
    """Tell the sum; what a server imported is told once, of the pool that it was made for."""
    tell(sum(seconds for name, seconds in processes.items() if name not in _charged))
    _charged.update(name for name in processes if name.startswith(SERVER))
