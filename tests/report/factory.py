"""Study results from plain values, as a study would make them, without training anything."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from blocklab.study import statistics
from blocklab.study.results import (
    Arm,
    ArmRole,
    Facts,
    Point,
    RatePoint,
    RunResult,
    Scale,
    StudyResult,
)

Losses = Mapping[tuple[int, float], float | None]
"""Validation loss by (seed, learning rate); None for a run that diverged."""

UNIGRAM = 5.94
VOCAB = 1024

CHANGES: Mapping[str, Mapping[str, object]] = {
    "layer-norm": {"block.norm.kind": "layer"},
    "plain-mlp": {"block.feed_forward": {"kind": "mlp", "activation": "gelu_tanh", "bias": False}},
    "post-norm": {"block.placement": "post"},
}


def facts(seeds: Sequence[int], rates: Sequence[float], **changes: object) -> Facts:
    plain = Facts(
        question="Which parts of the modern block earn their place?",
        budget="quick",
        command="blocklab ablate --budget quick --out out",
        corpus="python-library",
        tokenizer="bpe:1024",
        vocab_size=VOCAB,
        unigram_entropy=UNIGRAM,
        train_tokens=4_180_332,
        validation_tokens=214_016,
        scales=(Scale(279_616, 64, 4, 128, 8, 300),),
        seeds=tuple(seeds),
        learning_rates=tuple(rates),
        match="parameters",
        versions={
            "blocklab": "0.1.0", "torch": "2.11.0", "python": "3.11.9", "device": "cpu",
            "dtype": "float32", "threads": "1",
        },
        notes=("bf16 was not used: this machine has no fast path for it.",),
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def run(
    arm: str, seed: int, rate: float, loss: float | None, points: int = 120, steps: int = 300
) -> RunResult:
    """A run that ended at `loss`, with a curve that looks like one."""
    noise = random.Random(f"{seed}")
    own = random.Random(f"{arm} {seed} {rate}")
    start = math.log(VOCAB) + 0.03
    lost_at = None if loss is not None else own.randrange(steps // 4, steps)
    floor = (loss if loss is not None else 6.2) - 0.05
    curve = []
    for i in range(points):
        step = 1 + round(i * (steps - 1) / max(points - 1, 1))
        fall = math.exp(-step / (steps * 0.13)) * (start - floor) * 0.7
        slow = (start - floor) * 0.3 * (1 - step / steps) ** 2
        trained = floor + fall + slow + noise.gauss(0, 0.08) + own.gauss(0, 0.01)
        norm = (0.6 + 3 * math.exp(-step / 40)) * (loss or 6) / 4 * math.exp(noise.gauss(0, 0.25))
        gone = lost_at is not None and step >= lost_at
        curve.append(Point(step, None if gone else trained, rate, None if gone else norm))
        if gone:
            break
    return RunResult(
        id=f"{own.getrandbits(48):012x}",
        arm=arm,
        seed=seed,
        learning_rate=rate,
        validation_loss=loss,
        train_loss=None if loss is None else loss - 0.04,
        start_loss=start,
        diverged_at=lost_at,
        diverged_in=None if loss is not None else "gradient of blocks.2.attention.qkv.weight",
        steps=lost_at or steps,
        tokens=(lost_at or steps) * 1024,
        epochs=(lost_at or steps) * 1024 / 4_180_332,
        seconds=14.2,
        tokens_per_second=21_634.0 + own.random() * 900,
        peak_memory=612 * 2**20,
        curve=tuple(curve),
        validation_curve=((0, start),) if loss is None else ((0, start), (steps, loss)),
    )


def arm(
    name: str, role: ArmRole, losses: Losses, baseline: Arm | None = None, parameters: int = 279_616
) -> Arm:
    rates = sorted({rate for _, rate in losses})
    points = []
    for rate in rates:
        here = {seed: loss for (seed, r), loss in losses.items() if r == rate}
        finite = {seed: loss for seed, loss in here.items() if loss is not None}
        centre = statistics.mean(list(finite.values())) if finite else None
        spread = statistics.spread(list(finite.values()))
        points.append(RatePoint(rate, finite, len(here) - len(finite), centre, spread))
    alive = [p for p in points if p.mean is not None]
    best = min(alive, key=lambda p: (p.n_diverged, p.mean), default=None)
    effect = None
    if baseline is not None and best is not None and baseline.best_rate is not None:
        theirs = next(p for p in baseline.rates if p.learning_rate == baseline.best_rate)
        effect = statistics.paired_effect(best.losses, theirs.losses)
    edge = None
    if best is not None and len(rates) > 1:
        edge = {rates[0]: "lowest", rates[-1]: "highest"}.get(best.learning_rate)
    return Arm(
        name=name,
        role=role,
        changes=CHANGES.get(name, {} if role != "variant" else {"block.norm.kind": name}),
        matched={"block.feed_forward.d_ff": 248} if name == "plain-mlp" else {},
        n_parameters=parameters,
        flops_per_token=2_072_576,
        tokens_per_second=21_900.0,
        peak_memory=612 * 2**20,
        rates=tuple(points),
        best_rate=best.learning_rate if best else None,
        edge=edge,
        mean=best.mean if best else None,
        spread=best.spread if best else None,
        n_diverged=sum(p.n_diverged for p in points),
        n_runs=len(losses),
        n_stalled=sum(abs(v - UNIGRAM) < 0.05 for v in best.losses.values()) if best else 0,
        n_at_best=len(best.losses) + best.n_diverged if best else 0,
        effect=effect,
    )


def study(losses: Mapping[str, Losses], points: int = 120, **changes: object) -> StudyResult:
    """The first name is the baseline; one called `placebo` is the placebo; all others variants."""
    arms: list[Arm] = []
    for name, own in losses.items():
        role: ArmRole = "baseline" if not arms else "placebo" if name == "placebo" else "variant"
        arms.append(arm(name, role, own, arms[0] if arms else None, 279_616 + 37 * len(arms)))
    runs = [
        run(name, seed, rate, loss, points)
        for name, own in losses.items()
        for (seed, rate), loss in own.items()
    ]
    every = [key for own in losses.values() for key in own]
    seeds, rates = sorted({s for s, _ in every}), sorted({r for _, r in every})
    return StudyResult(facts(seeds, rates, **changes), tuple(arms), tuple(runs))


def modern_block(
    seeds: int = 3, rates: Sequence[float] = (3e-3, 1e-2), points: int = 120
) -> StudyResult:
    """The study of the modern block with the figures that were measured for the design."""
    level = {
        "modern": {3e-3: 4.13, 1e-2: 3.627, 3e-2: 3.68},
        "layer-norm": {3e-3: 4.14, 1e-2: 3.628, 3e-2: 3.70},
        "plain-mlp": {3e-3: 4.20, 1e-2: 3.748, 3e-2: 3.83},
        "post-norm": {3e-3: 4.34, 1e-2: 5.94, 3e-2: None},
        "placebo": {3e-3: 4.12, 1e-2: 3.634, 3e-2: 3.69},
    }
    losses: dict[str, dict[tuple[int, float], float | None]] = {}
    for name, by_rate in level.items():
        losses[name] = {}
        for seed in range(seeds):
            for rate in rates:
                base = by_rate[rate]
                shared = random.Random(seed).gauss(0, 0.03)
                own = random.Random(f"{name}{seed}{rate}").gauss(0, 0.012)
                lost = base is None and seed != 1
                losses[name][seed, rate] = None if lost else (base or 5.97) + shared + own
    return study(losses, points)
