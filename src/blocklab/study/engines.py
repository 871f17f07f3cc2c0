"""Where runs are trained: what any such place does, and a pool of processes on this machine.

The unit that travels is one run, a record and a folder; nothing else is shared but the token files
on disk.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType, TracebackType
from typing import Protocol, Self

from blocklab.errors import RunFailed
from blocklab.study.cost import spent

REPORT_EVERY_SECONDS = 0.25


@dataclass(frozen=True)
class Job:
    """One run to train: its record as JSON, where, and on which prepared text."""

    spec: str
    folder: Path
    dataset: Path
    plugins: tuple[Path, ...]
    checkpoint_seconds: float


MOST_ON_AN_ACCELERATOR = 4
"""Small models leave an accelerator idle between steps; each process takes memory of its own."""


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    folder: Path
    steps_done: int
    loss: float


def default_workers(threads: int, *, accelerated: bool) -> int:
    """As many as the cores that this process may use have room for, but few on an accelerator."""
    affine = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    if accelerated:
        return min(cores, MOST_ON_AN_ACCELERATOR)
    return max(cores // threads, 1)


class Engine(Protocol):
    """Trains jobs somewhere, as a context: leaving it stops whatever still runs."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def submit(self, job: Job) -> None:
        """Train it when there is room. May be called while events are heard."""
        ...

    def events(self) -> Iterator[Progress | Path]:
        """Progress as it comes, and each folder when its run is finished, until none is left."""
        ...


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
        self._pool = ProcessPoolExecutor(workers, context, _start_worker, given)
        self._futures: dict[Future[Spent], Path] = {}
        self._spent: dict[int, float] = {}
        self._tell = tell

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        with patient():
            self._pool.shutdown(wait=True, cancel_futures=True)
        for future in self._futures:
            if not future.cancelled() and future.exception() is None:
                self._spent.update(future.result())
        self._tell(sum(self._spent.values()))

    def submit(self, job: Job) -> None:
        """Train it when a process is free."""
        # A process may be started here.
        with _without_main_module(), _undisturbed():
            self._futures[self._pool.submit(_train_job, job)] = job.folder

    def events(self) -> Iterator[Progress | Path]:
        """Progress as it comes, and each folder when its run is finished, until none is left.

        Further jobs may be submitted meanwhile. Raises RunFailed when a run fails or a worker is
        killed.
        """
        while self._futures:
            done, _ = wait(self._futures, REPORT_EVERY_SECONDS, FIRST_COMPLETED)
            while not self._progress.empty():
                yield self._progress.get()
            for future in done:
                folder = self._futures.pop(future)
                self._spent.update(_result(future, folder))
                yield folder


Spent = Mapping[int, float]
"""Processor seconds by process, so far."""


def _context() -> BaseContext:
    """How workers are started: as copies of a server that has imported once what all of them need,
    where that is safe; otherwise each imports for itself.

    The server is made by the first pool of a process and ends with the process.
    """
    if not sys.platform.startswith("linux"):
        return multiprocessing.get_context("spawn")  # others' libraries do not outlive a fork
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_PRELOADED])
    return context


_PRELOADED = "blocklab.study.preloaded"


def _result(future: "Future[Spent]", folder: Path) -> Spent:
    try:
        return future.result()
    except BrokenProcessPool:
        raise RunFailed(
            f"{folder}: a worker process was killed, perhaps for want of memory; run the same "
            "command again to go on, with fewer --workers"
        ) from None


_stop: Event | None = None
_progress: "SimpleQueue[Progress] | None" = None


def _start_worker(
    stop: Event, progress: "SimpleQueue[Progress]", environment: dict[str, str]
) -> None:
    global _stop, _progress
    _stop, _progress = stop, progress
    # A server has the environment of when it was started.
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _train_job(job: Job) -> Spent:
    from blocklab.data.dataset import Dataset
    from blocklab.study.plugins import load_plugins
    from blocklab.training.run import RunSpec, Stopped, train_run

    load_plugins(job.plugins)
    reported = 0.0

    def on_step(step: int, total: int, loss: float) -> None:
        nonlocal reported
        now = time.monotonic()
        if _progress is not None and (now - reported > REPORT_EVERY_SECONDS or step == total):
            reported = now
            _progress.put(Progress(job.folder, step, loss))

    def should_stop() -> bool:
        return _stop is not None and _stop.is_set()

    with contextlib.suppress(Stopped):
        train_run(
            RunSpec.model_validate_json(job.spec),
            job.folder,
            Dataset.open(job.dataset),
            on_step=on_step,
            should_stop=should_stop,
            checkpoint_seconds=job.checkpoint_seconds,
        )
    return _spent()


def _spent() -> Spent:
    """By this worker and what it started, and by the server that it is a copy of."""
    own = {os.getpid(): spent()}
    preloaded = sys.modules.get(_PRELOADED)
    return own | ({os.getppid(): preloaded.SECONDS} if preloaded is not None else {})


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


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Have Ctrl-C wait until this is over, and what is started here never hear of it.

    It reaches the whole process group, and only the main process decides what follows. A process
    inherits the mask of signals from its first moment on; that half of one is started would leave
    it to nobody.
    """
    heard: list[FrameType | None] = []
    with _interrupts_go_to(lambda number, frame: heard.append(frame)):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if heard:
        signal.raise_signal(signal.SIGINT)


def patient() -> contextlib.AbstractContextManager[None]:
    """Let the workers save: a second Ctrl-C while they do is not for them."""
    return _interrupts_go_to(signal.SIG_IGN)


@contextlib.contextmanager
def _interrupts_go_to(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers,
) -> Iterator[None]:
    """Where this is the main thread: no other hears of Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


__all__ = ["Engine", "Job", "ProcessPool", "Progress", "default_workers", "patient"]
