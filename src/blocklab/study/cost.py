"""What a study took of the processor: its workers, and the main process that plans and watches.

Kept in the study's folder, and added to whenever the study goes on. What a killed command took
is not in it.
"""

import json
import resource
from collections.abc import Iterator
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


def spent() -> Cost:
    """By this process so far, and by those it started that have ended."""
    own, others = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return Cost(own.ru_utime + own.ru_stime, others.ru_utime + others.ru_stime)


@contextmanager
def counted(folder: Path, began: Cost | None = None) -> Iterator[None]:
    """Add to the folder's cost what is spent inside, or since `began`."""
    start = began or spent()
    try:
        yield
    finally:
        before, now = cost_of(folder) or Cost(), spent()
        total = Cost(
            before.main + now.main - start.main, before.workers + now.workers - start.workers
        )
        write_atomically(folder / FILE, json.dumps(asdict(total), indent=1).encode())
