"""Whole studies from made-up losses: the real plan, courses, readings and verdicts, no training."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from blocklab.study.course import all_courses, courses, missing_runs
from blocklab.study.evidence import at_look
from blocklab.study.folder import Circumstances
from blocklab.study.plan import PlannedRun, plan
from blocklab.study.results import Point, RunResult, StudyResult, Text
from blocklab.study.stored import collected
from blocklab.study.study import Study

LossOf = Callable[[PlannedRun], float | None]
"""Final loss of a planned run; None where it diverges."""

TEXT = Text("f", 1024, "bpe:1024", 5.94, 4_180_332, 214_016)

POST = {"post": {"block.placement": "post"}}
TWO = {**POST, "ln": {"block.norm.kind": "layer"}}
INITIALIZATIONS = {"initialization": [{"kind": "normal", "std": 0.02}, {"kind": "fan_in"}]}


class Made:
    """Stands for a study's folder: its runs end as `loss` says."""

    path = Path("/nowhere")

    def __init__(self, loss: LossOf):
        self.loss, self.runs = loss, {}

    def known(self):
        return {name: self.loss(run) for name, run in self.runs.items()}

    def windows_of(self, run):
        noise = np.random.default_rng(1).normal(0, 0.3, 200)
        return self.loss(run) + noise - noise.mean(), np.full(200, 1000.0)

    def result_of(self, run):
        loss = self.loss(run)
        return RunResult(
            id=run.id,
            arm=run.arm,
            seed=run.seed,
            learning_rate=run.learning_rate,
            validation_loss=loss,
            train_loss=None if loss is None else loss - 0.04,
            start_loss=6.95,
            diverged_at=30 if loss is None else None,
            diverged_in="loss" if loss is None else None,
            steps=300,
            tokens=300 * 1024,
            epochs=0.1,
            seconds=14.0,
            tokens_per_second=20_000.0,
            peak_memory=6 * 10**8,
            cell=run.cell,
            rung=run.rung,
        )

    def with_curves(self, result):
        end = result.validation_loss or 6.2
        points = [
            Point(k, 6.95 + (end - 6.95) * (1 - math.exp(-k / 60)), result.learning_rate, 1.0)
            for k in range(1, 300, 25)
        ]
        return replace(result, curve=tuple(points))


def study(**changes: object) -> Study:
    """A searched study of five seeds with two variants."""
    plain = {
        "question": "Q?",
        "baseline": {
            "name": "modern", "preset": "modern", "d_model": 64, "n_layers": 4, "n_heads": 4,
            "context_length": 128,
        },
        "variants": TWO,
        "training": {
            "tokens": 300 * 1024, "batch_size": 8, "learning_rates": [1e-3, 3e-3, 1e-2],
        },
    }  # fmt: skip
    return Study.parse({**plain, **changes})


def simulated(asked: Study, loss: LossOf, most: int | None = None) -> StudyResult:
    """The study's result when its runs end so; `most` runs, as if it were interrupted."""
    planned, place = plan(asked, TEXT), Made(loss)
    while True:
        known = place.known()
        at = at_look(planned, courses(planned, known), place.windows_of)
        missing = missing_runs(all_courses(at, known), known)
        if most is not None:
            missing = missing[: most - len(place.runs)]
        if not missing:
            return collected(planned, Circumstances(TEXT, "blocklab ablate x", {}), place)
        place.runs |= {run.id: run for run in missing}


def bowl(run: PlannedRun, best: float = 3e-3, bend: float = 0.05, noise: float = 0.002) -> float:
    """A loss that is lowest at the best rate, with what seeds share and what each run adds."""
    away = math.log(run.learning_rate / best, 3)
    shared = 0.02 * _draw(run.seed, run.cell, run.rung)
    own = noise * _draw(run.arm, run.seed, run.learning_rate, run.cell, run.rung)
    return 3.6 + bend * away * away + shared + own


def _draw(*of: object) -> float:
    return random.Random(repr(of)).gauss(0, 1)
