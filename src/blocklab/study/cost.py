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


@contextmanager
def counted(folder: Path) -> Iterator[None]:
    """Add what is spent inside to the folder's cost, by this process and those that ended."""
    own, others = (_spent(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    try:
        yield
    finally:
        before = cost_of(folder) or Cost()
        now = Cost(
            before.main + _spent(resource.RUSAGE_SELF) - own,
            before.workers + _spent(resource.RUSAGE_CHILDREN) - others,
        )
        write_atomically(folder / FILE, json.dumps(asdict(now), indent=1).encode())


def _spent(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime
