"""What a study found, as plain values: one record a run, one an arm, one for the whole.

Nothing here trains, reads a file or draws; the report and the terminal show these and no more.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from blocklab.study.cost import Cost
from blocklab.study.interaction import Interaction
from blocklab.study.ladder import Trend
from blocklab.study.nuisances import NuisanceFinding
from blocklab.study.rate_stability import Sensitivity, StableMargin
from blocklab.study.rates import Losses
from blocklab.study.statistics import Effect as Effect
from blocklab.study.verdict import Placebo, Verdict
from blocklab.training.inspection import Insides, Inspection
from blocklab.training.stability import GradientNorms, Spikes

Axis = Literal["tokens", "parameters"]
"""What grows from rung to rung of a ladder."""

ArmRole = Literal["baseline", "variant", "placebo"]

IN_FLOAT32 = "in float32"
"""Stands for the rung of the runs that repeat one of half precision in full."""

SEARCH_SEED = 0
"""The seed that rates are searched with; it never reports. Reporting seeds are 1 to n."""


@dataclass(frozen=True)
class Point:
    """One logged step of a run."""

    step: int
    """Steps done, 1 for the first."""
    train_loss: float | None
    """Mean loss of the step's batch before its update, nats; None when not finite."""
    learning_rate: float
    gradient_norm: float | None
    """Norm over all parameters before clipping."""


@dataclass(frozen=True)
class RunResult:
    """One finished training of one arm at one learning rate with one seed."""

    id: str
    arm: str
    seed: int
    learning_rate: float
    validation_loss: float | None
    """Token-weighted mean over the whole validation part, nats; None when diverged."""
    train_loss: float | None
    """Mean over the last tenth of the steps, nats; None when diverged."""
    start_loss: float
    """Loss of the first batch before any update, nats."""
    diverged_at: int | None
    """Step at which a value was no longer finite, or the last step when the loss ended high."""
    diverged_in: str | None
    """What was not finite first: `loss`, `gradient of PATH`, `PATH`; or `final loss`."""
    steps: int
    tokens: int
    epochs: float
    seconds: float
    tokens_per_second: float
    peak_memory: int
    """Largest resident memory of the process, bytes."""
    curve: tuple[Point, ...] = ()
    """What was logged, thinned; of the runs that are drawn, those at an arm's best rate."""
    validation_curve: tuple[tuple[int, float], ...] = ()
    """(step, loss) of the evaluations on the way, if any were asked for; of the same runs."""
    cell: str = ""
    """The setting of the nuisances, in words; empty without any."""
    rung: str = ""
    """The ladder's rung, in words; empty for the study itself."""
    spikes: Spikes | None = None
    """None where the run is too short to tell."""
    norms: GradientNorms | None = None
    log_z: float | None = None
    """Of the output's softmax: mean over the last tenth of the steps."""
    insides: Insides | None = None
    """None where the run was not looked into."""
    looks: tuple[tuple[int, Inspection], ...] = ()
    """(step, look) for some of the looks, evenly spread; of the same runs."""
    recall: float | None = None
    """Share of determined answers given, where it was asked for."""
    inspect_seconds: float = 0.0
    """Of `seconds`, what looking into the model took."""
    compile_seconds: float = 0.0
    """Beside `seconds`."""


@dataclass(frozen=True)
class RatePoint:
    """One learning rate of one arm over all seeds."""

    learning_rate: float
    losses: Mapping[int, float]
    """Validation loss by seed, diverged runs left out."""
    n_diverged: int
    mean: float | None
    """Over the finite seeds; None when all diverged."""
    spread: float | None
    """Sample standard deviation; None under two finite seeds."""


@dataclass(frozen=True)
class Repeat:
    """One run in half precision, and the same once more in float32."""

    cell: str
    """The setting of the nuisances; empty without any."""
    half: float | None
    """Final loss, nats; None where it diverged."""
    full: float | None
    """None where it diverged, or is not trained yet."""
    trained: bool
    """Whether the repeat is."""

    @property
    def difference(self) -> float | None:
        """Half minus full, nats; None unless both ended well."""
        return None if self.half is None or self.full is None else self.half - self.full


@dataclass(frozen=True)
class Arm:
    """One arm of the study: what it is, how it did at every rate, how it compares."""

    name: str
    role: ArmRole
    changes: Mapping[str, object]
    """Paths and values that differ from the baseline, as declared."""
    matched: Mapping[str, object]
    """Paths and values solved so that sizes match."""
    n_parameters: int
    flops_per_token: int
    tokens_per_second: float | None
    """None while no run is finished."""
    peak_memory: int
    rates: tuple[RatePoint, ...]
    best_rate: float | None
    """The grid's rate with the lowest mean loss among those where fewest runs diverged."""
    edge: Literal["lowest", "highest"] | None
    """Whether the best rate stands at an end of the grid, so that a better one may lie beyond."""
    mean: float | None
    """Mean validation loss at the best rate, over the seeds that effects are read from."""
    spread: float | None
    n_diverged: int
    """Runs that diverged over the whole grid."""
    n_runs: int
    n_stalled: int
    """Runs at the best rate that ended within 0.05 nats of the unigram entropy."""
    n_at_best: int
    """Reporting runs at the best rate, diverged ones too."""
    effect: Effect | None
    """None for the baseline, or when no pair is complete."""
    verdict: Verdict | None = None
    """What may be claimed of a variant; None where rates were not searched."""
    chance: Placebo | None = None
    """Of the placebo, where rates were searched."""
    dependence: NuisanceFinding | None = None
    """On which nuisances the effect depends; None without nuisances."""
    read: Losses = field(default_factory=dict)
    """Loss by seed at the tuned rate, None where the run there diverged; empty for a fixed grid."""
    tuned_rate: float | None = None
    """The vertex of the curve over rates, usually between two that were trained."""
    slack: float | None = None
    """How far below its reading the arm's true best loss may lie, nats."""
    undecided: str | None = None
    """Why its best rate was not found."""
    sensitivity: Sensitivity | None = None
    """Mean over the grid of what a rate loses against the best; None while no seed has it all."""
    margin: StableMargin | None = None
    spikes_per_thousand: float | None = None
    """Mean over the runs at the best rate that are long enough to tell; None without any."""
    n_spikes: int = 0
    """How many of those there are."""
    recall: float | None = None
    """Share of determined answers given: mean over the runs at the best rate that ended well."""
    n_recall: int = 0
    """How many of those there are."""
    searching: bool = False
    """Whether the search for its best rate has not ended yet, so that no seed reports."""
    repeats: tuple[Repeat, ...] = ()
    """One run of each setting that is due once more in float32; empty where none is."""

    @property
    def known_slack(self) -> float:
        """The slack, or none where it is not known: `undecided` then says why."""
        return self.slack if self.slack is not None and math.isfinite(self.slack) else 0.0


@dataclass(frozen=True)
class Text:
    """What a study needs to know of its prepared text, without opening it."""

    fingerprint: str
    vocab_size: int
    tokenizer: str
    unigram_entropy: float
    """Of the training tokens, nats."""
    train_tokens: int
    validation_tokens: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scale:
    """How large an arm is at one setting of the nuisances, and how long each of its runs is."""

    n_parameters: int
    d_model: int
    n_layers: int
    context_length: int
    batch_size: int
    """Sequences a step."""
    steps: int

    @property
    def tokens(self) -> int:
        """That one run is trained on."""
        return self.steps * self.batch_size * self.context_length


@dataclass(frozen=True)
class Facts:
    """The circumstances of a study, which are part of its claim."""

    question: str
    budget: str
    command: str
    """What to type to run it again."""
    corpus: str
    tokenizer: str
    vocab_size: int
    unigram_entropy: float
    """Of the training tokens, nats."""
    train_tokens: int
    validation_tokens: int
    """How many each final loss is the mean of."""
    scales: tuple[Scale, ...]
    """Those that the arms have over all settings, each once and the baseline's first; the ladder
    left out."""
    seeds: tuple[int, ...]
    learning_rates: tuple[float, ...]
    """As the study states them; a search trains others."""
    match: str
    versions: Mapping[str, str]
    """blocklab, torch, python, device, dtype, threads …"""
    notes: tuple[str, ...]
    delta: float = 0.01
    """The smallest effect that matters, nats."""
    looked: int = 0
    """How many of the seeds were reported before the others were added; verdicts leave them out."""
    looks: tuple[int, ...] = ()
    """Seeds at each look that the study declares; the second is taken where something is open."""
    level: float = 0.95
    """Of the intervals that effects will have."""
    judged_seeds: tuple[int, ...] = ()
    """Those that verdicts come from; empty means all."""
    n_missing: int = 0
    """Runs that the study asks for now and that are not finished."""
    searched: bool = False
    """Whether every arm's rate was searched; otherwise the grid alone was trained."""
    differences: Mapping[str, str] = field(default_factory=dict)
    """By variant: where it was seen to differ from the baseline, before any training."""
    cost: Cost | None = None
    """What all of it took of the processor so far."""


@dataclass(frozen=True)
class RungResult:
    """The study at one size, or after one length of training."""

    name: str
    """Empty for the study itself."""
    size: float
    arms: tuple[Arm, ...]


@dataclass(frozen=True)
class LadderResult:
    """The study along one axis."""

    axis: Axis
    rungs: tuple[RungResult, ...]
    """Smallest first."""
    trends: Mapping[str, Trend]
    """By variant; empty while a rung is not finished."""


@dataclass(frozen=True, repr=False)
class StudyResult:
    """Everything a report needs."""

    facts: Facts
    arms: tuple[Arm, ...]
    """The baseline first, then the variants as declared, the placebo last."""
    runs: tuple[RunResult, ...]
    interactions: Mapping[str, Interaction] = field(default_factory=dict)
    """By name, where the study asks for some and every arm of theirs is trained."""
    cells: Mapping[str, tuple[Arm, ...]] = field(default_factory=dict)
    """The arms in each cell of the nuisances by the cell's name; empty without nuisances."""
    ladders: tuple[LadderResult, ...] = ()

    @property
    def judged_seeds(self) -> tuple[int, ...]:
        """Those that losses and effects are read from: not the ones that were looked at before."""
        return self.facts.judged_seeds or self.facts.seeds

    @property
    def level(self) -> float:
        """Of the intervals of the arms' effects."""
        own = (arm.effect.level for arm in self.arms if arm.effect is not None)
        return next(own, self.facts.level)

    def at_settings(self, name: str) -> tuple[Arm, ...]:
        """The arm of this name at every setting of the nuisances; the one there is without any."""
        settings = self.cells.values() or (self.arms,)
        return tuple(arm for arms in settings for arm in arms if arm.name == name)

    def __repr__(self) -> str:
        question = self.facts.question
        return f"StudyResult({question!r}, {len(self.arms)} arms, {len(self.runs):,} runs)"

    def in_cell(self, name: str) -> "StudyResult":
        """The result of one cell alone."""
        runs = tuple(run for run in self.runs if run.cell == name and not run.rung)
        return StudyResult(self.facts, self.cells[name], runs)

    def drawn(self) -> tuple[RunResult, ...]:
        """The runs whose curves are drawn: those of `shown` at their arm's best rate."""
        shown = self.shown()
        rates = {arm.name: arm.best_rate for arm in shown.arms}
        return tuple(run for run in shown.runs if run.learning_rate == rates[run.arm])

    def shown(self) -> "StudyResult":
        """What curves are drawn of: the study itself, at its first setting of the nuisances."""
        if self.cells:
            return self.in_cell(next(iter(self.cells)))
        return replace(self, runs=tuple(run for run in self.runs if not run.rung))

    @property
    def baseline(self) -> Arm:
        return self.arms[0]
