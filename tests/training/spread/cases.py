"""What is trained by two processes in these tests, and what each of them does.

Run by torchrun as a script: `cases.py FOLDER`. Rank 0 writes what came out.
"""

import json
import sys
import zlib
from pathlib import Path

import torch

from blocklab.record import with_changes
from blocklab.torchrun import leave
from blocklab.training.config import TrainingConfig
from blocklab.training.numerics import Numerics
from blocklab.training.ranks import ALONE, Alone, joined
from blocklab.training.run import RunSpec, Stopped, train_run
from blocklab.training.spread import whole
from blocklab.training.trainer import Trainer
from tests.study.engines.small_runs import small_run, small_text
from tests.training.test_trainer import tiny

STEPS = 4
VOCABULARY = 11  # two processes cannot hold as many rows each

MATRIX = "blocks.0.attention.output.weight"

CASES = {
    "modern": ({}, {}),
    "tied": ({"tie_embeddings": True}, {}),
    "learned positions": ({"positions.kind": "learned"}, {}),
    "post-norm": ({"block.placement": "post"}, {}),
    "experts": ({"block.feed_forward.kind": "experts"}, {}),
    "experts in micro-batches": (
        {"block.feed_forward.kind": "experts", "block.feed_forward.balance": 1.0},
        {"accumulation": 2, "batch_size": 5},
    ),
    "scaled residuals": ({"block.residual.kind": "scaled"}, {}),
    "head with a bias": ({"head.bias": True}, {}),
    "micro-batches": ({}, {"accumulation": 2}),
    "uneven shares": ({}, {"batch_size": 5}),
    "sgd": ({}, {"optimizer.kind": "sgd"}),
    "muon": ({}, {"optimizer.kind": "muon"}),
    "half precision": ({}, {"numerics": "bfloat16"}),
    "diverging": ({}, {"learning_rate": 1e30, "clip": None}),
}


def trained(name: str, ranks: Alone = ALONE) -> dict[str, object]:
    """Some steps and an evaluation of a case, as numbers."""
    changes, recipe = CASES[name]
    usual = {"batch_size": 4, "learning_rate": 1e-2, "steps": STEPS, "inspect_every": 3}
    recipe = usual | recipe
    dtype = recipe.pop("numerics", "float32")
    tokens = torch.randint(VOCABULARY, (700,), generator=torch.Generator().manual_seed(0))
    trainer = Trainer(
        tiny(vocab_size=VOCABULARY).with_changes(changes),
        corpus=tokens,
        training=with_changes(TrainingConfig(), recipe),
        seed=5,
        numerics=Numerics(dtype=dtype),
        ranks=ranks,
    )
    matrix = trainer.model.get_parameter(MATRIX)
    before = whole(matrix.detach()).clone()
    steps = list(trainer.steps(1))
    moved = whole(matrix.detach()) - before
    steps += trainer.steps(STEPS)
    evaluation = trainer.evaluation() if trainer.diverged is None else None
    weights = {path: whole(p.detach()) for path, p in trainer.model.named_parameters()}
    return {
        "losses": [step.train_loss for step in steps],
        "norms": [step.gradient_norm for step in steps],
        "log_z": [step.log_z for step in steps],
        "looks": [step.inspection.update_ratio for step in steps if step.inspection is not None],
        "diverged": None if trainer.diverged is None else str(trainer.diverged),
        "moved": moved.flatten().tolist(),
        "windows": [] if evaluation is None else evaluation.losses.tolist(),
        "weights": {path: weight.double().norm().item() for path, weight in weights.items()},
    }


def held(ranks: Alone) -> float:
    """Share of the parameters that this process holds."""
    trainer = Trainer(tiny(vocab_size=64), corpus=torch.arange(64).repeat(9), ranks=ranks)
    parts = [p.to_local().numel() for p in trainer.model.parameters()]
    return sum(parts) / sum(p.numel() for p in trainer.model.parameters())


def stopped_and_resumed(folder: Path, ranks: Alone) -> dict[str, object]:
    """Bits of a run in one go, and of one that the other process asked to stop."""
    text = ranks.told(lambda: small_text(folder))
    spec = small_run(text, 9, processes=2)
    spec = RunSpec.parse(spec.plain() | {"model": spec.model.plain() | {"dropout": 0.1}})
    outcome = train_run(spec, folder / "whole", text[1], ranks=ranks)
    asked = 0

    def ask_once() -> bool:
        nonlocal asked
        asked += 1
        return asked == 4 and not ranks.leads

    stopped = False
    try:
        train_run(spec, folder / "parts", text[1], ranks=ranks, should_stop=ask_once)
    except Stopped:
        stopped = True
    left = [path.name for path in (folder / "parts").glob("checkpoint*")]
    train_run(spec, folder / "parts", text[1], ranks=ranks)
    return {
        "stopped": stopped,
        "left": left,
        "loss": outcome.validation_loss,
        "bits": [
            [zlib.crc32((folder / run / name).read_bytes()) for run in ("whole", "parts")]
            for name in ("model.safetensors", "validation.safetensors", "metrics.jsonl")
            if ranks.leads
        ],
    }


def main() -> None:
    folder = Path(sys.argv[1])
    with joined("cpu") as (ranks, _):
        said = ranks.sums(1.0, ranks.rank), ranks.any(False, ranks.rank == 1)
        found = {
            "processes": ranks.size,
            "said": said,
            "held": ranks.sums(held(ranks)),
            "cases": {name: trained(name, ranks) for name in CASES},
            "run": stopped_and_resumed(folder, ranks),
        }
        if ranks.leads:
            (folder / "found.json").write_text(json.dumps(found))
        ranks.any(False)  # wait for it
    leave(0)


if __name__ == "__main__":
    main()
