"""From a question to what can be trained: the arms with their sizes matched, cell by cell."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.model.count import count
from blocklab.record import with_changes
from blocklab.study.looks import ONE_LOOK, Look, first_look, second_look
from blocklab.study.matching import MEASURES, WIDTH, matched, states_width
from blocklab.study.plugins import used_by
from blocklab.study.results import IN_FLOAT32, ArmRole, Axis, Text
from blocklab.study.statistics import Estimate
from blocklab.study.study import PLACEBO, Changes, Study, StudyTraining, is_of_the_study
from blocklab.training.numerics import Numerics
from blocklab.training.run import RunSpec
from blocklab.training.texts import resolved_vocabulary

SWEPT = "training.validation_tokens"
"""The one path of training that decides what the loss is measured on."""


@dataclass(frozen=True)
class PlannedArm:
    """One arm in one cell of the nuisances, before it is trained: what has a curve over rates."""

    name: str
    role: ArmRole
    config: ModelConfig
    training: StudyTraining
    changes: Changes = field(default_factory=dict)
    """As declared."""
    matched: Changes = field(default_factory=dict)
    """Solved so that sizes match."""
    draw: str = ""
    levels: Mapping[str, str] = field(default_factory=dict)
    """Level of every nuisance in this cell, in words."""

    @property
    def cell(self) -> str:
        """Name of the cell; empty without nuisances."""
        return ", ".join(f"{path} {level}" for path, level in self.levels.items())


@dataclass(frozen=True)
class PlannedRun:
    """One run of an arm."""

    arm: str
    cell: str
    rung: str
    seed: int
    learning_rate: float
    spec: RunSpec

    @cached_property
    def id(self) -> str:
        """The record's: asked for again whenever a run is finished, and long to write out."""
        return self.spec.id

    @cached_property
    def steps(self) -> int:
        """Optimiser steps it takes."""
        return self.spec.training.n_steps(self.spec.model.context_length) or 0


@dataclass(frozen=True)
class Plan:
    """Everything that can be trained; which of it is needed, `course` says."""

    study: Study
    text: Text
    arms: tuple[PlannedArm, ...]
    """Cell by cell; in each the baseline first, the placebo last."""
    plugins: Mapping[str, str] = field(default_factory=dict)
    rung: str = ""
    """Name of the ladder's rung that this is the plan of; empty for the study itself."""
    ladder: tuple["PlannedRung", ...] = ()
    earlier: Mapping[str, Estimate] | None = None
    """The first look's effects, where the study looks twice and has come to the second."""
    made: dict[tuple[str, str, str, int, float], PlannedRun] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Runs that were asked for before, by rung, arm, cell, seed and rate: each is made once."""

    @property
    def whole(self) -> tuple["Plan", ...]:
        """The study's own plan and those of its ladder's rungs."""
        return (self, *(rung.plan for rung in self.ladder))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The reporting seeds."""
        looks = self.study.looks
        return tuple(range(1, looks[0 if self.earlier is None else -1] + 1))

    @property
    def look(self) -> Look:
        """What its verdicts pay for looking."""
        if self.study.seeds != "two-look":
            return ONE_LOOK
        return first_look() if self.earlier is None else second_look(self.earlier)

    @property
    def judging_seeds(self) -> tuple[int, ...]:
        """Those that verdicts come from: all but the ones that were looked at before."""
        return self.seeds[self.study.looked :]

    @property
    def cells(self) -> tuple["Plan", ...]:
        """The same plan for each cell alone."""
        names = dict.fromkeys(arm.cell for arm in self.arms)
        return tuple(
            replace(self, arms=tuple(arm for arm in self.arms if arm.cell == name))
            for name in names
        )

    @property
    def numerics(self) -> Numerics:
        """In which every run computes."""
        return self.study.numerics or Numerics()

    @property
    def repeats_in_float32(self) -> bool:
        """Whether one run of every arm is due once more in full precision."""
        half = self.numerics.dtype != "float32"
        return self.study.repeat_in_float32 and half and not self.rung

    def run_in_float32(self, arm: PlannedArm, rate: float) -> PlannedRun | None:
        """The first reporting seed's run once more in full precision; None where none is due."""
        if not self.repeats_in_float32:
            return None
        plain = Numerics(threads=self.numerics.threads, device=self.numerics.device)
        return self._once(IN_FLOAT32, arm, self.seeds[0], rate, plain)

    def run(self, arm: PlannedArm, seed: int, rate: float) -> PlannedRun:
        """One run of one of the arms."""
        return self._once(self.rung, arm, seed, rate, self.numerics)

    def _once(
        self, rung: str, arm: PlannedArm, seed: int, rate: float, numerics: Numerics
    ) -> PlannedRun:
        key = (rung, arm.name, arm.cell, seed, rate)
        if key not in self.made:
            spec = self._spec(arm, seed, rate, numerics)
            self.made[key] = PlannedRun(arm.name, arm.cell, rung, seed, rate, spec)
        return self.made[key]

    def _spec(self, arm: PlannedArm, seed: int, rate: float, numerics: Numerics) -> RunSpec:
        return RunSpec(
            model=arm.config,
            training=arm.training.at(rate),
            data=self.study.data,
            data_fingerprint=self.text.fingerprint,
            seed=seed,
            metrics=self.study.metrics,
            draw=arm.draw,
            numerics=numerics,
            plugins=used_by(arm.config, self.plugins) | used_by(arm.training, self.plugins),
        )


@dataclass(frozen=True)
class PlannedRung:
    """The study again at another size, or for a shorter training."""

    axis: Axis
    size: float
    """Parameters of the baseline, or tokens of a run."""
    plan: Plan


def plan(study: Study, text: Text, plugins: Mapping[str, str] | None = None) -> Plan:
    """The arms of a study in every cell of its nuisances and on every rung; nothing is built.

    Raises BlocklabError naming the variant, the nuisance, or the rung that is wrong.
    """
    made = _plan(study, text, plugins or {})
    _require_different_cells(made)
    ladder = tuple(_rungs(made))
    _require_different_sizes(made, ladder)
    return replace(made, ladder=ladder)


def _plan(study: Study, text: Text, plugins: Mapping[str, str], rung: str = "") -> Plan:
    arms: list[PlannedArm] = []
    for levels in _cells(study):
        arms += _arms_of_cell(study, text, levels, rung)
    return Plan(study, text, tuple(arms), dict(plugins), rung)


def settings(cell: Plan) -> tuple[Plan, ...]:
    """All cells of the plan that `cell` is one of."""
    return _plan(cell.study, cell.text, cell.plugins, cell.rung).cells


def _require_different_cells(made: Plan) -> None:
    """Two cells with the same runs would say of a nuisance that nothing depends on it."""
    seen: dict[tuple[str, str], PlannedArm] = {}
    for arm in made.arms if made.study.nuisances else ():
        # Not `run`, which knows a cell by its words: two values may have the same ones.
        run = made._spec(arm, 1, arm.training.learning_rates[0], made.numerics).id
        other = seen.setdefault((arm.name, run), arm)
        if other is arm:
            continue
        where = f"trains the same at {other.cell} as at {arm.cell}"
        if arm.role == "variant":
            raise BlocklabError(
                f"variants.{arm.name}: {where}: what it sets overrides the nuisance; it cannot be "
                "both"
            )
        raise BlocklabError(f"nuisances: every arm {where}; drop one")


def _rungs(whole: Plan) -> Iterator[PlannedRung]:
    """Each is a study of its own, with its own schedule and its own search of the rates."""
    study, base = whole.study, whole.arms[0]
    tokens, size = n_tokens(base), count(base.config).total
    for share in study.ladder.tokens:
        yield _rung(whole, "tokens", {}, round(tokens * share), f"{share:g} of the tokens")
    for i, changes in enumerate(study.ladder.sizes):
        try:
            config = resolved_vocabulary(
                study.baseline.config().with_changes(changes), whole.text.vocab_size
            )
        except BlocklabError as error:
            raise BlocklabError(f"ladder.sizes.{i}: {error}") from None
        name = ", ".join(f"{path} {_level(value)}" for path, value in changes.items())
        share = count(config).total / size
        yield _rung(whole, "parameters", changes, round(tokens * share), name)


def own_size(whole: Plan, axis: Axis) -> int:
    """Where the study itself stands on an axis of its ladder."""
    base = whole.arms[0]
    return n_tokens(base) if axis == "tokens" else count(base.config).total


def _require_different_sizes(whole: Plan, ladder: Sequence[PlannedRung]) -> None:
    """A trend needs them, and must not learn so when everything is trained."""
    seen = {(axis, own_size(whole, axis)): "the study itself" for axis in ("parameters", "tokens")}
    for rung in ladder:
        other = seen.setdefault((rung.axis, int(rung.size)), rung.plan.rung)
        if other != rung.plan.rung:
            raise BlocklabError(
                f"ladder: {rung.plan.rung} has as many {rung.axis} as {other} "
                f"({int(rung.size):,}); a ladder needs different sizes"
            )


def _rung(whole: Plan, axis: Axis, changes: Changes, tokens: int, name: str) -> PlannedRung:
    model = whole.study.baseline.config().with_changes(changes)
    training = whole.study.training.with_tokens(tokens)
    study = Study.parse(
        whole.study.plain()
        | {
            "baseline": {"name": whole.study.baseline.name, "model": model.plain()},
            "training": training.plain(),
            "ladder": {},
            "interactions": {},
            "placebo": False,
        }
    )
    try:
        made = _plan(study, whole.text, whole.plugins, name)
    except BlocklabError as error:
        raise BlocklabError(f"ladder: at {name}: {error}") from None
    base = made.arms[0]
    size = n_tokens(base) if axis == "tokens" else count(base.config).total
    return PlannedRung(axis, size, made)


def n_tokens(arm: PlannedArm) -> int:
    """Tokens that one run of an arm is trained on."""
    steps = arm.training.n_steps(arm.config.context_length) or 0
    return steps * arm.training.batch_size * arm.config.context_length


def _cells(study: Study) -> Iterator[Changes]:
    """Every combination of the nuisances' values; a single empty one without nuisances."""
    for values in itertools.product(*study.nuisances.values()):
        yield dict(zip(study.nuisances, values, strict=True))


def _arms_of_cell(study: Study, text: Text, levels: Changes, rung: str) -> Iterator[PlannedArm]:
    said = {path: _level(value) for path, value in levels.items()}
    try:
        config, recipe = _changed(study.baseline.config(), study.training, levels)
    except BlocklabError as error:
        raise BlocklabError(f"nuisances: {error}") from None
    _require_room(config, text)
    baseline = PlannedArm(
        study.baseline.name,
        "baseline",
        resolved_vocabulary(config, text.vocab_size),
        recipe,
        levels=said,
    )
    if baseline.training.n_steps(baseline.config.context_length) is None:
        raise BlocklabError("training.tokens: how long? give it, or training.steps")
    yield baseline
    for name, changes in study.variants.items():
        yield _variant(name, changes, baseline, study, text, rung)
    if study.placebo:
        yield replace(baseline, name=PLACEBO, role="placebo", draw=PLACEBO)


def _require_room(config: ModelConfig, text: Text) -> None:
    """A nuisance or a rung may ask for a longer context than the baseline has."""
    shortest = min(text.train_tokens, text.validation_tokens)
    if 0 < shortest <= config.context_length:
        raise BlocklabError(
            f"context_length: {config.context_length}: one window needs a token more, and the "
            f"shorter part of the text has {shortest:,}; give more text or a shorter context"
        )


def _variant(
    name: str, changes: Changes, baseline: PlannedArm, study: Study, text: Text, rung: str
) -> PlannedArm:
    if any(path.split(".")[0] == "data" or path == SWEPT for path in changes):
        raise BlocklabError(
            f"variants.{name}: a variant cannot change data or {SWEPT}, the loss would be of "
            "another text"
        )
    try:
        config, recipe = _changed(baseline.config, baseline.training, changes)
        # Of a text that is not read yet the vocabulary is only assumed.
        if config.vocab_size is None or text.train_tokens:
            config = resolved_vocabulary(config, text.vocab_size)
        _require_the_same_windows(config, baseline.config)
        fitted = config
        if config != baseline.config and not states_width(changes, config):
            measure = MEASURES.get(study.match)
            timed = study.widths.get(width_key(name, baseline, rung))
            if measure is not None:
                fitted = matched(config, measure(baseline.config), measure)
            elif timed is not None:
                fitted = config.with_changes({WIDTH: timed})
    except BlocklabError as error:
        raise BlocklabError(f"variants.{name}: {error}") from None
    solved: Changes = {}
    if fitted != config:
        solved[WIDTH] = fitted.block.feed_forward.d_ff  # type: ignore[attr-defined]
    return PlannedArm(
        name, "variant", fitted, recipe, dict(changes), solved, levels=baseline.levels
    )


def _require_the_same_windows(config: ModelConfig, baseline: ModelConfig) -> None:
    if config.context_length != baseline.context_length:
        raise BlocklabError(
            f"context_length: a variant cannot change it ({baseline.context_length} to "
            f"{config.context_length}): its loss would be over other windows, in which each token "
            "is predicted from more or less text. Set it in the baseline, or name it under "
            "nuisances, where all arms of a comparison have it"
        )


def width_key(variant: str, baseline: PlannedArm, rung: str) -> str:
    """What a width that was solved by measurement is kept under."""
    return " / ".join(filter(None, (rung, baseline.cell, variant)))


def _changed(
    config: ModelConfig, training: StudyTraining, changes: Changes
) -> tuple[ModelConfig, StudyTraining]:
    """Both records with the changes that address them."""
    for path in filter(is_of_the_study, changes):
        raise BlocklabError(
            f"{path}: belongs to the study, not to an arm; state it in the study's file, outside"
        )
    model = {path: value for path, value in changes.items() if path.split(".")[0] != "training"}
    recipe = {
        path.removeprefix("training."): value
        for path, value in changes.items()
        if path not in model
    }
    return config.with_changes(model), with_changes(training, recipe, at="training")


def _level(value: object) -> str:
    """A nuisance's value in words: `fan_in`, `normal (std 0.02)`, `0.1`."""
    if not isinstance(value, Mapping):
        return str(value)
    rest = ", ".join(f"{key} {inner}" for key, inner in value.items() if key != "kind")
    kind = str(value.get("kind", ""))
    return f"{kind} ({rest})" if kind and rest else kind or rest
