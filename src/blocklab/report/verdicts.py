"""The word that an arm gets, one for headline, sentence and table, and what decides its sign.

The order of the words is the design's: what stops a verdict comes before what a nuisance does to
it. Where nothing stops it, a sign that a nuisance decides comes before any average over it.
"""

from blocklab.report.formats import listed, nats, real_minus
from blocklab.study.interaction import Interaction
from blocklab.study.nuisances import FactorFinding, NuisanceFinding
from blocklab.study.results import Arm
from blocklab.study.statistics import Estimate
from blocklab.study.verdict import Verdict
from blocklab.study.wording import interval_text


def word(arm: Arm) -> str:
    """What the study says of an arm, without figures; empty where it claims nothing."""
    verdict = arm.verdict
    if verdict is None:
        return "" if arm.undecided is None else "undecided"
    flips = _flips(arm)
    if flips and _is_tested(verdict):
        return _depending(flips)
    if verdict.word == "equivalent":
        return f"equivalent within {verdict.delta:g} nats"
    if verdict.word in ("better", "worse") and verdict.below_delta and verdict.earlier is None:
        return f"{verdict.word}, but by less than {verdict.delta:g} nats"
    return verdict.word


def claim(arm: Arm) -> str:
    """The word with its figures, then on which nuisances the effect depends, in sentences."""
    assert arm.verdict is not None
    said = real_minus(arm.verdict.sentence)
    flips = _flips(arm)
    if not flips:
        return f"{said}.{_depends(arm.dependence, arm.verdict.estimate, said)}"
    turned = f"{_depending(flips)}: {real_minus('; '.join(map(_turned, flips)))}"
    assert arm.dependence is not None
    rest = real_minus(_sentences(". ".join(arm.dependence.remarks(flips))))
    if _is_tested(arm.verdict):
        return f"{turned}. Over all settings: {said}.{rest}"
    return f"{said}. As far as it can be compared: {turned}.{rest}"


def _is_tested(verdict: Verdict) -> bool:
    """Whether nothing stopped it: of an arm that is undecided or unstable no word is tested."""
    return verdict.p is not None


def interaction_claim(found: Interaction) -> str:
    """What two changes are worth together, and on which nuisances that depends, in sentences."""
    said, depends = real_minus(found.sentence), found.dependence
    flips = _deciding(depends)
    if depends is None or not flips:
        return f"{said}.{_depends(depends, found.estimate, said)}"
    factors = listed([flip.factor for flip in flips])
    turned = f"together better or worse than the sum depending on {factors}: "
    turned += real_minus("; ".join(map(_turned, flips)))
    rest = real_minus(_sentences(". ".join(depends.remarks(flips))))
    if found.p is not None:
        return f"{turned}. Over all settings: {said}.{rest}"
    return f"{said}. As far as it can be compared: {turned}.{rest}"


def _flips(arm: Arm) -> list[FactorFinding]:
    """The nuisances that decide the sign of an arm's effect."""
    return _deciding(arm.dependence)


def _deciding(found: NuisanceFinding | None) -> list[FactorFinding]:
    factors = found.factors if found is not None else ()
    return [factor for factor in factors if factor.word == "flips"]


def _depending(flips: list[FactorFinding]) -> str:
    return f"better or worse depending on {listed([flip.factor for flip in flips])}"


def _turned(flip: FactorFinding) -> str:
    """`better by 0.367 nats at normal (…), worse by 0.249 nats at fan_in (…)`."""
    effects = sorted(
        ((level, flip.by_level[level]) for level in flip.levels), key=lambda at: at[1].mean
    )
    return ", ".join(
        f"{'better' if effect.mean < 0 else 'worse'} by {nats(abs(effect.mean))} nats at {level} "
        f"({interval_text(effect)})"
        for level, effect in effects
    )


def _depends(found: NuisanceFinding | None, estimate: Estimate | None, said: str) -> str:
    """What the nuisances say of a claim without a flip; not once more the effect that it said."""
    if found is None:
        return ""
    own = "" if estimate is None else real_minus(interval_text(estimate))
    repeats = found.headline is not None and real_minus(interval_text(found.headline)) == own
    text = ". ".join(found.remarks()) if repeats and own in said else found.sentence
    return real_minus(_sentences(text))


def _sentences(text: str) -> str:
    """Every sentence of it with a capital, after a space; nothing of nothing."""
    if not text:
        return ""
    return " " + ". ".join(part[:1].upper() + part[1:] for part in text.split(". ")) + "."
