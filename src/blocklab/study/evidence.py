"""What verdicts are made of: each arm read at its own best rate, and where the text stands open.

From courses whose runs are finished to the verdicts of all variants as one family.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from blocklab.study.course import Course
from blocklab.study.plan import Plan, PlannedRun
from blocklab.study.rates import Tuned
from blocklab.study.results import Arm, Effect
from blocklab.study.statistics import Array, Estimate, block_bootstrap, mean, spread
from blocklab.study.verdict import (
    ArmEvidence,
    Verdict,
    needs_second_look,
    pairs,
    placebo,
    verdicts,
    why_undecided,
)

WindowsOf: TypeAlias = Callable[[PlannedRun], tuple[Array, Array]]
"""Final loss of every validation window of a finished run, and the windows' weights."""

Windows: TypeAlias = Mapping[str, Mapping[int, tuple[Array, Array]]]
"""Window losses and their weights by arm and seed, read where the final losses were read."""


def evidence_of(way: Course) -> ArmEvidence:
    assert way.reading is not None
    return ArmEvidence(way.arm.name, way.reading.losses, way.reading.slack, way.undecided)


def at_look(plan: Plan, ways: Sequence[Course], windows_of: WindowsOf) -> Plan:
    """The plan at the look that its finished runs have come to.

    Of a study that looks once, the plan itself. `ways` are its courses.
    """
    if plan.study.seeds != "two-look" or plan.earlier is not None:
        return plan
    if any(way.reading is None for way in ways):
        return plan
    evidence = {way.arm.name: evidence_of(way) for way in ways}
    windows = {way.arm.name: tuned_windows(plan, way, windows_of) for way in ways}
    variants = [way.arm.name for way in ways if way.arm.role == "variant"]
    found = _verdicts(plan, ways[0].arm.name, variants, evidence, windows)
    if not needs_second_look(found):
        return plan
    # What was not tested then, for divergence or too few pairs, was found nothing of.
    tested = (one for one in found if one.p is not None)
    earlier = {one.name: one.estimate for one in tested if one.estimate is not None}
    return replace(plan, earlier=earlier)


def _verdicts(
    plan: Plan,
    base: str,
    variants: Sequence[str],
    evidence: Mapping[str, ArmEvidence],
    windows: Windows,
) -> tuple[Verdict, ...]:
    """Of all variants as one family."""
    family = [
        replace(
            evidence[name],
            evaluation=_evaluation(windows, name, base, evidence, plan),
        )
        for name in variants
    ]
    if not family:
        return ()
    seeds = plan.judging_seeds
    study = plan.study
    return verdicts(
        evidence[base], family, seeds, study.delta, plan.look, study.resolved_resolution
    )


def judged(
    plan: Plan,
    arms: Sequence[Arm],
    evidence: Mapping[str, ArmEvidence],
    windows: Windows,
) -> tuple[Arm, ...]:
    """The arms with their verdicts, and the placebo's chance."""
    base = arms[0].name
    variants = [arm.name for arm in arms if arm.role == "variant"]
    by_name = {one.name: one for one in _verdicts(plan, base, variants, evidence, windows)}
    judged = []
    for arm in arms:
        verdict = by_name.get(arm.name)
        chance = None
        if arm.role == "placebo":
            chance = placebo(
                evidence[base], evidence[arm.name], plan.judging_seeds, plan.look.level
            )
        estimate = verdict.estimate if verdict else chance.estimate if chance else None
        effect = None
        if arm is not arms[0]:
            effect = _effect(plan, evidence[base], evidence[arm.name], estimate)
        judged.append(replace(arm, verdict=verdict, chance=chance, effect=effect))
    return tuple(judged)


def _effect(
    plan: Plan, base: ArmEvidence, arm: ArmEvidence, estimate: Estimate | None
) -> Effect | None:
    """The effect over the judging seeds, its interval with the slack of both arms.

    Without an estimate there is no interval: one of the seeds alone would leave out the slack.
    """
    differences = pairs(base.losses, arm.losses, plan.judging_seeds)
    if not differences:
        return None
    values = list(differences.values())
    if estimate is None:
        why = "one seed" if len(values) < 2 else why_undecided(base, arm)
        return Effect(differences, mean(values), spread(values), None, None, plan.look.level, why)
    low, high = estimate.low, estimate.high
    return Effect(differences, estimate.mean, spread(values), low, high, estimate.level)


def _evaluation(
    windows: Windows,
    arm: str,
    base: str,
    evidence: Mapping[str, ArmEvidence],
    plan: Plan,
) -> tuple[float, float] | None:
    """The interval that the choice of validation text leaves, over the complete pairs."""
    if arm not in windows or base not in windows:
        return None
    both = pairs(evidence[base].losses, evidence[arm].losses, plan.judging_seeds)
    if not both:
        return None
    weights = next(iter(windows[arm].values()))[1]
    return block_bootstrap(
        np.stack([windows[arm][seed][0] for seed in both]),
        np.stack([windows[base][seed][0] for seed in both]),
        weights,
        level=plan.look.level,
    )


def tuned_windows(plan: Plan, way: Course, windows_of: WindowsOf) -> dict[int, tuple[Array, Array]]:
    """Each seed's window losses, read where its final loss was read."""
    reading = way.reading
    assert reading is not None
    return {
        seed: _read_windows(plan, way, reading, seed, windows_of)
        for seed, loss in reading.losses.items()
        if loss is not None
    }


def merged_windows(cells: Sequence[Windows]) -> Windows:
    """Window losses averaged over cells, for the seeds that all have; none where windows differ.

    A nuisance that changes the context cuts the text into other windows, if not into more. Each
    arm is asked alone: one that diverged everywhere has no windows, and takes none from another.
    """
    if not cells:
        return {}
    merged: dict[str, dict[int, tuple[Array, Array]]] = {}
    for arm in cells[0]:
        own = [cell[arm] for cell in cells]
        cuts = {tuple(n_targets) for by_seed in own for _, n_targets in by_seed.values()}
        if len(cuts) > 1:
            continue
        seeds = set.intersection(*(set(by_seed) for by_seed in own))
        merged[arm] = {
            seed: (
                np.mean([by_seed[seed][0] for by_seed in own], axis=0),
                own[0][seed][1],
            )
            for seed in seeds
        }
    return merged


def _read_windows(
    plan: Plan, way: Course, reading: Tuned, seed: int, windows_of: WindowsOf
) -> tuple[Array, Array]:
    total: Array | float = 0.0
    weights = np.zeros(0)
    for rate, weight in zip(reading.rates, reading.weights, strict=True):
        if weight:
            losses, weights = windows_of(plan.run(way.arm, seed, rate))
            total = total + weight * losses
    return np.asarray(total), weights
