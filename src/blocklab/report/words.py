"""The answer of a study in words: pure functions from results to sentences.

Where rates were searched, a variant's sentence is its verdict. Where a fixed grid was trained there
are effects with their intervals and no verdict: better and worse are then signs of a number.
"""

from collections.abc import Sequence
from functools import partial

from blocklab.report import formats, verdicts
from blocklab.report.formats import clean, listed, nats, rate, real_minus
from blocklab.report.standing import seeds_read, why_no_effect, why_no_loss
from blocklab.study.results import Arm, Effect, StudyResult
from blocklab.study.verdict import FEWEST_SEEDS
from blocklab.study.wording import percent


def headline(result: StudyResult) -> str:
    """The whole study in one sentence."""
    base = result.baseline
    variants = [arm for arm in result.arms if arm.role == "variant"]
    if base.mean is None:
        return _without_a_baseline(result)
    if not variants:
        return f"{clean(base.name)} was trained alone: there is nothing to compare it with."
    if all(arm.verdict is not None for arm in variants):
        return (
            f"Against {clean(base.name)}, each arm at its own best learning rate, "
            f"{_verdicts(variants)}."
        )
    groups: dict[str, list[str]] = {}
    for arm in variants:
        groups.setdefault(_where(arm.effect), []).append(clean(arm.name))
    found = [f"{where} for {listed(groups[where])}" for where in _ORDER if where in groups]
    text = (
        f"Against {clean(base.name)}, each arm at its own best learning rate, the "
        f"{percent(result.level)} interval of the difference in validation loss "
        f"{'; it '.join(found)}"
    )
    return f"{text}{_exploratory(variants)}."


def _exploratory(variants: Sequence[Arm]) -> str:
    """Which of the effects are from too few seeds: each by its own pairs, not by another's."""
    compared = [arm for arm in variants if arm.effect is not None]
    few = [arm for arm in compared if _explores(arm.effect)]
    if not few:
        return ""
    of = "" if few == compared else f": {listed([clean(arm.name) for arm in few])}"
    return f"; exploratory, with fewer than five seeds{of}"


def _explores(effect: Effect | None) -> bool:
    return effect is not None and len(effect.differences) < FEWEST_SEEDS


def _without_a_baseline(result: StudyResult) -> str:
    """What is left of a study whose baseline has no loss: why, and what that makes of the rest."""
    base, variants = clean(result.baseline.name), result.arms[1:]
    why = why_no_loss(result.baseline, result)
    if any(arms[0].mean is not None for arms in result.cells.values()):
        text = (
            f"{base}, the baseline, has no loss over all settings, because {why}; each of the "
            "others has its own comparison below."
        )
    else:
        text = (
            f"{base}, the baseline, has no loss, because {why}, so that nothing can be compared "
            "with it."
        )
    judged = [arm for arm in variants if arm.verdict is not None]
    return text + (f" That leaves {_verdicts(judged)}." if judged else "")


def _verdicts(variants: Sequence[Arm]) -> str:
    """The words of all verdicts, each with the variants that got it."""
    groups: dict[str, list[str]] = {}
    for arm in variants:
        groups.setdefault(verdicts.word(arm), []).append(clean(arm.name))
    return "; ".join(f"{said}: {listed(names)}" for said, names in groups.items())


_ORDER = (
    "lies below zero (lower loss)",
    "includes zero",
    "lies above zero (higher loss)",
    "cannot be given",
)


def _where(effect: Effect | None) -> str:
    if effect is None or effect.low is None or effect.high is None:
        return _ORDER[3]
    if effect.high < 0:
        return _ORDER[0]
    return _ORDER[2] if effect.low > 0 else _ORDER[1]


def sentence(arm: Arm, result: StudyResult) -> str:
    """What is to be said of one arm; it begins with the arm's name."""
    parts = [
        _level(arm, result) if arm.role == "baseline" else _comparison(arm, result),
        *_undecided(arm, result),
        *_trends(arm, result),
        *_chance(arm, result),
        *_left_out(arm, result),
        *_edge(arm, result),
        *_diverged(arm, result.baseline),
        *_stalled(arm, result),
        *_stops_learning(arm, result),
        *_insensitive(arm),
    ]
    return " ".join(parts)


def sentences(result: StudyResult) -> list[str]:
    """One for every arm, in the order of the study."""
    return [sentence(arm, result) for arm in result.arms]


def interactions(result: StudyResult) -> list[str]:
    """One sentence for each 2×2 that the study asked for."""
    return [
        f"{clean(name)} (interaction): {verdicts.interaction_claim(found)}"
        for name, found in result.interactions.items()
    ]


def _level(arm: Arm, result: StudyResult) -> str:
    name = clean(arm.name)
    if arm.mean is None:
        return f"{name} (the baseline): no loss can be given, because {why_no_loss(arm, result)}."
    if arm.best_rate is None:
        return (
            f"{name} (the baseline): {nats(arm.mean)} nats, mean over the settings of the "
            "nuisances, each at its own learning rate."
        )
    over = formats.seeds(*seeds_read(arm, result))
    around = ""
    if arm.spread is not None:
        around, over = f" ± {nats(arm.spread)}", f"mean and standard deviation over {over}"
    return (
        f"{name} (the baseline): {nats(arm.mean)}{around} nats at learning rate "
        f"{rate(arm.tuned_rate or arm.best_rate)}, {over}."
    )


def _comparison(arm: Arm, result: StudyResult) -> str:
    base = clean(result.baseline.name)
    subject = clean(arm.name)
    if what := formats.changes(arm):
        subject += f" ({what})"
    if arm.verdict is not None:
        return f"{subject}: {verdicts.claim(arm)}"
    effect = arm.effect
    if effect is None:
        return f"{subject}: no difference can be given, because {why_no_effect(arm, result)}."
    if effect.mean == 0:
        return f"{subject}: on average no difference from {base} ({_interval(effect, result)})."
    sign = "worse" if effect.mean > 0 else "better"
    zero = "; the interval includes zero" if _where(effect) == _ORDER[1] else ""
    return (
        f"{subject}: {nats(abs(effect.mean))} nats {sign} than {base} "
        f"({_interval(effect, result)}){zero}."
    )


def _at_rung(axis: str, size: float) -> str:
    return f"at {formats.compact(size)} {axis}"


def _trends(arm: Arm, result: StudyResult) -> list[str]:
    """How the effect changes along each axis of the ladder."""
    said = []
    for ladder in result.ladders:
        if arm.name in ladder.trends:
            first, last = (formats.compact(ladder.rungs[end].size) for end in (0, -1))
            trend = ladder.trends[arm.name].sentence(ladder.axis, partial(_at_rung, ladder.axis))
            said.append(f"From {first} to {last} {ladder.axis}: {real_minus(trend)}.")
    return said


def _interval(effect: Effect, result: StudyResult) -> str:
    n = len(effect.differences)
    seeds = formats.seeds(n, len(result.judged_seeds))
    if effect.low is None or effect.high is None:
        # Of one seed it follows; else something more is open.
        text = f"{seeds}, {'so ' if n == 1 else ''}no interval"
        text += "" if n == 1 else f": {effect.no_interval}"
    else:
        ends = f"{nats(effect.low)} to {nats(effect.high)}"
        text = f"{percent(effect.level)}: {ends}, {seeds}"
    return text + ("; exploratory: fewer than five seeds" if n < FEWEST_SEEDS else "")


def _undecided(arm: Arm, result: StudyResult) -> list[str]:
    """Of an arm that has no verdict to say so: a placebo is no surer than its baseline."""
    base, why = result.baseline, arm.undecided
    if why is None and arm.role == "placebo" and base.undecided is not None:
        why = f"{clean(base.name)}: {base.undecided}"
    if arm.verdict is not None or why is None:
        return []
    provisional = ", so that these figures are provisional" if arm.mean is not None else ""
    return [f"Undecided: {why}{provisional}."]


def _chance(arm: Arm, result: StudyResult) -> list[str]:
    """What a placebo is for: it changes nothing, so that its differences are chance.

    Unless one of the two was not found at its best: then they are of the search as well.
    """
    if arm.role != "placebo" or arm.effect is None:
        return []
    base = result.baseline
    if arm.undecided is not None or base.undecided is not None:
        return []
    if arm.chance is not None and arm.chance.warning is not None:
        return [f"Nothing was changed here: {arm.chance.warning}."]
    largest = max(map(abs, arm.effect.differences.values()))
    by = f"single seeds differ by up to {nats(largest)} nats" if largest else "no seed differs"
    return [f"Nothing was changed here, so this is what chance alone gives: {by}."]


def _left_out(arm: Arm, result: StudyResult) -> list[str]:
    if arm.effect is None or result.cells:
        return []
    missing = len(result.judged_seeds) - len(arm.effect.differences)
    if missing <= 0:
        return []
    if missing == 1:
        return ["One pair is incomplete and left out, with nothing put in its place."]
    return [f"{missing} pairs are incomplete and left out, with nothing put in their place."]


def _edge(arm: Arm, result: StudyResult) -> list[str]:
    """Of a fixed grid: a search goes on past an edge, and says where it could not."""
    if result.facts.searched or arm.edge is None or arm.best_rate is None:
        return []
    return [
        f"Its best rate, {rate(arm.best_rate)}, is the {arm.edge} of the grid: a better one may "
        "lie beyond."
    ]


def _diverged(arm: Arm, base: Arm) -> list[str]:
    if not arm.n_runs:
        return []
    own = f"{arm.n_diverged} of {arm.n_runs} runs diverged"
    if arm is base or not base.n_runs or not (arm.n_diverged or base.n_diverged):
        return [f"{own}."]
    return [f"{own}, against {base.n_diverged} of {base.n_runs} of {clean(base.name)}."]


def _stops_learning(arm: Arm, result: StudyResult) -> list[str]:
    """From which rate on an arm that can learn no longer does, in all of its seeds or in some."""
    failing = arm.margin.failing if arm.margin is not None else ()
    if not failing:
        return []
    no_more = "no more than how often each token occurs"
    if any(fate.n_failed < fate.n for fate in failing):
        counts = [f"{fate.n_failed} of {fate.n} at {rate(fate.learning_rate)}" for fate in failing]
        only_diverge = all(fate.n_failed == fate.n_diverged for fate in failing)
        what = "diverge" if only_diverge else f"diverge or learn {no_more}"
        return [f"Above its best rate some of its seeds {what}: {listed(counts)}."]
    first = failing[0]
    tried = ""
    if first.n < len(result.facts.seeds):
        tried = f", tried with {formats.seeds(first.n, first.n)},"
    return [
        f"At {rate(first.learning_rate)} and every higher rate{tried} it diverges or learns "
        f"{no_more}."
    ]


def _insensitive(arm: Arm) -> list[str]:
    """Seeds without a rate sensitivity, beside others that have one to speak for them."""
    found = arm.sensitivity
    if found is None or not 0 < found.n < found.n_seeds:
        return []
    without = formats.seeds(found.n_seeds - found.n, found.n_seeds)
    few = "; too few are left for the arm's" if found.mean is None else ""
    return [f"Without a rate sensitivity, as they learn at no rate of the grid: {without}{few}."]


def _stalled(arm: Arm, result: StudyResult) -> list[str]:
    if not arm.n_stalled:
        return []
    return [
        f"{arm.n_stalled} of {arm.n_at_best} runs at its best rate stalled on the unigram entropy "
        f"({nats(result.facts.unigram_entropy)} nats): they learnt how often each token occurs "
        "and next to nothing of their order."
    ]
