"""Does every arm do what it says, and only that? Asked before a second is spent on training it.

Untrained models are built, taken apart and probed; the first finding is an error that names the
variant. Not for what training brings: see `training.stability`.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.model.block import StandardBlock
from blocklab.model.config import ModelConfig
from blocklab.model.count import count
from blocklab.model.transformer import Transformer
from blocklab.parts.linear import in_plain_torch
from blocklab.record import with_changes
from blocklab.study import part_probes, probes
from blocklab.study.differences import (
    Anatomy,
    anatomy,
    bits,
    differing,
    leaves,
    unexplained_leaves,
    unexplained_places,
)
from blocklab.study.plan import Plan, PlannedArm, settings
from blocklab.study.probes import PROBE_SEED
from blocklab.study.study import StudyTraining
from blocklab.training.numerics import using_threads
from blocklab.training.optimizer import NamedParameter

SMALL = 10_000_000
"""Parameters below which a model is probed by one thread."""


@dataclass(frozen=True)
class Difference:
    """In what an untrained variant differs from the baseline."""

    arm: str
    modules: tuple[str, ...]
    """Paths of modules that are there in one alone, or of another class or setting."""
    parameters: tuple[str, ...]
    """Paths of parameters that are there in one alone, or of another shape."""
    first_values: tuple[str, ...]
    """Paths of parameters of one shape that start from other values."""
    logits: float | None
    """Largest difference of a logit at step 0; None where they are of other tokens."""
    training: tuple[str, ...]
    """Paths of the training record."""
    idle: tuple[str, ...]
    """Declared paths that only say what the model would resolve without them."""

    @property
    def sentence(self) -> str:
        """Where it was seen, before any training."""
        found = [
            f"{what}: {_summed_up(paths)}"
            for what, paths in (
                ("other modules", self.modules),
                ("other parameters", self.parameters),
                ("other first values", self.first_values),
                ("another recipe", self.training),
            )
            if paths
        ]
        if self.logits == 0:
            found.append("logits at step 0 are equal")
        elif self.logits is not None:
            found.append(f"logits at step 0 move by up to {self.logits:.3g}")
        if self.idle:
            found.append(f"says only what is so anyway: {', '.join(self.idle)}")
        return "; ".join(found)


Computes: TypeAlias = tuple[object, ...]
"""Whatever a change could show in, to the last bit, names left out: whether each parameter decays,
its first values and its gradient, the losses in training and the logits in evaluation."""

Recipe: TypeAlias = tuple[ModelConfig, StudyTraining]


@dataclass(frozen=True)
class _Examined:
    """What is kept of an arm whose model was built and probed."""

    model: Transformer
    anatomy: Anatomy
    first_logits: Tensor
    """Of the untouched model, (B, T, V)."""
    computes: Computes


def require_differences(plan: Plan) -> tuple[Difference, ...]:
    """In what each variant differs; what would make a comparison void is refused here.

    Raises BlocklabError, naming the variant, when it trains what the baseline or another variant
    trains; when a declared path takes no effect; when something differs that no declared path
    explains; when a part is not called, gets no gradient, sees the future or does not do what its
    kind says; when the optimiser misses a parameter; when the loss at step 0 is above ln V + 1.
    Raises it too when two settings of the nuisances train the same.
    """
    # Threads that wait for one another on busy cores made it 30 times slower (measured).
    largest = max(count(arm.config).total for arm in plan.arms)
    threads = 1 if largest < SMALL else torch.get_num_threads()
    # A part that a user wrote again is the same part, whoever multiplies.
    with using_threads(threads), in_plain_torch():
        found = tuple(_differences([arm for arm in plan.arms if arm.role != "placebo"]))
        if plan.study.nuisances:
            _require_different_settings(plan)
        return found


def _require_different_settings(plan: Plan) -> None:
    """Two records may be one model: null and what it resolves to. Asked once, of the first cell."""
    cells = settings(plan)
    if plan.arms[0].cell != cells[0].arms[0].cell:
        return
    known: dict[tuple[str, str], Computes] = {}

    def computes(arm: PlannedArm) -> Computes:
        key = (arm.name, arm.cell)
        if key not in known:
            known[key] = _computes(arm.config)
        return known[key]

    def alike(arm: PlannedArm, other: PlannedArm) -> bool:
        recipes = (arm.config, arm.training), (other.config, other.training)
        return _steps_alike(*recipes) and computes(arm) == computes(other)

    for one, other in itertools.combinations(cells, 2):
        if all(alike(*pair) for pair in zip(one.arms, other.arms, strict=True)):
            raise BlocklabError(
                f"nuisances: every arm trains the same at {one.arms[0].cell} as at "
                f"{other.arms[0].cell}, in other words; drop one"
            )


def _differences(arms: Sequence[PlannedArm]) -> Iterator[Difference]:
    baseline, *others = arms
    own = _examined(baseline, "baseline")
    before: dict[str, tuple[PlannedArm, Computes]] = {}
    for arm in others:
        name = f"variants.{arm.name}"
        _require_another_record(arm, baseline, name)
        examined = own if arm.config == baseline.config else _examined(arm, name)
        _raise_first(name, probes.ill_grouped(examined.model, arm.training.optimizer))
        _require_effect(arm, examined.computes, baseline, own.computes, name)
        for other, (twin, computes) in before.items():
            if _trains_the_same(arm, examined.computes, twin, computes):
                raise BlocklabError(f"{name}: trains what {other} trains; drop one of them")
        before[name] = (arm, examined.computes)
        difference = _difference(arm, baseline, examined, own)
        _require_declared(difference, arm, baseline, name)
        idle = _idle_paths(arm, baseline, examined.computes, name)
        yield replace(difference, idle=idle)


def _require_another_record(arm: PlannedArm, baseline: PlannedArm, name: str) -> None:
    if arm.config == baseline.config and arm.training == baseline.training:
        raise BlocklabError(
            f"{name}: does not differ from the baseline; every path is set to the value it has "
            "there"
        )


def _require_effect(
    arm: PlannedArm, computes: Computes, baseline: PlannedArm, own: Computes, name: str
) -> None:
    if not _trains_the_same(arm, computes, baseline, own):
        return
    if arm.config == baseline.config:
        what, same = "training", "the same steps, rates and updates"
    else:
        what, same = "model", "same parameters, logits and gradients at step 0"
    raise BlocklabError(
        f"{name}: the record differs from the baseline but the {what} does not: {same}. The "
        "change takes no effect"
    )


@contextmanager
def _named(name: str) -> Iterator[None]:
    """What is wrong inside is said of this arm."""
    try:
        yield
    except BlocklabError as error:
        raise BlocklabError(f"{name}: {error}") from error


def _examined(arm: PlannedArm, name: str) -> _Examined:
    """Build and probe one arm; the first finding is raised under its name."""
    try:
        with _named(name):
            model = Transformer(arm.config, seed=PROBE_SEED)
            built, logits = anatomy(model), probes.evaluated(model)
        _raise_first(name, probes.starts_too_high(model, logits))
        _raise_first(name, part_probes.norm_statistics(model))
        probes.shake(model)
        with _named(name):
            traced = probes.training_pass(model)
        for findings in (
            probes.never_called(model, traced),
            probes.without_gradient(model, traced),
            probes.ill_grouped(model, arm.training.optimizer),
            probes.draws_wrongly(model),
            part_probes.wrong_keys(model),
            probes.sees_the_future(model),
            part_probes.wrong_places(model),
            part_probes.wrong_identity_path(model),
        ):
            _raise_first(name, findings)
        return _Examined(model, built, logits, _computed(model, built, traced))
    except BlocklabError:
        raise
    except Exception as error:
        error.add_note(f"while probing {name}, before anything was trained")
        raise


def _raise_first(name: str, findings: Iterator[str]) -> None:
    found = next(findings, None)
    if found is not None:
        raise BlocklabError(f"{name}: {found}")


def _computed(model: Transformer, built: Anatomy, traced: probes.TrainingPass) -> Computes:
    roles = {path: spec.role for path, spec in model.config.parameters().items()}
    weights = sorted(
        (NamedParameter(path, roles[path], p).is_matrix, tuple(p.shape), built.values[path], grad)
        for path, p in model.named_parameters()
        for grad in ("" if p.grad is None else bits(p.grad),)
    )
    return tuple(weights), bits(traced.losses), bits(probes.evaluated(model))


def _computes(config: ModelConfig) -> Computes:
    """What an arm of this config would compute, without probing it."""
    model = Transformer(config, seed=PROBE_SEED)
    built = anatomy(model)
    probes.shake(model)
    return _computed(model, built, probes.training_pass(model))


def _trains_the_same(
    arm: PlannedArm, computes: Computes, other: PlannedArm, known: Computes
) -> bool:
    return computes == known and _steps_alike(
        (arm.config, arm.training), (other.config, other.training)
    )


def _idle_paths(
    arm: PlannedArm, baseline: PlannedArm, computes: Computes, name: str
) -> tuple[str, ...]:
    """Of several declared paths those that alone change nothing.

    One may say what null resolves to. Any other is a flag that is ignored, and refused.
    """
    idle = []
    for path, value in arm.changes.items() if len(arm.changes) > 1 else ():
        without = _without(path, arm, baseline)
        if without is None or without == (arm.config, arm.training):
            # The baseline has this value, or the other paths bring it.
            continue
        config, training = without
        if not _steps_alike(without, (arm.config, arm.training)):
            continue
        if config != arm.config and _computes(config) != computes:
            continue
        record = leaves(config) | {f"training.{p}": v for p, v in leaves(training).items()}
        if record.get(path, value) is not None:
            raise BlocklabError(
                f"{name}: '{path}: {value}' takes no effect: the variant would train the same "
                "without it. Drop the path, or find out why it is ignored"
            )
        idle.append(path)
    return tuple(idle)


def _without(path: str, arm: PlannedArm, baseline: PlannedArm) -> Recipe | None:
    """The arm with one of its declared paths left out; None where the others need it."""
    others = {other: value for other, value in arm.changes.items() if other != path}
    model, training = _split(others | arm.matched)
    try:
        return (
            baseline.config.with_changes(model),
            with_changes(baseline.training, training, at="training"),
        )
    except BlocklabError:
        return None


def _split(changes: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Changes of the model, and of the training record by its own paths."""
    training = {p: value for p, value in changes.items() if p.split(".")[0] == "training"}
    model = {path: value for path, value in changes.items() if path not in training}
    return model, {path.removeprefix("training."): value for path, value in training.items()}


def _steps_alike(one: Recipe, other: Recipe) -> bool:
    """Whether two training records come to the same steps, though they may be worded otherwise."""
    if one[1] == other[1]:
        return True
    if _without_schedule(*one) != _without_schedule(*other):
        return False
    first, second = one[1].schedule, other[1].schedule
    steps = one[1].n_steps(one[0].context_length) or 0
    return first == second or all(
        first.factor(step, steps) == second.factor(step, steps) for step in range(steps)
    )


def _without_schedule(config: ModelConfig, training: StudyTraining) -> dict[str, object]:
    effect: dict[str, object] = {
        name: getattr(training, name) for name in StudyTraining.model_fields
    }
    # Evaluations and looks on the way move nothing; a length is what it comes to.
    for name in ("tokens", "evaluate_every", "inspect_every", "schedule"):
        del effect[name]
    return effect | {"steps": training.n_steps(config.context_length) or 0}


def _difference(
    arm: PlannedArm, baseline: PlannedArm, examined: _Examined, own: _Examined
) -> Difference:
    one, other = own.anatomy, examined.anatomy
    reshaped = differing(one.shapes, other.shapes)
    logits = None
    if own.first_logits.shape == examined.first_logits.shape:
        logits = float((own.first_logits - examined.first_logits).abs_().max())
    return Difference(
        arm=arm.name,
        modules=tuple(differing(one.modules, other.modules)),
        parameters=tuple(reshaped),
        first_values=tuple(p for p in differing(one.values, other.values) if p not in reshaped),
        logits=logits,
        training=tuple(differing(leaves(baseline.training), leaves(arm.training))),
        idle=(),
    )


def _require_declared(
    difference: Difference, arm: PlannedArm, baseline: PlannedArm, name: str
) -> None:
    """Every difference must follow from a declared path, or from the width solved for."""
    declared = [*arm.changes, *arm.matched]
    model, training = _split(dict.fromkeys(declared))
    records = differing(leaves(baseline.config), leaves(arm.config))
    undeclared = [
        *unexplained_leaves(records, model),
        *(f"training.{path}" for path in unexplained_leaves(difference.training, training)),
    ]
    if undeclared:
        raise BlocklabError(
            f"{name}: differs from the baseline in {_listed(undeclared)} too, which it does not "
            "declare"
        )
    blocks = (arm.config.block, baseline.config.block)
    standard = all(type(block) is StandardBlock.Config for block in blocks)
    for paths, what in (
        (difference.modules, "modules"),
        (difference.parameters, "parameters"),
        (difference.first_values, "first values"),
    ):
        places = unexplained_places(paths, model, arm.config.n_layers, standard=standard)
        if places:
            raise BlocklabError(
                f"{name}: differs from the baseline in the {what} of {_listed(places)}, which "
                f"nothing that it declares explains ({', '.join(declared)})"
            )


def _summed_up(paths: Iterable[str]) -> str:
    """Paths with those of all blocks as one: `blocks.*.norm.attention`."""
    return ", ".join(dict.fromkeys(re.sub(r"^blocks\.\d+\b", "blocks.*", path) for path in paths))


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(paths[:3]) + more
