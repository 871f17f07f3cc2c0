"""The four-way ablation and the claim that goes with it, by two of the questions that ship."""

from dataclasses import replace
from typing import Any, NamedTuple

from blocklab.experiment import run_study
from blocklab.report import formats
from blocklab.report.charts import charts
from blocklab.report.formats import counted
from blocklab.reproduce.comparison import Row, alone, claim
from blocklab.reproduce.experiment import Found, Place
from blocklab.study.results import StudyResult
from blocklab.study.shipped import find_study
from blocklab.training.stability import learnt


def four_way(_: dict[str, Any], place: Place) -> Found:
    """`modern_block` for the report, `warmup` for the claim, both at their quick budget."""
    block = _studied("modern_block", place)
    warmup = _studied("warmup", place)
    rows = [_report(arm.name, block) for arm in block.arms if arm.role != "placebo"]
    rows += _claims(warmup)
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


def _claims(result: StudyResult) -> list[Row]:
    """What the claim says of both placements, and what warm-up changes."""
    post, pre = _failed("post-norm-no-warmup", result), _failed("no-warmup", result)
    warmed = _failed("post-norm", result)
    return [
        claim("post-norm without warm-up", "diverges", post.words, post.any),
        claim("pre-norm without warm-up", "does not diverge", pre.words, not pre.any),
        alone("post-norm with warm-up", warmed.words),
    ]


class _Failed(NamedTuple):
    """Runs of an arm, over all its rates and seeds, that came to nothing."""

    diverged: int
    unlearnt: int
    """Ended no lower than how often each token occurs can give, within 0.05 nats."""
    runs: int

    @property
    def any(self) -> bool:
        return self.diverged + self.unlearnt > 0

    @property
    def words(self) -> str:
        return (
            f"of {counted(self.runs, 'run')} {self.diverged} diverged, {self.unlearnt} learnt no "
            "more than how often each token occurs"
        )


def _failed(name: str, result: StudyResult) -> _Failed:
    runs = [run for run in result.runs if run.arm == name]
    ended = [run.validation_loss for run in runs if run.diverged_at is None]
    unlearnt = sum(not learnt(loss, result.facts.unigram_entropy) for loss in ended)
    return _Failed(len(runs) - len(ended), unlearnt, len(runs))
