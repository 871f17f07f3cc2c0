"""How long do twenty runs take as a study, beside twenty runs of a peer's loop one after another?

    python benchmarks/study.py [NAME ...] [--workers N] [--json FILE]

Both train models of the same shape on equally many tokens; NAME is one of the sizes below, all by
default. The study is a whole command in a process of its own: the workers' start, compiling,
checkpoints, logging, every final evaluation and the report are in its time; preparing the text and
the self-test are not. The peer's loop is transformers' Llama with all of torch's threads, eager, in
float32 and with bfloat16 products: the fastest of `training.py` that needs no compiler. Its steps
and its evaluation are timed before and after the study, and their medians stand for twenty runs.
"""

import argparse
import contextlib
import ctypes
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import yaml
from torch import Tensor, nn

from training import BF16, FLOAT32, plain_loop

N_LAYERS, N_HEADS, CONTEXT = 4, 4, 128
N_RUNS, TIMED_STEPS = 20, 40
VALIDATION_TOKENS = 32_768
PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h


@dataclass(frozen=True)
class Size:
    """Twenty runs of `steps` steps. `d_ff` is what the study takes by itself."""

    d_model: int
    d_ff: int
    vocabulary: int
    batch: int
    steps: int


SIZES = {
    "small": Size(d_model=128, d_ff=320, vocabulary=2048, batch=8, steps=200),
    "long": Size(d_model=128, d_ff=320, vocabulary=2048, batch=8, steps=1000),
    "wide": Size(d_model=256, d_ff=640, vocabulary=4096, batch=16, steps=100),
    "wide-long": Size(d_model=256, d_ff=640, vocabulary=4096, batch=16, steps=300),
}


def question(size: Size) -> dict[str, object]:
    """Two arms, two rates, five seeds."""
    return {
        "question": "How long do twenty runs take?",
        "baseline": {
            "preset": "modern",
            "d_model": size.d_model,
            "n_layers": N_LAYERS,
            "n_heads": N_HEADS,
            "context_length": CONTEXT,
        },
        "variants": {"layer-norm": {"block.norm": {"kind": "layer", "bias": False}}},
        "training": {
            "steps": size.steps,
            "batch_size": size.batch,
            "learning_rates": [3e-3, 1e-2],
            "validation_tokens": VALIDATION_TOKENS,
        },
        "data": {"corpus": "python-library", "tokenizer": f"bpe:{size.vocabulary}"},
        "seeds": 5,
        "search": False,
        "placebo": False,
    }


def study_seconds(size: Size, workers: int, folder: Path) -> dict[str, float | str]:
    """Wall time of the whole command, and of the processor's share outside the runs' steps."""
    file = folder / "twenty.yaml"
    file.write_text(yaml.safe_dump(question(size)), encoding="utf-8")
    command = [sys.executable, "-m", "blocklab"]
    # The text and the self-test are made once a machine: a plan leaves both in the cache.
    plan = [*command, "plan", str(file), "--out", str(folder / "plan")]
    _run(plan)
    ablate = [*command, "ablate", str(file), "--out", str(folder / "out")]
    _adopt_orphans()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    _run([*ablate, "--workers", str(workers)])
    wall = time.perf_counter() - began
    _wait_for_orphans()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    records = [json.loads(path.read_text()) for path in folder.glob("out/runs/*/run.json")]
    assert len(records) == N_RUNS
    numerics = records[0]["spec"]["numerics"]
    return {
        "wall": wall,
        "processor": processor,
        "main": json.loads((folder / "out" / "cost.json").read_text())["main"],
        "in_steps": sum(record["outcome"]["seconds"] for record in records),
        "compiling": sum(record["outcome"]["compile_seconds"] for record in records),
        "numerics": numerics["dtype"] + (" compiled" if numerics["compile"] else ""),
    }


def _run(command: list[str]) -> None:
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"{' '.join(command)}\n{ended.stderr}")


def _adopt_orphans() -> None:
    """Become the parent of what outlives its own: workers are children of a server that ends after
    the command, and only who waits for a process learns what it took.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _wait_for_orphans() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def peer_seconds(size: Size, mode: str) -> float:
    """Wall time of one run of the peer's loop, evaluation included."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size.vocabulary,
            hidden_size=size.d_model,
            intermediate_size=size.d_ff,
            num_hidden_layers=N_LAYERS,
            num_attention_heads=N_HEADS,
            max_position_embeddings=CONTEXT,
        )
    )
    step = plain_loop(model, partial(_logits, model), size.vocabulary, mode)
    batch = torch.randint(size.vocabulary, (2, size.batch, CONTEXT))

    def evaluation() -> None:
        with torch.no_grad():
            logits = _logits(model, batch[0]).view(-1, size.vocabulary)
            torch.nn.functional.cross_entropy(logits, batch[1].flatten())

    batches = VALIDATION_TOKENS / (size.batch * CONTEXT)
    return size.steps * _median(lambda: step(batch[0], batch[1])) + batches * _median(evaluation)


def _median(work: object) -> float:
    assert callable(work)
    times = []
    for _ in range(TIMED_STEPS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times[TIMED_STEPS // 8 :])


def _logits(model: nn.Module, tokens: Tensor) -> Tensor:
    found: Tensor = model(tokens, use_cache=False).logits
    return found


def compared(name: str, workers: int) -> dict[str, object]:
    """The study between two timings of the peer's loops."""
    size = SIZES[name]
    timed: dict[str, list[float]] = {mode: [] for mode in (FLOAT32, BF16)}

    def time_the_peer() -> None:
        for mode, seconds in timed.items():
            seconds.append(peer_seconds(size, mode))

    time_the_peer()
    with tempfile.TemporaryDirectory() as scratch:
        found = study_seconds(size, workers, Path(scratch))
    time_the_peer()
    wall, processor, in_steps = (float(found[key]) for key in ("wall", "processor", "in_steps"))
    print(f"{name}: the study took {wall:.1f} s with {workers} workers, {found['numerics']}")
    print(
        f"    {processor / in_steps - 1:.1%} of processor time beside the steps, "
        f"{found['compiling']:.1f} s of compiling and {found['main']:.1f} s of the main process "
        "with it"
    )
    peers = {}
    for mode, seconds in timed.items():
        all_runs = N_RUNS * statistics.mean(seconds)
        peers[mode] = {"seconds": all_runs, "ratio": all_runs / wall}
        print(
            f"    peer in {mode}: {all_runs:.1f} s one after another, {all_runs / wall:.2f} times"
        )
    return {**asdict(size), **found, "beside_steps": processor / in_steps - 1, "peers": peers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    unknown = set(asked.names) - set(SIZES)
    if unknown:
        parser.error(f"no size '{min(unknown)}'; expected {', '.join(SIZES)}")
    rows = {name: compared(name, asked.workers) for name in asked.names or SIZES}
    if asked.json:
        about = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
            "workers": asked.workers,
        }
        asked.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
