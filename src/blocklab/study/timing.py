"""What a training step costs here in time and memory, and the widths at which variants cost alike.

Time is the processor's, of one thread (otherwise the wall's), the least of a few rounds in which
the arms take turns: what else runs on the machine, or its clock that changes, then meets all of
them alike.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from blocklab.data.dataset import Dataset
from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.model.count import count
from blocklab.record import with_changes
from blocklab.study.course import courses
from blocklab.study.engines.engine import default_workers
from blocklab.study.matching import MULTIPLE, WIDTH, natural_width, states_width
from blocklab.study.plan import Plan, PlannedArm, width_key
from blocklab.study.study import Study
from blocklab.study.wording import percent
from blocklab.training.devices import PROCESSOR
from blocklab.training.memory import peak_memory, start_measuring_memory
from blocklab.training.numerics import Numerics
from blocklab.training.trainer import Trainer, self_tested

Say = Callable[[str], None]

ROUNDS = 5

TOGETHER = 2**31
"""Bytes of models and optimisers that stand in memory at once, to take turns."""

FARTHEST = 4
"""How far beyond the widest that was timed a line is followed, as a factor."""


def seconds_a_step(
    arms: Sequence[PlannedArm],
    dataset: Dataset,
    numerics: Numerics,
    rounds: int = ROUNDS,
) -> list[float]:
    """Of one training step of each arm, after one that warms up; see `seconds_of_a_step`.

    All of them are held in memory at once.
    """
    trainers = [_trainer(arm, dataset, numerics) for arm in arms]
    for trainer in trainers:
        trainer.step()
    times: list[list[float]] = [[] for _ in arms]
    for _ in range(rounds):
        for trainer, own in zip(trainers, times, strict=True):
            own.append(trainer.seconds_of_a_step(numerics))
    return [min(own) for own in times]


def rough_seconds_a_step(
    arms: Sequence[PlannedArm], dataset: Dataset, numerics: Numerics
) -> list[float]:
    """The same of however many arms: as many take turns as `TOGETHER` holds, then the next."""
    return [s for some in _held_together(arms) for s in seconds_a_step(some, dataset, numerics)]


def _held_together(arms: Sequence[PlannedArm]) -> Iterator[list[PlannedArm]]:
    group: list[PlannedArm] = []
    size = 0
    for arm in arms:
        # Weights, their gradients, and two values that an optimiser keeps of each.
        own = 4 * count(arm.config).bytes(4)
        if group and size + own > TOGETHER:
            yield group
            group, size = [], 0
        group.append(arm)
        size += own
    yield group


def with_numerics(study: Study, planned: Plan, dataset: Dataset, say: Say | None = None) -> Study:
    """The study with the numerics that are fastest here for its baseline, unless it states them."""
    if study.numerics is not None:
        return study
    base = planned.arms[0]
    training = base.training.at(base.training.learning_rates[0])
    found = self_tested(
        base.config,
        training,
        dataset,
        n_runs=courses(planned, {})[0].n_expected,
        at_once=lambda device: default_workers(1, accelerated=device != PROCESSOR),
        say=say,
    )
    return with_changes(study, {"numerics": found.plain()})


def peak_memory_of_a_step(arm: PlannedArm, dataset: Dataset, numerics: Numerics) -> int:
    """Largest memory, bytes, while one step of an arm is trained."""
    gc.collect()
    start_measuring_memory(numerics.device)
    _trainer(arm, dataset, numerics).step()
    return peak_memory(numerics.device)


def with_timed_widths(study: Study, planned: Plan, dataset: Dataset, say: Say | None) -> Study:
    """The study with the width of every variant that is not measured yet.

    `planned` is its plan before; widths that the study already holds are left as they are.
    """
    numerics = study.numerics or Numerics()

    def clock(*timed: PlannedArm) -> list[float]:
        return seconds_a_step(timed, dataset, numerics, 2 * ROUNDS)

    widths = dict(study.widths)
    for part in planned.whole:
        for cell in part.cells:
            base, *others = cell.arms
            for arm in others:
                key = width_key(arm.name, base, part.rung)
                natural = natural_width(arm.config)
                if arm.role != "variant" or key in widths or natural is None:
                    continue
                if states_width(arm.changes, arm.config) or arm.config == base.config:
                    continue
                widths[key] = _timed_width(arm, base, natural, clock, say)
    return study if widths == study.widths else with_changes(study, {"widths": widths})


def solved_width(target: float, narrow: tuple[int, float], wide: tuple[int, float]) -> int | None:
    """The multiple of 8 at which a step takes `target` seconds, on the line through two widths.

    Both are given with the seconds that they take. None where the line is too flat to tell one
    width from another. Raises BlocklabError when even the narrowest would take longer.
    """
    slope = (wide[1] - narrow[1]) / (wide[0] - narrow[0])
    if slope <= 0:
        return None
    exact = narrow[0] + (target - narrow[1]) / slope
    if exact > FARTHEST * wide[0]:
        return None
    width = round(exact / MULTIPLE) * MULTIPLE
    if width < MULTIPLE:
        raise BlocklabError(
            f"{WIDTH}: no width matches; even {MULTIPLE} takes longer than the baseline. Set "
            "match: none"
        )
    return width


def _timed_width(
    arm: PlannedArm,
    base: PlannedArm,
    natural: int,
    clock: Callable[..., list[float]],
    say: Say | None,
) -> int:
    wider = 2 * natural
    target, seconds, wider_seconds = clock(base, arm, _at_width(arm, wider))
    try:
        width = solved_width(target, (natural, seconds), (wider, wider_seconds))
    except BlocklabError as error:
        raise BlocklabError(f"variants.{arm.name}: {error}") from None
    if say is not None:
        target, left = clock(base, _at_width(arm, width or natural))
        flat = (
            ""
            if width is not None
            else "; a wider one takes no longer here, so it is left as it is"
        )
        say(
            f"{arm.name}: {WIDTH} {width or natural} takes {1000 * left:.1f} ms a step, the "
            f"baseline {1000 * target:.1f} ({percent(left / target - 1, 1, signed=True)}){flat}"
        )
    return width or natural


def _at_width(arm: PlannedArm, width: int) -> PlannedArm:
    config: ModelConfig = arm.config.with_changes({WIDTH: width})
    return replace(arm, config=config)


def _trainer(arm: PlannedArm, dataset: Dataset, numerics: Numerics) -> Trainer:
    rate = arm.training.learning_rates[0]
    training = with_changes(arm.training.at(rate), {"inspect_every": None})
    return Trainer(arm.config, corpus=dataset, training=training, numerics=numerics)
