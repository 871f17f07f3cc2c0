"""From the arms of every rung to the trend of each variant along the ladder."""

from collections.abc import Sequence

from blocklab.model.count import count
from blocklab.study.ladder import Rung, Trend, trend
from blocklab.study.plan import Plan, n_tokens
from blocklab.study.results import Arm, Axis, LadderResult, RungResult
from blocklab.study.verdict import pairs


def ladders(
    plan: Plan, arms: tuple[Arm, ...], rungs: Sequence[tuple[Axis, RungResult]]
) -> tuple[LadderResult, ...]:
    """One for each axis that the study's ladder has; `arms` are the study's own."""
    return tuple(
        _ladder(plan, axis, arms, [rung for of, rung in rungs if of == axis])
        for axis in dict.fromkeys(of for of, _ in rungs)
    )


def _ladder(
    plan: Plan, axis: Axis, arms: tuple[Arm, ...], others: Sequence[RungResult]
) -> LadderResult:
    base = plan.arms[0]
    own = n_tokens(base) if axis == "tokens" else count(base.config).total
    rungs = sorted([*others, RungResult("", own, arms)], key=lambda rung: rung.size)
    finished = all(_is_read(plan, rung) for rung in rungs)
    trends = {
        arm.name: _trend(plan, i, rungs)
        for i, arm in enumerate(arms)
        if arm.role == "variant" and finished
    }
    return LadderResult(axis, tuple(rungs), trends)


def _is_read(plan: Plan, rung: RungResult) -> bool:
    """Whether every arm of it but the placebo has an effect that will not move any more."""
    arms = [arm for arm in rung.arms if arm.role != "placebo"]
    if plan.study.search:
        return all(arm.read for arm in arms)
    return all(arm.effect is not None for arm in arms[1:])


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
        undecided=arm.undecided or base.undecided,
    )
