"""From the arms of every rung to the trend of each variant along the ladder."""

from collections.abc import Sequence

from blocklab.study.ladder import Rung, Trend, trend
from blocklab.study.plan import Plan, own_size
from blocklab.study.results import Arm, Axis, LadderResult, RungResult
from blocklab.study.verdict import pairs


def ladders(
    plan: Plan, arms: tuple[Arm, ...], rungs: Sequence[tuple[Axis, RungResult]], finished: bool
) -> tuple[LadderResult, ...]:
    """One for each axis that the study's ladder has; `arms` are the study's own.

    `finished` says that no run is missing: before, an effect may still move, and has no trend.
    """
    return tuple(
        _ladder(plan, axis, arms, [rung for of, rung in rungs if of == axis], finished)
        for axis in dict.fromkeys(of for of, _ in rungs)
    )


def _ladder(
    plan: Plan,
    axis: Axis,
    arms: tuple[Arm, ...],
    others: Sequence[RungResult],
    finished: bool,
) -> LadderResult:
    rungs = sorted([*others, RungResult("", own_size(plan, axis), arms)], key=lambda r: r.size)
    trends = {
        arm.name: _trend(plan, i, rungs)
        for i, arm in enumerate(arms)
        if arm.role == "variant" and finished
    }
    return LadderResult(axis, tuple(rungs), trends)


def _trend(plan: Plan, index: int, rungs: Sequence[RungResult]) -> Trend:
    return trend(
        [_rung(plan, rung.size, rung.arms[index], rung.arms[0]) for rung in rungs],
        plan.judging_seeds,
        claims=plan.study.search,
    )


def _rung(plan: Plan, size: float, arm: Arm, base: Arm) -> Rung:
    if not plan.study.search:
        return Rung(size, arm.effect.differences if arm.effect is not None else {})
    differences: dict[int, float | None] = dict.fromkeys(arm.read)
    differences |= pairs(base.read, arm.read, plan.judging_seeds)
    return Rung(
        size,
        differences,
        slack_variant=arm.known_slack,
        slack_baseline=base.known_slack,
        undecided=arm.undecided or (base.undecided and f"{base.name}: {base.undecided}"),
    )
