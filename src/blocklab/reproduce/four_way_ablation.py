"""The four-way ablation and the claim that goes with it, by two of the questions that ship."""

from dataclasses import replace
from typing import Any

from blocklab.experiment import run_study
from blocklab.report import formats
from blocklab.report.charts import charts
from blocklab.reproduce.comparison import Row, alone, claim
from blocklab.reproduce.experiment import Found, Place
from blocklab.study.results import StudyResult
from blocklab.study.shipped import find_study


def four_way(_: dict[str, Any], place: Place) -> Found:
    """`modern_block` for the report, `warmup` for the claim, both at their quick budget."""
    block = _studied("modern_block", place)
    warmup = _studied("warmup", place)
    rows = [_report(arm.name, block) for arm in block.arms if arm.role != "placebo"]
    for arm, words in (("post-norm-no-warmup", "diverges"), ("no-warmup", "does not diverge")):
        diverged, runs = _diverged(arm, warmup)
        placement = "post-norm" if arm.startswith("post") else "pre-norm"
        holds = diverged > 0 if words == "diverges" else diverged == 0
        rows.append(
            claim(
                f"{placement} without warm-up, over all rates",
                words,
                f"{diverged} of {runs} runs diverged, {_stalled(arm, warmup)} stalled at the best",
                holds,
            )
        )
    drawn = [
        replace(chart, name=f"{prefix}-{chart.name}", title=f"{chart.title} ({prefix})")
        for prefix, result in (("four-way", block), ("warm-up", warmup))
        for chart in charts(result)
    ]
    notes = (
        "A quick study: three seeds, fixed rates, no verdicts. The standard one is `blocklab "
        "ablate`; what a whole run of it found stands in docs/examples/modern_block.",
    )
    return Found(tuple(rows), tuple(drawn), notes)


def _studied(name: str, place: Place) -> StudyResult:
    place.say(f"the study {name} at its quick budget")
    study = find_study(name).at_budget("quick")
    return run_study(study, place.folder / name.replace("_", "-"), say=place.say).result


def _report(name: str, result: StudyResult) -> Row:
    arm = next(arm for arm in result.arms if arm.name == name)
    loss = "none finished" if arm.mean is None else f"{formats.nats(arm.mean)} nats"
    effect = "" if arm.effect is None else f", {formats.nats(arm.effect.mean, signed=True)}"
    return alone(
        f"{name}: validation loss, against the baseline, diverged",
        f"{loss}{effect}, {arm.n_diverged} of {arm.n_runs}",
    )


def _diverged(name: str, result: StudyResult) -> tuple[int, int]:
    arm = next(arm for arm in result.arms if arm.name == name)
    return arm.n_diverged, arm.n_runs


def _stalled(name: str, result: StudyResult) -> int:
    return next(arm for arm in result.arms if arm.name == name).n_stalled
