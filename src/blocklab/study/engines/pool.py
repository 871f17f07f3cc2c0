"""Runs on this machine, in a pool of processes."""

import contextlib
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from types import TracebackType
from typing import Self

from blocklab.errors import RunFailed
from blocklab.interrupts import patient, undisturbed
from blocklab.study.engines.engine import REPORT_EVERY_SECONDS, Job, Progress
from blocklab.study.engines.worker import PRELOADED, SERVER, Spent, start_worker, train_job


class ProcessPool:
    """Trains jobs on `workers` processes, as a context: leaving it stops whatever still runs.

    Running jobs save a checkpoint before they stop. `tell` hears at the end how many seconds of
    processor time the workers took, with what they imported and started, as of the jobs that ended.
    """

    def __init__(self, workers: int, tell: Callable[[float], None] = lambda seconds: None) -> None:
        context = _context()
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
        with _without_main_module(), undisturbed():
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


def _context() -> BaseContext:
    """How workers are started: as copies of a server that has imported once what all of them need,
    where that is possible; otherwise each imports for itself.

    The server is made by the first pool of a process and ends with the process.
    """
    if not sys.platform.startswith("linux"):
        return multiprocessing.get_context("spawn")  # others' libraries do not outlive a fork
    forkserver.set_forkserver_preload([PRELOADED])
    resource_tracker.ensure_running()  # begun later, it would unblock the signal for the server
    try:
        with _without_main_module(), undisturbed(), _own_search_path():
            forkserver.ensure_running()
    except OSError:
        # No socket can be made where temporary files go, or a parent's server was inherited.
        return multiprocessing.get_context("spawn")
    return multiprocessing.get_context("forkserver")


@contextlib.contextmanager
def _own_search_path() -> Iterator[None]:
    """Have a server that is started here import what this process would, its blocklab too."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


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


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Let workers start without importing the caller's script again.

    They need nothing of it, and a script without a main guard would start itself over.
    """
    main = sys.modules["__main__"]
    hidden: list[str] = [name for name in ("__file__", "__spec__") if name in vars(main)]
    kept = {name: main.__dict__.pop(name) for name in hidden}
    main.__spec__ = None
    try:
        yield
    finally:
        del main.__spec__
        main.__dict__.update(kept)
