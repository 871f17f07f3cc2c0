"""How long take a count, the watching of a study of a thousand runs, and its report?

    python benchmarks/reporting.py [--runs 1000] [--json FILE]

Counts a model of 70 billion parameters from its record, and writes the report of a study whose
runs were made up: every file is there as a training would have left it. The report is written by
`blocklab report` in a process of its own, with its processor time and peak memory. What the main
process does of a study beside watching is to ask, whenever a run is finished, what is missing yet.
"""

import argparse
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import safetensors.numpy

import blocklab as bl
from blocklab.study.course import courses, missing_runs
from blocklab.study.folder import Circumstances, StudyFolder
from blocklab.study.plan import Plan, PlannedRun, plan
from blocklab.study.results import Text
from blocklab.study.study import Study
from blocklab.training.numerics import Numerics
from blocklab.training.run import RunOutcome

SEEDS, STEPS, WINDOWS = 10, 488, 1024
RATES = tuple(3e-4 * 3 ** (i / 2) for i in range(10))


def question(n_runs: int) -> Plan:
    """A study of about that many runs."""
    n_variants = max(n_runs // (SEEDS * len(RATES)) - 2, 1)
    study = Study.parse(
        {
            "question": "What does a report of a thousand runs cost?",
            "baseline": {
                "preset": "modern", "d_model": 64, "n_layers": 4, "n_heads": 4,
                "context_length": 128,
            },
            "variants": {f"eps-{i}": {"block.norm.eps": 1e-6 * (2 + i)} for i in range(n_variants)},
            "training": {"steps": STEPS, "batch_size": 8, "learning_rates": RATES},
            "seeds": SEEDS,
            "search": False,
            "numerics": Numerics().plain(),
        }
    )  # fmt: skip
    return plan(study, Text("made up", 1024, "bpe:1024", 5.94, 4_000_000, 131_072))


def asking(planned: Plan) -> float:
    """Processor time of asking what is missing after every run, until none is."""
    began = time.process_time()
    known: dict[str, float | None] = {}
    while missing := missing_runs(courses(planned, known), known):
        known[missing[0].id] = 3.6
    return time.process_time() - began


def made_up(planned: Plan, folder: Path) -> int:
    """The study's folder with all of its runs finished; how many there are."""
    place = StudyFolder(folder)
    place.write(planned.study, Circumstances(planned.text, "blocklab ablate", {}), ())
    runs = _all_runs(planned)
    for run in runs:
        _train_nothing(run, place.run_folder(run))
    return len(runs)


def _all_runs(planned: Plan) -> list[PlannedRun]:
    return [
        planned.run(arm, seed, rate)
        for arm in planned.arms
        for seed in planned.seeds
        for rate in RATES
    ]


def _train_nothing(run: PlannedRun, folder: Path) -> None:
    folder.mkdir(parents=True)
    chance = random.Random(run.id)
    parts = ["embedding", *(f"blocks.{i}" for i in range(4)), "final_norm", "head"]
    loss = 3.6 + chance.gauss(0, 0.02)
    rows = []
    for step in range(1, STEPS + 1):
        row: dict[str, object] = {
            "step": step,
            "train_loss": loss + 3.3 * math.exp(-step / 60) + chance.gauss(0, 0.05),
            "learning_rate": run.learning_rate,
            "gradient_norm": math.exp(chance.gauss(0, 0.3)),
            "log_z": 7.0,
        }
        if step % 20 == 1:
            row["inspection"] = {
                "gradient_norm": dict.fromkeys(parts, 0.3),
                "update_ratio": dict.fromkeys(parts, 1e-3),
                "stream_rms": [1.0] * 5,
                "position_similarity": [0.1] * 4,
                "largest_attention_logit": [5.0] * 4,
            }
        rows.append(json.dumps(row))
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    outcome = RunOutcome(
        loss, loss, 6.95, None, None, STEPS, STEPS * 1024, 0.12, 13.0, 37_000.0, 420 * 2**20
    )
    windows = {
        "losses": np.full(WINDOWS, loss),
        "n_targets": np.full(WINDOWS, 128),
    }
    safetensors.numpy.save_file(windows, folder / "validation.safetensors")
    record = {"id": run.id, "spec": run.spec.plain(), "outcome": asdict(outcome)}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    large = bl.presets.llama(
        d_model=8192, n_layers=80, n_heads=64, n_kv_heads=8, vocab_size=128_256
    ).with_changes({"block.feed_forward.d_ff": 28_672})
    seconds = []
    for _ in range(20):
        began = time.perf_counter()
        total = bl.count(large).total
        seconds.append(time.perf_counter() - began)
    print(f"counting {total:,} parameters: {1000 * min(seconds):.2f} ms")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "study"
        planned = question(asked.runs)
        asked_for = asking(planned)
        n_runs = made_up(planned, folder)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        command = [sys.executable, "-m", "blocklab", "report", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ)
        wall = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    memory = after.ru_maxrss * 1024
    print(f"asking after each of {n_runs:,} runs what is missing: {asked_for:.1f} s in all")
    print(
        f"reporting {n_runs:,} runs: {wall:.1f} s ({processor:.1f} s of processor time), "
        f"at most {memory / 2**20:,.0f} MiB"
    )
    if asked.json:
        found = {
            "count_ms": 1000 * min(seconds),
            "runs": n_runs,
            "asking_seconds": asked_for,
            "report_seconds": wall,
            "report_processor_seconds": processor,
            "report_memory": memory,
        }
        asked.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
