"""How a model is trained: the part of a run's record that is neither model nor data."""

from typing import Self

from pydantic import Field, SerializeAsAny, model_validator

from blocklab.errors import BlocklabError
from blocklab.record import Record
from blocklab.training.optimizer import AdamW, OptimizerConfig
from blocklab.training.schedule import Cosine, ScheduleConfig


class Recipe(Record):
    """Everything about training but the learning rate, which a study varies."""

    tokens: int | None = Field(None, gt=0)
    """Training tokens seen, repeats included; the last whole step within them. Or give `steps`."""
    steps: int | None = Field(None, gt=0)
    batch_size: int = Field(16, gt=0)
    """Windows of context_length tokens a step."""
    accumulation: int = Field(1, gt=0)
    """Micro-batches a step is computed in; the result is that of one batch, but for what dropout
    drops. With experts in balance each takes a second pass forward, ahead of the others."""
    clip: float | None = Field(1.0, gt=0)
    """Largest norm of the whole gradient; null never clips."""
    optimizer: SerializeAsAny[OptimizerConfig] = Field(default_factory=AdamW)
    schedule: SerializeAsAny[ScheduleConfig] = Field(default_factory=Cosine)
    evaluate_every: int | None = Field(None, gt=0)
    """Steps between evaluations; null evaluates at the end only."""
    inspect_every: int | None = Field(20, gt=0)
    """Steps between looks into the model, the first step among them: gradient norm and update of
    every block, size and sameness of the stream, attention's largest logit; null never looks."""
    validation_tokens: int | None = Field(None, ge=2)
    """How much of the validation part is swept, from its start, the first token being read only;
    null sweeps all of it."""

    @model_validator(mode="after")
    def _says_one_length(self) -> Self:
        if self.tokens is not None and self.steps is not None:
            raise BlocklabError("training.tokens and training.steps say the same; give one")
        if self.accumulation > self.batch_size:
            raise BlocklabError(
                f"training.accumulation: {self.accumulation} micro-batches of a batch of "
                f"{self.batch_size}; at most one a window"
            )
        return self

    def n_steps(self, context_length: int) -> int | None:
        """Optimiser steps of a whole run, or None when no length is given."""
        if self.tokens is None:
            return self.steps
        steps = self.tokens // (self.batch_size * context_length)
        if steps == 0:
            raise BlocklabError(
                f"training.tokens: {self.tokens} are less than one step of {self.batch_size} "
                f"windows of {context_length} tokens"
            )
        return steps


class TrainingConfig(Recipe):
    """How one run trains."""

    learning_rate: float = Field(1e-3, gt=0)
    """The schedule's peak."""
