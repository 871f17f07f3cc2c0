"""Loading costs little more than reading the bytes, in time and in memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import blocklab as bl

MEASURE = """
import json, sys, time
from pathlib import Path
import torch
import blocklab as bl
import blocklab.exchange.families

folder = sys.argv[1]

def read():
    began = time.perf_counter()
    Path(folder, "model.safetensors").read_bytes()
    return time.perf_counter() - began

def peak():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])

def load():
    began = time.perf_counter()
    model = bl.load(folder).model
    return time.perf_counter() - began, model

bl.load
torch.nn.Linear(8, 8)(torch.ones(1, 8))
before = peak()
loading, model = load()
taken = peak() - before
size = sum(p.nbytes for p in model.parameters())
del model
times = [(read(), load()[0]) for _ in range(3)]
print(json.dumps({
    "first": loading,
    "read": min(t for t, _ in times),
    "load": min([loading, *(t for _, t in times)]),
    "memory": taken / size,
}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the peak is read from /proc")
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
