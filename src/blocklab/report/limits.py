"""What a study cannot claim, in words: the circumstances that belong to every number it gives."""

import math
from collections.abc import Sequence

from blocklab.report import formats
from blocklab.report.circumstances import model, ranged, started_from
from blocklab.report.curves import best_runs
from blocklab.report.formats import clean, compact, listed, nats, rate, real_minus, thousands
from blocklab.study.results import Arm, Repeat, StudyResult
from blocklab.study.verdict import FEWEST_SEEDS
from blocklab.study.wording import percent

MOST_EPOCHS = 4.0
FEWEST_VALIDATION_TOKENS = 100_000

LEFT_OPEN = {"parameters": 0.02, "flops": 0.02, "time": 0.1}
"""Share of the baseline's size up to which an arm counts as matched: a width in steps of 8, or a
clock, comes no nearer."""


def warnings(result: StudyResult) -> list[str]:
    """What a reader must know before any number; it belongs into the first lines."""
    facts = result.facts
    found = []
    if facts.n_missing:
        missing = "one of the runs that the study asks for now is missing"
        if facts.n_missing > 1:
            missing = f"{facts.n_missing} of the runs that the study asks for now are missing"
        found.append(f"Unfinished: {missing}. Whatever is said below may still change.")
    found += _of_the_placebo(result)
    if (n := len(result.judged_seeds)) < FEWEST_SEEDS:
        seeds = formats.seeds(n, n)
        since = f" since the {facts.looked} that were reported before" if facts.looked else ""
        found.append(f"Only {seeds}{since}: read every effect as exploratory. Take five or more.")
    epochs = max((run.epochs for run in result.runs), default=0.0)
    if epochs > MOST_EPOCHS:
        found.append(
            f"The training text was seen {epochs:.1f} times: beyond four epochs, what is measured "
            "is also how well an arm memorises."
        )
    if facts.validation_tokens < FEWEST_VALIDATION_TOKENS:
        found.append(
            f"Only {thousands(facts.validation_tokens)} validation tokens: below 100,000 the "
            "losses themselves are blurred, for all arms alike."
        )
    if unmatched := _unmatched(result):
        found.append(
            f"Not matched by {clean(facts.match)}: {listed(unmatched)}, against "
            f"{clean(result.baseline.name)}. What such an arm gains or loses may be its size."
        )
    return found


def _of_the_placebo(result: StudyResult) -> list[str]:
    """That an arm which changes nothing did differ, over all settings or at one of them."""
    found = {"": result.arms, **{f"At {clean(name)}: ": a for name, a in result.cells.items()}}
    return [
        f"{where}{arm.chance.warning[:1].upper()}{arm.chance.warning[1:]}."
        for where, arms in found.items()
        for arm in arms
        if arm.chance is not None and arm.chance.warning is not None
    ]


def off_size(match: str, size: float, baseline: float) -> float | None:
    """By what share of the baseline's an arm's size is off, where matching should leave less.

    Sizes are of what is matched: parameters, FLOPs or seconds. None where it is near enough, or
    where nothing was to match.
    """
    share = size / baseline - 1
    return share if match in LEFT_OPEN and abs(share) > LEFT_OPEN[match] else None


def _unmatched(result: StudyResult) -> list[str]:
    """`mine (+37 %)` for every variant of another size, wherever it is furthest off."""
    match = result.facts.match
    furthest: dict[str, float] = {}
    rungs = [rung.arms for ladder in result.ladders for rung in ladder.rungs]
    for base, *others in (result.arms, *result.cells.values(), *rungs):
        for arm in others:
            share = off_size(match, _size(arm, match), _size(base, match))
            if arm.role == "variant" and share is not None:
                furthest[arm.name] = max(furthest.get(arm.name, 0.0), share, key=abs)
    return [
        f"{clean(name)} ({real_minus(percent(share, signed=True))})"
        for name, share in furthest.items()
    ]


def _size(arm: Arm, match: str) -> float:
    """Of what is matched; equal for all where it is not known yet."""
    if match == "time":
        return 1 / arm.tokens_per_second if arm.tokens_per_second else 1.0
    return float(arm.flops_per_token if match == "flops" else arm.n_parameters)


def limits(result: StudyResult) -> list[tuple[str, str]]:
    """A heading and a paragraph for everything that the numbers do not show."""
    found = [
        ("Scale", _scale(result)),
        ("Seeds", _seeds(result)),
        ("One corpus", _corpus(result)),
        ("Learning rates", _rates(result)),
        ("Intervals", _intervals(result)),
    ]
    if precision := _precision(result):
        found.append(("Precision", precision))
    if gap := _gap(result):
        found.append(("Training and validation", gap))
    return found


def _scale(result: StudyResult) -> str:
    facts, scales = result.facts, result.facts.scales
    epochs = [run.epochs for run in result.runs if not run.rung and run.diverged_at is None]
    seen = ranged(epochs, _two_digits, "epoch") if epochs else "as yet no whole run"
    a_parameter = [one.tokens / one.n_parameters for one in scales]
    return (
        f"Models of {ranged([one.n_parameters for one in scales], compact, 'parameter')} "
        f"({model(result)}), each trained on {ranged([one.tokens for one in scales], noun='token')}"
        f": {ranged(a_parameter, _two_digits, 'token')} a parameter, {seen} of "
        f"{thousands(facts.train_tokens)} training tokens. A ranking at this scale need not hold "
        f"at another{_ladder(result)}."
    )


def _two_digits(value: float) -> str:
    return f"{value:.2g}"


def _ladder(result: StudyResult) -> str:
    """How far the study itself has looked beyond its scale."""
    if not result.ladders:
        return ""
    reach = (
        f"{compact(ladder.rungs[0].size)} to {compact(ladder.rungs[-1].size)} {ladder.axis}"
        for ladder in result.ladders
    )
    return f": the ladder tells of {listed(list(reach))}, and of nothing beyond"


def _seeds(result: StudyResult) -> str:
    n = len(result.facts.seeds)
    text = f"{n} seeds vary" if n > 1 else "One seed decides"
    text += " the initial values and the order of the data, and nothing else."
    if result.facts.looked:
        text += (
            f" The first {result.facts.looked} were reported before the others were added, so "
            "that losses, effects and verdicts come from the others alone."
        )
    if len(result.facts.looks) > 1:
        first, all_of_them = result.facts.looks
        text += (
            f" The study was declared to look after {first} seeds, and after {all_of_them} where "
            "something was open then: p values and intervals pay for both looks."
        )
    if len(result.judged_seeds) < FEWEST_SEEDS:
        text += " Fewer than five judge: the effects are exploratory, a reason to look again."
    return text


def _corpus(result: StudyResult) -> str:
    facts = result.facts
    return (
        f"{clean(facts.corpus)} in {clean(facts.tokenizer)} ({thousands(facts.vocab_size)} tokens "
        f"in the vocabulary), validated on {thousands(facts.validation_tokens)} tokens. Another "
        "text or another tokenizer may rank the arms differently."
    )


def _rates(result: StudyResult) -> str:
    rates = [rate(value) for value in started_from(result)]
    if result.facts.searched:
        slacks = [arm.slack for arm in result.arms if arm.slack is not None]
        finite = [slack for slack in slacks if math.isfinite(slack)]
        widest = f" The widest is {nats(max(finite))} nats." if finite else ""
        return (
            f"Every arm's rate was searched from {listed(rates)} on with a seed that does not "
            "report, then every seed was trained at three rates around the best, and each is read "
            "at the lowest point of the parabola through the means. What a parabola cannot know is "
            f"counted as slack and widens the intervals.{widest} Nothing else was tuned."
        )
    if len(rates) == 1:
        return (
            f"All arms were trained at the single rate {rates[0]}. An arm whose best rate lies "
            "elsewhere is undersold, and a single rate can decide a ranking."
        )
    text = (
        f"Every arm was trained at {listed(rates)} and is read at the one where its own mean loss "
        "was lowest. What lies between and beyond is unknown, the choice was made on the tokens "
        "that are reported, and nothing else was tuned for any arm."
    )
    at_edge = [clean(arm.name) for arm in result.arms if arm.edge]
    if at_edge:
        text += f" At an edge of the grid, so perhaps not at their best: {listed(at_edge)}."
    return text


def _intervals(result: StudyResult) -> str:
    n = sum(arm.role == "variant" for arm in result.arms)
    level, misses = percent(result.level), round(100 * (1 - result.level))
    text = (
        ("Verdicts hold for all variants together (Holm). " if result.facts.searched else "")
        + f"Each {level} interval holds one at a time, not for all of them together"
        + (f": that at least one of {n} misses may happen in up to {min(misses * n, 100)} % of "
           "studies" if n > 1 else "")
        + ". It comes from a paired t over the seeds, and covers their chance alone: not another "
        "corpus, another size or another grid of rates. Diverged runs have no place in it."
    )  # fmt: skip
    if result.facts.match != "none":
        but = f", all but {listed(unmatched)}" if (unmatched := _unmatched(result)) else ""
        text += (
            f" Arms were matched by {clean(result.facts.match)}{but}; the table shows what is left."
        )
    return text


def _precision(result: StudyResult) -> str:
    if result.facts.versions.get("dtype", "float32") == "float32":
        return ""
    text = (
        f"Matrix products in training were taken in {result.facts.versions['dtype']}; weights, "
        "norms, softmax and losses are float32, and so is every evaluation."
    )
    return " ".join([text, *_repeats(result)])


def _repeats(result: StudyResult) -> list[str]:
    """What every repeat in float32 came to: where half precision fails, that is what it is for."""
    half = result.facts.versions["dtype"]
    due = [(_where(arm, repeat), repeat) for arm in result.arms for repeat in arm.repeats]
    if not due:
        return []
    said = ["One seed of each arm is trained once more in float32 throughout."]
    ended = [(name, repeat.difference) for name, repeat in due]
    off = [f"{name} {nats(found, signed=True)}" for name, found in ended if found is not None]
    if off:
        said.append(f"Its final loss in {half} minus that in float32, in nats: {'; '.join(off)}.")
    for name, repeat in due:
        if repeat.trained and repeat.difference is None:
            said.append(f"{name} {_ended(repeat.half, half)} and {_ended(repeat.full, 'float32')}.")
    if missing := [name for name, repeat in due if not repeat.trained]:
        said.append(f"Not trained in float32 yet: {listed(missing)}.")
    return said


def _where(arm: Arm, repeat: Repeat) -> str:
    return f"{clean(arm.name)} at {clean(repeat.cell)}" if repeat.cell else clean(arm.name)


def _ended(loss: float | None, dtype: str) -> str:
    return f"diverged in {dtype}" if loss is None else f"came to {nats(loss)} in {dtype}"


def _gap(result: StudyResult) -> str:
    gaps = [_gap_of(arm, found) for arm in result.arms if (found := _gaps(arm, result))]
    if not gaps:
        return ""
    return (
        "Validation loss minus training loss (mean over the last tenth of the steps) at the best "
        f"rate, in nats: {'; '.join(gaps)}. An arm with a wider gap fits its own text more than "
        "the language."
    )


def _gap_of(arm: Arm, gaps: Sequence[float]) -> str:
    text = f"{clean(arm.name)} {nats(sum(gaps) / len(gaps), signed=True)}"
    counts = formats.part_of(len(gaps), arm.n_at_best, "run")
    return f"{text} ({counts})" if counts else text


def _gaps(arm: Arm, result: StudyResult) -> list[float]:
    """Of every run that tells it, over all settings, each at the best rate there."""
    places = [result.in_cell(cell) for cell in result.cells] or [result.shown()]
    return [
        run.validation_loss - run.train_loss
        for place in places
        for own in place.arms
        if own.name == arm.name
        for run in best_runs(own, place.runs)
        if run.validation_loss is not None and run.train_loss is not None
    ]
