"""Where runs are trained: what any such place is given, does and says.

The unit that travels is one run, a record and a folder; nothing else is shared but the token files.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

REPORT_EVERY_SECONDS = 0.25


class Pace:
    """Which steps a run reports: the last one, and others at most every `REPORT_EVERY_SECONDS`."""

    def __init__(self) -> None:
        self._reported = 0.0

    def is_due(self, step: int, total: int) -> bool:
        now = time.monotonic()
        if step < total and now - self._reported < REPORT_EVERY_SECONDS:
            return False
        self._reported = now
        return True


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
