"""What a study took of the processor: its workers, and the main process that plans and watches.

Kept in the study's folder, and added to whenever the study goes on. What a killed command took
is not in it.
"""

import json
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from blocklab.files import write_atomically

FILE = "cost.json"


@dataclass(frozen=True)
class Cost:
    """Seconds of processor time."""

    main: float = 0.0
    workers: float = 0.0


def cost_of(folder: Path) -> Cost | None:
    """What is kept in the folder of a study; None where nothing readable is."""
    try:
        known = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return Cost(float(known["main"]), float(known["workers"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def spent() -> float:
    """By this process so far, and by those it started that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@contextmanager
def counted(folder: Path, began: float | None = None) -> Iterator[Callable[[float], None]]:
    """Add to the folder's cost what this process spends inside and, where `began` is given, what
    `spent` has grown by since; and what the yielded function is told of workers.
    """
    start = time.process_time()
    before = 0.0 if began is None else spent() - began
    told: list[float] = []
    try:
        yield told.append
    finally:
        known = cost_of(folder) or Cost()
        main = known.main + before + time.process_time() - start
        total = Cost(main, known.workers + sum(told))
        write_atomically(folder / FILE, json.dumps(asdict(total), indent=1).encode())
