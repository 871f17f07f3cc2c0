"""Memory of this process: freed memory kept for the next step, the peak measured from a moment on.

Both only where the system can: glibc keeps memory, Linux forgets a peak. And what it is like when
there is too little.
"""

import ctypes
import functools
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from blocklab.training.devices import PROCESSOR

# Numbers of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

_KEPT = 2**30
"""Bytes: blocks as large as this come from the heap, and as much may lie free at its end."""

_SURELY_ACCEPTED = 2**25
"""The largest block that every version of glibc takes from the heap."""


_TOO_LITTLE = re.compile("not enough memory|can't allocate memory|out of memory", re.IGNORECASE)
"""How torch's errors, which have no class of their own on a processor, say it."""


def is_too_little(error: Exception) -> bool:
    """Whether an error says that there is not enough memory."""
    return isinstance(error, MemoryError) or _TOO_LITTLE.search(str(error)) is not None


@functools.cache
def keep_freed_memory() -> None:
    """Have malloc keep what is freed, for a training step asks for the same memory again.

    By default glibc maps every large block anew and gives it back when freed, so that each step
    pays for the same pages to be cleared: measured on Linux 6, a fifth of a step of 4 layers × 256,
    and no more memory at its peak. Once a process; elsewhere it does nothing.
    """
    mallopt = _of_the_c_library("mallopt")
    if mallopt is None:
        return
    mallopt(_TRIM_THRESHOLD, _KEPT)
    if not mallopt(_MMAP_THRESHOLD, _KEPT):
        mallopt(_MMAP_THRESHOLD, _SURELY_ACCEPTED)


def give_back_freed_memory() -> None:
    """What was kept goes back to the system, where the system can take it."""
    trim = _of_the_c_library("malloc_trim")
    if trim is not None:
        trim(0)


def start_measuring_memory(device: str = PROCESSOR) -> None:
    """Forget the peak so far. Only Linux can, and CUDA of its own memory; elsewhere the peak is
    the whole process's.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats(device)
    give_back_freed_memory()  # what an earlier run left free is not this one's
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_memory(device: str = PROCESSOR) -> int:
    """Largest memory, bytes, since `start_measuring_memory`: CUDA's own, or what is resident."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _of_the_c_library(name: str) -> Callable[..., int] | None:
    """A function of glibc; None where the process runs on another library."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), name, None)
