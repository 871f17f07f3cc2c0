"""How large a study was, at which rates it trained and what it ran on, in short texts.

A study with several sizes, among its arms or among its nuisances, is told from the smallest to
the largest: what belongs to one of them alone would be wrong of all others.
"""

from collections.abc import Callable, Mapping, Sequence

from blocklab.report.formats import counted, fixed, listed, nats, rate, thousands
from blocklab.study.rates import search_grid
from blocklab.study.results import StudyResult
from blocklab.study.wording import percent


def ranged(
    values: Sequence[float], shown: Callable[[float], str] = thousands, noun: str = ""
) -> str:
    """`4`, or `2 to 4` where the smallest and the largest read differently; so many of a `noun`."""
    low, high = shown(min(values)), shown(max(values))
    text = low if low == high else f"{low} to {high}"
    return f"{text} {noun}{'' if text == '1' else 's'}" if noun else text


def model(result: StudyResult) -> str:
    """`d_model 64, 2 to 4 layers, context 128`."""
    scales = result.facts.scales
    return (
        f"d_model {ranged([one.d_model for one in scales])}, "
        f"{ranged([one.n_layers for one in scales], noun='layer')}, "
        f"context {ranged([one.context_length for one in scales])}"
    )


def started_from(result: StudyResult) -> tuple[float, ...]:
    """The rates that every arm is trained at: the whole grid, or the one that a search begins with.

    A search takes rates that lie ×3 apart, which need not be those that the study states.
    """
    stated = result.facts.learning_rates
    return search_grid(stated) if result.facts.searched else tuple(stated)


def trained_rates(result: StudyResult) -> tuple[float, ...]:
    """Every rate that the study trains at, as far as it has come: the grid and what was added."""
    added = {run.learning_rate for run in result.runs}
    return tuple(sorted({*started_from(result), *added}))


def kicker(result: StudyResult) -> str:
    """How large the study was, in one line."""
    facts = result.facts
    n_rungs = 1 + sum(len(ladder.rungs) - 1 for ladder in result.ladders)
    return " · ".join(
        (
            f"{facts.budget} study",
            counted(len(result.arms), "arm"),
            *([counted(len(result.cells), "setting")] if result.cells else []),
            *([counted(n_rungs, "rung")] if result.ladders else []),
            counted(len(trained_rates(result)), "learning rate"),
            counted(len(facts.seeds), "seed"),
            counted(len(result.runs), "run"),
        )
    )


def circumstances(result: StudyResult) -> Mapping[str, str]:
    """A name and a text for everything that a result depends on."""
    facts, scales = result.facts, result.facts.scales
    return {
        "Corpus": f"{facts.corpus}, {thousands(facts.train_tokens)} training and "
        f"{thousands(facts.validation_tokens)} validation tokens",
        "Tokenizer": f"{facts.tokenizer}, {thousands(facts.vocab_size)} tokens, unigram "
        f"entropy {nats(facts.unigram_entropy)} nats",
        "Model": model(result),
        "Training": f"{ranged([one.steps for one in scales], noun='step')} of "
        f"{ranged([one.batch_size for one in scales], noun='sequence')}",
        "Learning rates": _rates(result),
        "Seeds": ", ".join(map(str, facts.seeds)),
        "Matched by": facts.match,
        **_processor_time(result),
        **_beside_training(result),
        **facts.versions,
    }


def _rates(result: StudyResult) -> str:
    grid = started_from(result)
    if not result.facts.searched:
        return ", ".join(map(rate, grid))
    added = [rate(one) for one in trained_rates(result) if one not in grid]
    text = f"searched from {listed(list(map(rate, grid)))} on"
    return f"{text}; added for one arm or more: {', '.join(added)}" if added else text


def _processor_time(result: StudyResult) -> Mapping[str, str]:
    """Of all processes, and what of it was not training; empty where it is not known."""
    cost = result.facts.cost
    if cost is None:
        return {}
    spent = cost.main + cost.workers
    return {
        "Processor time": f"{thousands(spent)} s, {fixed(cost.main, 1)} s of them in the process "
        "that planned and watched"
    }


def _beside_training(result: StudyResult) -> Mapping[str, str]:
    """What looking into models and compiling took, beside training; empty where none was."""
    seconds = sum(run.seconds for run in result.runs)
    looking = sum(run.inspect_seconds for run in result.runs)
    compiling = sum(run.compile_seconds for run in result.runs)
    found = {}
    if looking:
        found["Looking inside"] = f"{percent(looking / seconds, 1)} of the time of training"
    if compiling:
        found["Compiling"] = f"{percent(compiling / seconds, 1)} of the time of training, beside it"
    return found
