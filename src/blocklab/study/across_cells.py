"""From the arms at every setting of the nuisances to the arms over all of them.

What an arm did is averaged over its settings (cells) seed by seed; on what its effect depends, and
an interaction's, is asked of the settings themselves. Without nuisances there is one cell.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from blocklab.study.evidence import Windows, judged, merged_windows
from blocklab.study.interaction import Interaction, contrast, interaction
from blocklab.study.nuisances import Cell, NuisanceFinding, nuisance_finding
from blocklab.study.plan import Plan
from blocklab.study.results import Arm
from blocklab.study.statistics import mean, paired_effect
from blocklab.study.summary import without_interval
from blocklab.study.verdict import ArmEvidence, pairs

Cells = Mapping[str, tuple[Arm, ...]]
"""The arms of every cell, in the plan's order, by the cell's name."""

Four = tuple[ArmEvidence, ArmEvidence, ArmEvidence, ArmEvidence]
"""The corners of a 2×2: the baseline, both changes alone, and both together."""


def over_cells(plan: Plan, cells: Cells, windows: Sequence[Windows] = ()) -> tuple[Arm, ...]:
    """The arms over all cells: effects averaged seed by seed, and on what they depend.

    `windows` are each cell's losses window by window; without them no equivalence is claimed.
    """
    first = next(iter(cells.values()))
    by_arm = [{name: arms[i] for name, arms in cells.items()} for i in range(len(first))]
    merged = [
        replace(_merged(plan, list(settings.values())), undecided=_why_undecided(settings))
        for settings in by_arm
    ]
    if not plan.study.search:
        return tuple(merged)
    if any(arm.tuned_rate is None for arms in cells.values() for arm in arms):
        return tuple(without_interval(arm) for arm in merged)
    evidence = {
        arm.name: _merged_evidence(settings) for arm, settings in zip(merged, by_arm, strict=True)
    }
    merged = [_with_reading(arm, evidence[arm.name]) for arm in merged]
    with_verdicts = judged(plan, merged, evidence, merged_windows(windows))
    return tuple(
        replace(arm, dependence=_dependence(plan, i, arm, cells)) if arm.role == "variant" else arm
        for i, arm in enumerate(with_verdicts)
    )


def interactions(plan: Plan, arms: Sequence[Arm], cells: Cells) -> dict[str, Interaction]:
    """The 2×2s that the study asks for; none where an arm of one is not read yet.

    `arms` are those over all cells; of more than one it is also asked on what each depends.
    """
    found = {}
    for name, others in plan.study.interactions.items():
        if not all(arm.read for arm in _corners(arms, others)):
            continue
        one = interaction(*_four(arms, others), plan.judging_seeds)
        if len(cells) > 1:
            one = replace(one, dependence=_depends(plan, one, others, cells))
        found[name] = one
    return found


def _corners(arms: Sequence[Arm], others: Sequence[str]) -> list[Arm]:
    by_name = {arm.name: arm for arm in arms}
    return [arms[0], *(by_name[name] for name in others)]


def _four(arms: Sequence[Arm], others: Sequence[str]) -> Four:
    """Of arms that are all read."""
    neither, first, second, both = map(_read_again, _corners(arms, others))
    return neither, first, second, both


def _depends(
    plan: Plan, found: Interaction, others: Sequence[str], cells: Cells
) -> NuisanceFinding:
    """On what an interaction depends, by the tests that effects are put to."""
    compared = []
    for cell, arms in zip(plan.cells, cells.values(), strict=True):
        neither, first, second, both = four = _four(arms, others)
        trained = set.intersection(*(set(one.losses) for one in four))
        differences: dict[int, float | None] = dict.fromkeys(sorted(trained))
        differences |= contrast(*four, plan.judging_seeds)
        compared.append(
            Cell(
                levels=cell.arms[0].levels,
                differences=differences,
                # As far as it may lie below, and above.
                slack_variant=both.slack + neither.slack,
                slack_baseline=first.slack + second.slack,
                undecided=next((one.undecided for one in four if one.undecided), None),
            )
        )
    return nuisance_finding(compared, plan.judging_seeds, found.is_found)


def _read_again(arm: Arm) -> ArmEvidence:
    slack = arm.slack if arm.slack is not None else math.inf
    return ArmEvidence(arm.name, arm.read, slack, arm.undecided)


def _merged(plan: Plan, arms: Sequence[Arm]) -> Arm:
    """One arm over its cells: losses and differences averaged seed by seed, runs counted."""
    means = [arm.mean for arm in arms if arm.mean is not None]
    effects = [arm.effect for arm in arms]
    effect = None
    if all(one is not None for one in effects):
        by_cell = [one.differences for one in effects if one is not None]
        seeds = set.intersection(*(set(d) for d in by_cell))
        averaged = {seed: mean([d[seed] for d in by_cell]) for seed in sorted(seeds)}
        effect = paired_effect(averaged, dict.fromkeys(averaged, 0.0), plan.look.level)
    return replace(
        arms[0],
        mean=mean(means) if len(means) == len(arms) else None,
        spread=None,
        n_diverged=sum(arm.n_diverged for arm in arms),
        n_runs=sum(arm.n_runs for arm in arms),
        n_stalled=sum(arm.n_stalled for arm in arms),
        n_at_best=sum(arm.n_at_best for arm in arms),
        searching=any(arm.searching for arm in arms),
        # Sizes and speeds belong to a setting each; what the study needs is the most of any.
        peak_memory=max(arm.peak_memory for arm in arms),
        effect=None if arms[0].role == "baseline" else effect,
        verdict=None,
        chance=None,
        read={},
        # What belongs to one setting stands with that setting.
        rates=(),
        best_rate=None,
        tuned_rate=None,
        edge=None,
        sensitivity=None,
        margin=None,
        spikes_per_thousand=None,
        n_spikes=0,
        recall=_mean_of_all([arm.recall for arm in arms]),
        n_recall=sum(arm.n_recall for arm in arms),
        repeats=tuple(repeat for arm in arms for repeat in arm.repeats),
    )


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None


def _with_reading(arm: Arm, evidence: ArmEvidence) -> Arm:
    """What an arm was read at over all cells."""
    return replace(arm, read=evidence.losses, slack=evidence.slack, undecided=evidence.undecided)


def _merged_evidence(settings: Mapping[str, Arm]) -> ArmEvidence:
    """Losses averaged over the cells, by name; a seed that diverged in one of them has none."""
    arms = list(settings.values())
    slacks = [arm.slack if arm.slack is not None else math.inf for arm in arms]
    by_cell = [arm.read for arm in arms]
    seeds = sorted(set.union(*(set(losses) for losses in by_cell)))
    averaged: dict[int, float | None] = {}
    for seed in seeds:
        here = [losses.get(seed) for losses in by_cell]
        finite = [loss for loss in here if loss is not None]
        averaged[seed] = mean(finite) if len(finite) == len(here) else None
    return ArmEvidence(arms[0].name, averaged, mean(slacks), _why_undecided(settings))


def _why_undecided(settings: Mapping[str, Arm]) -> str | None:
    """Each reason once, and where it holds unless that is everywhere."""
    where: dict[str, list[str]] = {}
    for name, arm in settings.items():
        if arm.undecided is not None:
            where.setdefault(arm.undecided, []).append(name)
    said = [
        why if len(names) == len(settings) else f"{why} at {' and '.join(names)}"
        for why, names in where.items()
    ]
    return "; ".join(said) or None


def _dependence(plan: Plan, index: int, arm: Arm, cells: Cells) -> NuisanceFinding:
    compared = []
    for cell, arms in zip(plan.cells, cells.values(), strict=True):
        here, base = arms[index], arms[0]
        differences: dict[int, float | None] = dict.fromkeys(here.read)
        differences |= pairs(base.read, here.read, plan.judging_seeds)
        compared.append(
            Cell(
                levels=cell.arms[0].levels,
                differences=differences,
                slack_variant=here.known_slack,
                slack_baseline=base.known_slack,
                undecided=here.undecided or base.undecided,
            )
        )
    significant = arm.verdict is not None and arm.verdict.word in ("better", "worse")
    return nuisance_finding(compared, plan.judging_seeds, significant)
