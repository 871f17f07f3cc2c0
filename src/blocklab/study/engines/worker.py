"""A process of the pool: how it begins, and one job in it."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event

from blocklab.study.cost import spent
from blocklab.study.engines.engine import Job, Pace, Progress
from blocklab.study.engines.server import PRELOADED

SERVER = "server"

Spent = Mapping[str, float]
"""Processor seconds so far, by the name of a process; a server's begins with SERVER."""

_stop: Event | None = None
_progress: "SimpleQueue[Progress] | None" = None


def start_worker(
    stop: Event, progress: "SimpleQueue[Progress]", environment: dict[str, str]
) -> None:
    global _stop, _progress
    # Inherited already, unless somebody else made the server.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
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


def train_job(job: Job) -> Spent:
    from blocklab.data.dataset import Dataset
    from blocklab.study.plugins import load_plugins, require_unchanged
    from blocklab.training.run import RunSpec, Stopped, train_run

    loaded = load_plugins(job.plugins)
    spec = RunSpec.model_validate_json(job.spec)
    require_unchanged(spec.plugins, loaded)
    pace = Pace()

    def on_step(step: int, total: int, loss: float) -> None:
        if _progress is not None and pace.is_due(step, total):
            _progress.put(Progress(job.folder, step, loss))

    def should_stop() -> bool:
        return _stop is not None and _stop.is_set()

    with contextlib.suppress(Stopped):
        train_run(
            spec,
            job.folder,
            Dataset.open(job.dataset),
            on_step=on_step,
            should_stop=should_stop,
            checkpoint_seconds=job.checkpoint_seconds,
        )
    return _spent()


def _spent() -> Spent:
    """By this worker and what it started, and by its server, where that imported for itself."""
    own = {f"worker {os.getpid()}": spent()}
    preloaded = sys.modules.get(PRELOADED)
    if preloaded is None or os.getppid() != preloaded.PROCESS:
        return own
    return own | {f"{SERVER} {os.getppid()}": preloaded.SECONDS}
