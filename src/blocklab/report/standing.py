"""Why an arm has no loss or no comparison: cases that a reader must not take for one another.

A run that is missing has not diverged, one that diverged was not interrupted, and an arm that
failed at one setting of the nuisances may have trained well at all others.
"""

from blocklab.report.formats import clean, listed
from blocklab.study.results import Arm, StudyResult


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
