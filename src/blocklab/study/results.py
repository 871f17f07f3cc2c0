"""What a study found, as plain values: one record a run, one an arm, one for the whole.

Nothing here trains, reads a file or draws; the report and the terminal show these and no more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ArmRole = Literal["baseline", "variant", "placebo"]


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
    curve: tuple[Point, ...]
    validation_curve: tuple[tuple[int, float], ...]
    """(step, loss) of the evaluations on the way, if any were asked for."""


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
class Effect:
    """Loss of an arm minus the baseline's, seed by seed; negative is better."""

    differences: Mapping[int, float]
    mean: float
    spread: float | None
    low: float | None
    """95 % interval of the mean by the paired t; None under two pairs."""
    high: float | None


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
    tokens_per_second: float
    peak_memory: int
    rates: tuple[RatePoint, ...]
    best_rate: float | None
    """The grid's rate with the lowest mean loss among those where fewest runs diverged."""
    edge: Literal["lowest", "highest"] | None
    """Whether the best rate stands at an end of the grid, so that a better one may lie beyond."""
    mean: float | None
    """Mean validation loss at the best rate."""
    spread: float | None
    n_diverged: int
    """Runs that diverged over the whole grid."""
    n_runs: int
    n_stalled: int
    """Runs at the best rate that ended within 0.05 nats of the unigram entropy."""
    effect: Effect | None
    """None for the baseline, or when no pair is complete."""


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
    context_length: int
    d_model: int
    n_layers: int
    batch_size: int
    steps: int
    seeds: tuple[int, ...]
    learning_rates: tuple[float, ...]
    match: str
    versions: Mapping[str, str]
    """blocklab, torch, python, device, dtype, threads …"""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class StudyResult:
    """Everything a report needs."""

    facts: Facts
    arms: tuple[Arm, ...]
    """The baseline first, then the variants as declared, the placebo last."""
    runs: tuple[RunResult, ...]

    @property
    def baseline(self) -> Arm:
        return self.arms[0]
