"""What a training observes: of a step, of an evaluation, where it left the finite numbers."""

from dataclasses import dataclass

from torch import Tensor

from blocklab.model.transformer import Transformer
from blocklab.training.inspection import Inspection


@dataclass(frozen=True)
class StepMetrics:
    """What one optimiser step was like."""

    step: int
    """Steps done after it, 1 for the first."""
    train_loss: float
    """Mean over the batch before the update, nats."""
    learning_rate: float
    gradient_norm: float
    """Over all parameters before clipping."""
    log_z: float
    """Mean log of the softmax's normaliser."""
    inspection: Inspection | None = None
    """Every `training.inspect_every` steps."""


@dataclass(frozen=True)
class Divergence:
    """Where training left the finite numbers."""

    step: int
    where: str
    """`loss`, `gradient of PATH` or the path of a parameter."""


@dataclass(frozen=True)
class Evaluation:
    """One sweep of the validation tokens."""

    losses: Tensor
    """Mean loss of each window, nats, (windows,) in float64."""
    n_targets: Tensor
    """How many tokens of each window were predicted, (windows,)."""

    @property
    def mean(self) -> float:
        """Over all tokens."""
        return float((self.losses * self.n_targets).sum() / self.n_targets.sum())


@dataclass(frozen=True, repr=False)
class Trained:
    """What `Trainer.run` gives back."""

    model: Transformer
    metrics: list[StepMetrics]
    diverged: Divergence | None

    def __repr__(self) -> str:
        last = f", training loss {self.metrics[-1].train_loss:.4f}" if self.metrics else ""
        diverged = f", diverged at step {self.diverged.step}" if self.diverged else ""
        return f"Trained({len(self.metrics):,} steps{last}{diverged})"
