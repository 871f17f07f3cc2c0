"""Peak memory of this process, measured from a moment on where the system can."""

import resource
import sys
from pathlib import Path


def start_measuring_memory() -> None:
    """Forget the peak so far. Only Linux can; elsewhere the peak is the whole process's."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_memory() -> int:
    """Largest resident memory, bytes, since `start_measuring_memory`."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
