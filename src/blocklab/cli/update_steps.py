"""A few optimiser steps on a copy of a model, to see how far they move it."""

import copy

from torch import Tensor

from blocklab.inspect.updates import update_ratios
from blocklab.model.transformer import Transformer
from blocklab.training.loss import next_token_loss
from blocklab.training.optimizer import AdamW, build_optimizer, named_parameters

SEQUENCES = 2
"""Enough for a ratio; all four would double what is the longest part of an inspection."""


def measured_updates(
    model: Transformer, tokens: Tensor, targets: Tensor, learning_rate: float, steps: int
) -> dict[str, float]:
    """Update-to-weight ratio of every parameter over `steps` of AdamW from a fresh state.

    All steps are on the first sequences of the one batch: an Adam step's size hardly depends on
    how many there are, its time does. `model` itself is left as it is.
    """
    tokens, targets = tokens[:SEQUENCES], targets[:SEQUENCES]
    copied = copy.deepcopy(model).train()
    optimizer = build_optimizer(AdamW(), named_parameters(copied), learning_rate)

    def step() -> None:
        hidden = copied.features(tokens).flatten(0, 1)
        loss = next_token_loss(copied.head, hidden, targets.flatten()).loss
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(1.0)
        optimizer.zero_grad()

    return update_ratios(copied, step, steps)
