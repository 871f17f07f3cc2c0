"""How long do twenty runs take as a study, beside twenty runs of a peer's loop one after another?

    python benchmarks/study.py [--workers N] [--json FILE]

Both train models of the same shape on equally many tokens: 4 layers × 128, 4 heads, context 128,
batch 8, vocabulary 2,048. The study is a whole command in a process of its own: the workers' start,
checkpoints, logging, every final evaluation and the report are in its time; preparing the text is
not, for both. The peer's loop is transformers' Llama in eager float32 with all of torch's threads,
the fastest of `training.py`; a few of its runs are timed and stand for twenty.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
import yaml
from torch import Tensor, nn

from training import FLOAT32, plain_loop

D_MODEL, N_LAYERS, N_HEADS, CONTEXT, BATCH, VOCABULARY = 128, 4, 4, 128, 8, 2048
STEPS, N_RUNS, PEER_RUNS = 200, 20, 3
VALIDATION_TOKENS = 32_768


def question() -> dict[str, object]:
    """Two arms, two rates, five seeds."""
    return {
        "question": "How long do twenty runs take?",
        "baseline": {
            "preset": "modern",
            "d_model": D_MODEL,
            "n_layers": N_LAYERS,
            "n_heads": N_HEADS,
            "context_length": CONTEXT,
        },
        "variants": {"layer-norm": {"block.norm": {"kind": "layer", "bias": False}}},
        "training": {
            "steps": STEPS,
            "batch_size": BATCH,
            "learning_rates": [3e-3, 1e-2],
            "validation_tokens": VALIDATION_TOKENS,
        },
        "data": {"corpus": "python-library", "tokenizer": f"bpe:{VOCABULARY}"},
        "seeds": 5,
        "search": False,
        "placebo": False,
    }


def study_seconds(workers: int, folder: Path) -> dict[str, float]:
    """Wall time of the whole command, and of the processor's share outside the runs' steps."""
    file = folder / "twenty.yaml"
    file.write_text(yaml.safe_dump(question()), encoding="utf-8")
    command = [sys.executable, "-m", "blocklab"]
    # The text and the self-test are made once a machine: a plan leaves both in the cache.
    plan = [*command, "plan", str(file), "--out", str(folder / "plan")]
    subprocess.run(plan, check=True, capture_output=True)
    ablate = [*command, "ablate", str(file), "--out", str(folder / "out")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run([*ablate, "--workers", str(workers)], check=True, capture_output=True)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    records = [json.loads(path.read_text()) for path in folder.glob("out/runs/*/run.json")]
    assert len(records) == N_RUNS
    steps = sum(record["outcome"]["seconds"] for record in records)
    dtype = records[0]["spec"]["numerics"]["dtype"]
    print(f"study: {wall:.1f} s with {workers} workers in {dtype}; steps {steps:.1f} s of them all")
    return {"wall": wall, "processor": processor, "steps": steps}


def peer_seconds() -> float:
    """Median wall time of one run of the peer's loop, evaluation included."""
    from transformers import LlamaConfig, LlamaForCausalLM

    times = []
    for _ in range(PEER_RUNS):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=D_MODEL,
                intermediate_size=320,
                num_hidden_layers=N_LAYERS,
                num_attention_heads=N_HEADS,
                max_position_embeddings=CONTEXT,
            )
        )
        step = plain_loop(model, partial(_logits, model), VOCABULARY, FLOAT32)
        batch = torch.randint(VOCABULARY, (2, BATCH, CONTEXT))
        began = time.perf_counter()
        for _ in range(STEPS):
            step(batch[0], batch[1])
        with torch.no_grad():
            for _ in range(VALIDATION_TOKENS // (BATCH * CONTEXT)):
                logits = _logits(model, batch[0]).view(-1, VOCABULARY)
                torch.nn.functional.cross_entropy(logits, batch[1].flatten())
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _logits(model: nn.Module, tokens: Tensor) -> Tensor:
    found: Tensor = model(tokens, use_cache=False).logits
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    one = peer_seconds()
    with tempfile.TemporaryDirectory() as scratch:
        found = study_seconds(asked.workers, Path(scratch))
    ratio = N_RUNS * one / found["wall"]
    around = found["processor"] / found["steps"] - 1
    print(f"peer's loop: {one:.1f} s a run, {N_RUNS * one:.1f} s for {N_RUNS} one after another")
    print(
        f"the study is {ratio:.2f} times as fast; {around:.1%} of processor time beside the steps"
    )
    if asked.json:
        about = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
            "workers": asked.workers,
        }
        rows = {**found, "peer_run": one, "ratio": ratio, "processor_beside_steps": around}
        asked.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
