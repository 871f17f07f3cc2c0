"""Of how many seeds an arm's loss is, and why it has none, no comparison or no curve.

Cases that a reader must not take for one another: a run that is missing has not diverged, one
that diverged was not interrupted, and an arm that failed at one setting of the nuisances may have
trained well at all others.
"""

from collections.abc import Container, Sequence

from blocklab.report.curves import best_runs
from blocklab.report.formats import clean, counted, listed
from blocklab.study.results import Arm, StudyResult


def seeds_read(arm: Arm, result: StudyResult) -> tuple[int, int]:
    """How many seeds the arm's mean loss is over, and over how many it was to be.

    Of every setting of the nuisances together.
    """
    settings = result.at_settings(arm.name)
    n_read = sum(_n_read(one, result.judged_seeds) for one in settings)
    return n_read, len(settings) * len(result.judged_seeds)


def _n_read(arm: Arm, judged: Sequence[int]) -> int:
    """At the lowest point of its curve, or at the best rate of a fixed grid."""
    if arm.tuned_rate is not None:
        return sum(arm.read.get(seed) is not None for seed in judged)
    at_best = (point.losses for point in arm.rates if point.learning_rate == arm.best_rate)
    return sum(seed in losses for losses in at_best for seed in judged)


def why_no_loss(arm: Arm, result: StudyResult) -> str:
    """Of an arm without a mean loss: one clause a case, with the settings where it is so."""
    if not result.cells:
        return _standing(arm, result)
    lacking: dict[str, list[str]] = {}
    for setting, one in zip(result.cells, result.at_settings(arm.name), strict=True):
        if one.mean is None:
            lacking.setdefault(_standing(one, result), []).append(clean(setting))
    if [len(settings) for settings in lacking.values()] == [len(result.cells)]:
        return next(iter(lacking))
    return "; ".join(f"{said} at {listed(settings)}" for said, settings in lacking.items())


def why_no_effect(arm: Arm, result: StudyResult) -> str:
    """Of an arm without a difference from the baseline."""
    base = result.baseline
    without = [one for one in (base, arm) if one.mean is None]
    if without:
        return "; ".join(why_no_loss(one, result) for one in without)
    apart = [
        clean(setting)
        for setting, arms in result.cells.items()
        if any(one.name == arm.name and one.effect is None for one in arms)
    ]
    if result.cells and not apart:
        return f"no seed finished both here and in {clean(base.name)} at every setting"
    where = f" at {listed(apart)}" if apart else ""
    return f"no seed finished both here and in {clean(base.name)} at their best rates{where}"


def _standing(arm: Arm, result: StudyResult) -> str:
    """How far one arm without a loss has come at one setting."""
    name = clean(arm.name)
    if not arm.n_runs:
        return f"{name} is not trained yet"
    if arm.n_diverged == arm.n_runs:
        # A search that is interrupted, or a grid that is, may still find a rate that trains.
        far = " so far" if result.facts.n_missing else ""
        runs = "the only run" if arm.n_runs == 1 else f"all {arm.n_runs} runs"
        return f"{runs} of {name}{far} diverged"
    if arm.searching:
        return f"the learning rate of {name} is still searched"
    if arm.best_rate is not None and not arm.n_at_best:
        return f"no seed that reports is trained at the best rate of {name} yet"
    return f"every seed of {name} diverged at its best rate"


def not_drawn(result: StudyResult, drawn: Container[str]) -> str:
    """What a chart of the runs at best rates leaves out, said after its reading; `drawn` are arms.

    A run that diverged, or is to come, has none to average.
    """
    lost = [_why_not_drawn(arm, result) for arm in result.arms if arm.name not in drawn]
    notes = [f"Not drawn, because {'; '.join(lost)}."] if lost else []
    of = counted(len(result.facts.seeds), "seed")
    counts = [(clean(arm.name), *_lacking(arm, result)) for arm in result.arms if arm.name in drawn]
    if diverged := [f"{name} ({lost} of {of})" for name, lost, _ in counts if lost]:
        notes.append(f"Without the runs that diverged: {listed(diverged)}.")
    if pending := [f"{name} ({left} of {of})" for name, _, left in counts if left]:
        notes.append(f"Not trained yet: {listed(pending)}.")
    return "".join(f" {note}" for note in notes)


def _why_not_drawn(arm: Arm, result: StudyResult) -> str:
    if arm.mean is None:
        return why_no_loss(arm, result)
    return f"no step of {clean(arm.name)} is left to draw"


def _lacking(arm: Arm, result: StudyResult) -> tuple[int, int]:
    """Seeds at the arm's best rate that diverged, and those that are to be trained."""
    finished = len(best_runs(arm, result.runs))
    return arm.n_at_best - finished, max(len(result.facts.seeds) - arm.n_at_best, 0)
