"""Loading costs little more than reading the bytes, in time and in memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import blocklab as bl

MEASURE = """
import json, os, resource, sys, time
import torch
import blocklab as bl
import blocklab.exchange.families

folder = sys.argv[1]
file = os.path.join(folder, "model.safetensors")

def read():
    buffer = memoryview(bytearray(os.path.getsize(file)))
    began, at = time.perf_counter(), 0
    with open(file, "rb", buffering=0) as opened:
        while at < len(buffer):
            at += opened.readinto(buffer[at : at + 2**25])
    return time.perf_counter() - began

def load():
    began = time.perf_counter()
    model = bl.load(folder).model
    return time.perf_counter() - began, model

bl.load
torch.nn.Linear(8, 8)(torch.ones(1, 8))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
loading, model = load()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
size = sum(p.nbytes for p in model.parameters())
del model
times = [(read(), load()[0]) for _ in range(3)]
print(json.dumps({
    "first": loading,
    "read": min(t for t, _ in times),
    "load": min([loading, *(t for _, t in times)]),
    "memory": peak * 1024 / size,
}))
"""


@pytest.mark.slow
def test_half_a_gigabyte_loads_in_twice_its_reading_time_and_once_its_memory(
    tmp_path: Path,
) -> None:
    config = bl.presets.preset("llama")(
        d_model=768, n_layers=14, n_heads=12, vocab_size=24_000, context_length=512
    )
    bl.export_huggingface(bl.Transformer(config, seed=0), tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "model")],
        capture_output=True,
        text=True,
        check=True,
    )
    measured = json.loads(done.stdout)
    assert measured["load"] < 2 * measured["read"], measured
    assert measured["memory"] < 1.2, measured
