"""Which runs a study needs, from the losses that are known so far: a pure function of both.

An arm's learning rate is searched with a seed of its own, then every seed is trained at three
rates around the best. The same finished runs always ask for the same further ones, so a study goes
on where it was stopped, and its report can be made anywhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blocklab.study.plan import Plan, PlannedArm, PlannedRun
from blocklab.study.rates import Decision, Tuned, diverged, next_rates, search_grid, tuned
from blocklab.study.results import SEARCH_SEED

Known = Mapping[str, float | None]
"""Final loss by run id, for every run that is finished; None for one that diverged."""

SEARCH_RATES_EXPECTED = 2
"""Rates that a search usually tries beyond its grid; only for estimates of the time left."""


@dataclass(frozen=True)
class Course:
    """How far one arm has come, and what it needs."""

    arm: PlannedArm
    runs: tuple[PlannedRun, ...]
    """Everything asked for so far, finished or not."""
    rates: tuple[float, ...]
    """The reporting rates; empty while they are searched."""
    reading: Tuned | None
    """The arm at its own best rate, once every seed is trained there; None for a fixed grid."""
    undecided: str | None
    """Why the search ended without a best rate."""
    n_expected: int
    """Runs it will probably have asked for in the end."""

    def missing(self, known: Known) -> list[PlannedRun]:
        """What must be trained next."""
        return [run for run in self.runs if run.id not in known]


def courses(plan: Plan, known: Known) -> tuple[Course, ...]:
    """The course of every arm in every cell, in the plan's order; its ladder left out."""
    return tuple(_course(plan, arm, known) for arm in plan.arms)


def all_courses(plan: Plan, known: Known) -> tuple[Course, ...]:
    """Those of the study itself, then those of its ladder, rung by rung."""
    return tuple(course for part in plan.whole for course in courses(part, known))


def missing_runs(of: Sequence[Course], known: Known) -> list[PlannedRun]:
    """All that can be trained now, seed by seed, so that a stopped study has whole pairs."""
    found = [run for course in of for run in course.missing(known)]
    return sorted(found, key=lambda run: run.seed)


def _course(plan: Plan, arm: PlannedArm, known: Known) -> Course:
    grid = arm.training.learning_rates
    if not plan.study.search:
        runs = [plan.run(arm, seed, rate) for seed in plan.seeds for rate in grid]
        return Course(arm, tuple(runs), grid, None, None, len(runs))
    searched, decision = _searched(plan, arm, known)
    if decision is None:
        expected = max(len(searched), len(search_grid(grid)) + SEARCH_RATES_EXPECTED)
        expected += 3 * len(plan.seeds) + plan.repeats_in_float32
        return Course(arm, tuple(searched), (), None, None, expected)
    undecided = decision.why if decision.kind == "undecided" else None
    rates = decision.rates or _three_at_the_edge(searched, known)
    while True:
        runs = [plan.run(arm, seed, rate) for seed in plan.seeds for rate in rates]
        asked = (*searched, *runs)
        if any(run.id not in known for run in runs):
            expected = len(asked) + plan.repeats_in_float32
            return Course(arm, asked, rates, None, undecided, expected)
        losses = {rate: _by_seed(runs, rate, known) for rate in rates}
        reading = tuned(losses, search_grid(grid)[0])
        if undecided or reading.add is None:
            again = plan.run_in_float32(arm, reading.rates[1])
            asked = asked if again is None else (*asked, again)
            return Course(arm, asked, rates, reading, undecided or reading.undecided, len(asked))
        rates = tuple(sorted((*rates, reading.add)))


def _searched(
    plan: Plan, arm: PlannedArm, known: Known
) -> tuple[list[PlannedRun], Decision | None]:
    """The search seed's runs, and its decision once they are finished."""
    runs: list[PlannedRun] = []
    shown: dict[float, float | None] = {}
    while True:
        decision = next_rates(shown, plan.study.resolved_resolution, arm.training.learning_rates)
        if decision.kind != "try":
            return runs, decision
        asked = [plan.run(arm, SEARCH_SEED, rate) for rate in decision.rates]
        runs += asked
        if any(run.id not in known for run in asked):
            return runs, None
        shown |= {run.learning_rate: known[run.id] for run in asked}


def _three_at_the_edge(searched: Sequence[PlannedRun], known: Known) -> tuple[float, ...]:
    """The best rate that was found and its nearest two, for an arm that stays undecided."""
    losses = {run.learning_rate: known[run.id] for run in searched}
    rates = sorted(losses)
    finite = {rate: loss for rate, loss in losses.items() if loss is not None}
    alive = {rate: loss for rate, loss in finite.items() if not diverged(loss)}
    best = min(alive, key=lambda rate: alive[rate]) if alive else rates[0]
    first = min(max(rates.index(best) - 1, 0), len(rates) - 3)
    return tuple(rates[first : first + 3])


def _by_seed(runs: Sequence[PlannedRun], rate: float, known: Known) -> dict[int, float | None]:
    return {run.seed: known[run.id] for run in runs if run.learning_rate == rate}
