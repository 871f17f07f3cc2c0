"""The answer of a study in words: pure functions from results to sentences.

Where rates were searched, a variant's sentence is its verdict. Where a fixed grid was trained there
are effects with their intervals and no verdict: better and worse are then signs of a number.
"""

import re
from collections.abc import Sequence

from blocklab.report import formats
from blocklab.report.formats import clean, listed, nats, rate, real_minus
from blocklab.study.nuisances import FactorFinding
from blocklab.study.results import Arm, Effect, StudyResult
from blocklab.study.verdict import interval_text

ENOUGH_SEEDS = 5
"""Fewer pairs than these make an effect exploratory."""


def headline(result: StudyResult) -> str:
    """The whole study in one sentence."""
    base = result.baseline
    variants = [arm for arm in result.arms if arm.role == "variant"]
    if base.mean is None:
        return _without_a_baseline(result)
    if not variants:
        return f"{clean(base.name)} was trained alone: there is nothing to compare it with."
    if all(arm.verdict is not None for arm in variants):
        return _verdicts(variants, base)
    groups: dict[str, list[str]] = {}
    for arm in variants:
        groups.setdefault(_where(arm.effect), []).append(clean(arm.name))
    found = [f"{where} for {listed(groups[where])}" for where in _ORDER if where in groups]
    text = (
        f"Against {clean(base.name)}, each arm at its own best learning rate, the 95 % interval "
        f"of the difference in validation loss {'; it '.join(found)}"
    )
    few = _seeds_compared(result) < ENOUGH_SEEDS
    return text + ("; exploratory, with fewer than five seeds." if few else ".")


def _without_a_baseline(result: StudyResult) -> str:
    base = clean(result.baseline.name)
    lacking = [clean(name) for name, arms in result.cells.items() if arms[0].mean is None]
    if len(lacking) == len(result.cells):
        return f"No run of the baseline {base} finished, so that nothing can be compared with it."
    return (
        f"{base}, the baseline, has no loss at {listed(lacking)}, so that there is no comparison "
        "over all settings; each of the others has its own below."
    )


def _verdicts(variants: Sequence[Arm], base: Arm) -> str:
    """The words of all verdicts, each with the variants that got it."""
    groups: dict[str, list[str]] = {}
    for arm in variants:
        assert arm.verdict is not None
        said: str = arm.verdict.word
        if flips := _flips(arm):
            factors = formats.listed([flip.factor for flip in flips])
            said = f"better or worse depending on {factors}"
        elif said == "equivalent":
            said = f"equivalent within {arm.verdict.delta:g} nats"
        elif said in ("better", "worse") and arm.verdict.below_delta:
            said = f"{said}, but by less than {arm.verdict.delta:g} nats"
        groups.setdefault(said, []).append(clean(arm.name))
    found = [f"{said}: {listed(names)}" for said, names in groups.items()]
    return (
        f"Against {clean(base.name)}, each arm at its own best learning rate, {'; '.join(found)}."
    )


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


def _seeds_compared(result: StudyResult) -> int:
    pairs = [len(arm.effect.differences) for arm in result.arms if arm.effect]
    return min(pairs, default=len(result.facts.seeds))


def sentence(arm: Arm, result: StudyResult) -> str:
    """What is to be said of one arm; it begins with the arm's name."""
    parts = [
        _level(arm) if arm.role == "baseline" else _comparison(arm, result),
        *_trends(arm, result),
        *_chance(arm),
        *_left_out(arm, result),
        *_edge(arm),
        _diverged(arm, result.baseline),
        *_stalled(arm, result),
        *_stops_learning(arm),
    ]
    return " ".join(parts)


def sentences(result: StudyResult) -> list[str]:
    """One for every arm, in the order of the study."""
    return [sentence(arm, result) for arm in result.arms]


def interactions(result: StudyResult) -> list[str]:
    """One sentence for each 2×2 that the study asked for."""
    return [
        f"{clean(name)} (interaction): {real_minus(found.sentence)}."
        for name, found in result.interactions.items()
    ]


def _level(arm: Arm) -> str:
    name = clean(arm.name)
    if arm.mean is None:
        return f"{name} (the baseline): no loss can be given."
    if arm.best_rate is None:
        return (
            f"{name} (the baseline): {nats(arm.mean)} nats, mean over the settings of the "
            "nuisances, each at its own learning rate."
        )
    n = next(len(p.losses) for p in arm.rates if p.learning_rate == arm.best_rate)
    if arm.tuned_rate is not None:
        n = sum(loss is not None for loss in arm.read.values()) or n
    around = f" ± {nats(arm.spread)}" if arm.spread is not None else ""
    over = f"mean and standard deviation over {n} seeds" if n > 1 else "one seed"
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
        depends = f" {_begun(arm.dependence.sentence)}." if arm.dependence is not None else ""
        if flips := _flips(arm):
            # What decides the sign comes before any average over it.
            subject += ": " + real_minus("; ".join(map(_turned, flips))) + ". Over all settings"
            assert arm.dependence is not None
            others = [one.sentence for one in arm.dependence.factors if one not in flips]
            depends = f" {_begun('. '.join(others))}." if others else ""
        found = re.sub(r"^(better|worse) by ([\d.]+)", r"\1 by \2 nats", arm.verdict.sentence)
        return f"{subject}: {real_minus(found)}.{real_minus(depends)}"
    effect = arm.effect
    if effect is None:
        return f"{subject}: no difference can be given, because {_why_none(arm, result.baseline)}."
    if effect.mean == 0:
        return f"{subject}: on average exactly as far as {base} ({_interval(effect, result)})."
    sign = "worse" if effect.mean > 0 else "better"
    zero = "; the interval includes zero" if _where(effect) == _ORDER[1] else ""
    return (
        f"{subject}: {nats(abs(effect.mean))} nats {sign} than {base} "
        f"({_interval(effect, result)}){zero}."
    )


def _trends(arm: Arm, result: StudyResult) -> list[str]:
    """How the effect changes along each axis of the ladder."""
    said = []
    for ladder in result.ladders:
        if arm.name in ladder.trends:
            first, last = (formats.compact(ladder.rungs[end].size) for end in (0, -1))
            trend = real_minus(ladder.trends[arm.name].sentence(ladder.axis))
            said.append(f"From {first} to {last} {ladder.axis}: {trend}.")
    return said


def _flips(arm: Arm) -> list[FactorFinding]:
    """The nuisances that decide the sign of an arm's effect."""
    factors = arm.dependence.factors if arm.dependence is not None else ()
    return [factor for factor in factors if factor.word == "flips"]


def _turned(flip: FactorFinding) -> str:
    """`decided by initialization, better by 0.367 nats at normal (…), worse by 0.249 at fan_in`."""
    effects = sorted(
        ((level, flip.by_level[level]) for level in flip.levels), key=lambda at: at[1].mean
    )
    return f"decided by {flip.factor}, " + ", ".join(
        f"{'better' if effect.mean < 0 else 'worse'} by {nats(abs(effect.mean))} nats at {level} "
        f"({interval_text(effect)})"
        for level, effect in effects
    )


def _begun(text: str) -> str:
    """Every sentence of it with a capital."""
    return ". ".join(part[:1].upper() + part[1:] for part in text.split(". "))


def _interval(effect: Effect, result: StudyResult) -> str:
    n, of = len(effect.differences), len(_judged_seeds(result))
    seeds = f"{n} of {of} seeds" if n < of else "one seed" if n == 1 else f"{n} seeds"
    if effect.low is None or effect.high is None:
        return f"{seeds}, so no interval; exploratory: fewer than five seeds"
    text = f"95 %: {nats(effect.low)} to {nats(effect.high)}, {seeds}"
    return text + ("; exploratory: fewer than five seeds" if n < ENOUGH_SEEDS else "")


def _why_none(arm: Arm, base: Arm) -> str:
    if base.mean is None:
        return f"no run of {clean(base.name)} finished"
    if arm.mean is None:
        return "none of its runs finished"
    return f"no seed finished both here and in {clean(base.name)} at their best rates"


def _chance(arm: Arm) -> list[str]:
    """What a placebo is for: it changes nothing, so that its differences are chance."""
    if arm.role != "placebo" or arm.effect is None:
        return []
    largest = max(map(abs, arm.effect.differences.values()))
    return [
        "Nothing was changed here, so this is what chance alone gives: single seeds differ by up "
        f"to {nats(largest)} nats."
    ]


def _left_out(arm: Arm, result: StudyResult) -> list[str]:
    if arm.effect is None or result.cells:
        return []
    missing = len(_judged_seeds(result)) - len(arm.effect.differences)
    if missing <= 0:
        return []
    pairs = "One pair is" if missing == 1 else f"{missing} pairs are"
    return [f"{pairs} incomplete and left out, with nothing put in their place."]


def _judged_seeds(result: StudyResult) -> Sequence[int]:
    """Those that effects are read from: not the ones that were looked at before."""
    return result.facts.judged_seeds or result.facts.seeds


def _edge(arm: Arm) -> list[str]:
    if arm.tuned_rate is not None or arm.edge is None or arm.best_rate is None:
        return []
    if len(arm.rates) < 2:
        return []
    return [
        f"Its best rate, {rate(arm.best_rate)}, is the {arm.edge} of the grid: a better one may "
        "lie beyond."
    ]


def _diverged(arm: Arm, base: Arm) -> str:
    own = f"{arm.n_diverged} of {arm.n_runs} runs diverged"
    if arm is base or not (arm.n_diverged or base.n_diverged):
        return f"{own}."
    return f"{own}, against {base.n_diverged} of {base.n_runs} of {clean(base.name)}."


def _stops_learning(arm: Arm) -> list[str]:
    """From which rate on an arm that can learn no longer does."""
    margin = arm.margin
    if margin is None or margin.stops_learning_from is None:
        return []
    first = float(f"{margin.best_rate * margin.stops_learning_from:.3g}")
    return [
        f"At {rate(first)} and every higher rate it diverges or learns no more than how often each "
        "token occurs."
    ]


def _stalled(arm: Arm, result: StudyResult) -> list[str]:
    if not arm.n_stalled:
        return []
    return [
        f"{arm.n_stalled} of {arm.n_at_best} runs at its best rate stalled on the unigram entropy "
        f"({nats(result.facts.unigram_entropy)} nats): they learnt how often each token occurs "
        "and next to nothing of their order."
    ]
