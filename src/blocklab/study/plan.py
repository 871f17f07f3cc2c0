"""From a question to runs: the arms with their sizes matched, and one record for every run."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.record import with_changes
from blocklab.study.matching import MEASURES, WIDTH, matched
from blocklab.study.results import ArmRole, Text
from blocklab.study.study import PLACEBO, Changes, Study, StudyTraining
from blocklab.training.run import RunSpec
from blocklab.training.trainer import resolved_vocabulary


@dataclass(frozen=True)
class PlannedArm:
    """One arm before it is trained."""

    name: str
    role: ArmRole
    config: ModelConfig
    training: StudyTraining
    changes: Changes = field(default_factory=dict)
    """As declared."""
    matched: Changes = field(default_factory=dict)
    """Solved so that sizes match."""
    draw: str = ""


@dataclass(frozen=True)
class PlannedRun:
    """One run of an arm."""

    arm: str
    seed: int
    learning_rate: float
    spec: RunSpec


@dataclass(frozen=True)
class Plan:
    """Everything a study will train."""

    study: Study
    arms: tuple[PlannedArm, ...]
    """The baseline first, the placebo last."""
    runs: tuple[PlannedRun, ...]
    """Seed by seed, so that an interrupted study has whole pairs."""

    @property
    def n_steps(self) -> int:
        """Optimiser steps of all runs together."""
        return sum(self.steps_of(run) for run in self.runs)

    def steps_of(self, run: PlannedRun) -> int:
        return run.spec.training.n_steps(run.spec.model.context_length) or 0


def plan(study: Study, text: Text, plugins: Mapping[str, str] | None = None) -> Plan:
    """The arms and runs of a study; nothing is built.

    Raises BlocklabError naming the variant that is wrong.
    """
    baseline = PlannedArm(
        study.baseline.name,
        "baseline",
        resolved_vocabulary(study.baseline.config(), text.vocab_size),
        study.training,
    )
    if baseline.training.n_steps(baseline.config.context_length) is None:
        raise BlocklabError("training.tokens: how long? give it, or training.steps")
    arms = [baseline]
    for name, changes in study.variants.items():
        arms.append(_variant(name, changes, baseline, study))
    if study.placebo:
        arms.append(
            PlannedArm(PLACEBO, "placebo", baseline.config, baseline.training, draw=PLACEBO)
        )
    return Plan(study, tuple(arms), tuple(_runs(study, arms, text, dict(plugins or {}))))


def _variant(name: str, changes: Changes, baseline: PlannedArm, study: Study) -> PlannedArm:
    model = {path: value for path, value in changes.items() if path.split(".")[0] != "training"}
    training = {
        path.removeprefix("training."): value
        for path, value in changes.items()
        if path not in model
    }
    if any(path.split(".")[0] == "data" for path in model):
        raise BlocklabError(
            f"variants.{name}: a variant cannot change data, the loss would be of another text"
        )
    try:
        config = baseline.config.with_changes(model)
        recipe = with_changes(baseline.training, training, at="training")
    except BlocklabError as error:
        raise BlocklabError(f"variants.{name}: {error}") from None
    measure = MEASURES.get(study.match)
    fitted = config
    if measure is not None and WIDTH not in changes and config != baseline.config:
        fitted = matched(config, measure(baseline.config), measure)
    solved: Changes = {}
    if fitted != config:
        solved[WIDTH] = fitted.block.feed_forward.d_ff  # type: ignore[attr-defined]
    return PlannedArm(name, "variant", fitted, recipe, dict(changes), solved)


def _runs(
    study: Study, arms: list[PlannedArm], text: Text, plugins: dict[str, str]
) -> Iterator[PlannedRun]:
    for seed, arm in itertools.product(range(1, study.seeds + 1), arms):
        for rate in arm.training.learning_rates:
            spec = RunSpec(
                model=arm.config,
                training=arm.training.at(rate),
                data=study.data,
                data_fingerprint=text.fingerprint,
                seed=seed,
                draw=arm.draw,
                numerics=study.numerics,
                plugins=plugins,
            )
            yield PlannedRun(arm.name, seed, rate, spec)
