"""Freed memory is kept for the next step, and what is kept is nobody's peak."""

import json
import subprocess
import sys

import pytest

from blocklab.training.memory import _of_the_c_library

ALLOCATES = """
import json, resource, torch
from blocklab.training.memory import keep_freed_memory, peak_memory, start_measuring_memory

def faults(megabytes):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(megabytes * 2**18).add_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

found = {"anew": [faults(64) for _ in range(3)]}
keep_freed_memory()
found["kept"] = [faults(64) for _ in range(12)]
start_measuring_memory()
before = peak_memory()
faults(16)
found["grown"] = peak_memory() - before
print(json.dumps(found))
"""


@pytest.mark.skipif(_of_the_c_library("mallopt") is None, reason="only glibc keeps memory")
def test_memory_is_asked_of_the_system_once():
    done = subprocess.run([sys.executable, "-c", ALLOCATES], capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert min(found["anew"]) > 100
    assert (
        min(found["kept"]) < min(found["anew"]) / 10
    )  # a small block may lie where a large one lay
    assert found["grown"] < 32 * 2**20
