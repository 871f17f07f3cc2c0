"""The logit lens: what the model would say if it stopped after each block (nostalgebraist 2020).

The stream after a block is taken through the final norm and the head as if it were the last one's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklab.inspect.gradients import require_one_target_each
from blocklab.inspect.recording import watched, wide
from blocklab.inspect.stream import streams
from blocklab.model.transformer import Transformer

ROWS = 64
"""Positions whose logits are held at once."""


@dataclass(frozen=True)
class LensReading:
    """What the head reads in the stream at one depth, as means over positions."""

    loss: float
    """Cross-entropy against the targets, nats."""
    divergence: float
    """Kullback–Leibler divergence from the model's own answer to this one, nats."""
    agreement: float
    """Share of positions whose likeliest token is already the model's own."""


POSITIONS = 128
"""How many are read, about: each costs one product with the head for every depth."""


def read_positions(n: int, wanted: int = POSITIONS) -> range:
    """Which of `n` positions are read: about `wanted` of them, evenly spread."""
    return range(0, n, max(1, n // wanted))


def logit_lens(
    model: Transformer, tokens: Tensor, targets: Tensor, positions: int = POSITIONS
) -> list[LensReading]:
    """Readings of the stream as it enters the first block, then after each block.

    `tokens` and `targets` are (B, T); about `positions` of them, evenly spread, are read. Without
    dropout.

    Raises BlocklabError when the shapes differ.
    """
    require_one_target_each(model, tokens, targets)
    every = read_positions(tokens.numel(), positions).step
    depths = [stream.flatten(0, 1)[::every] for stream in streams(model, tokens)]
    wanted = targets.flatten()[::every]
    sums = torch.zeros(len(depths), 3, dtype=torch.float64)
    with watched(model):
        for start in range(0, len(wanted), ROWS):
            rows = slice(start, start + ROWS)
            final = _log_probabilities(model, depths[-1][rows])
            for depth, stream in enumerate(depths):
                read = (
                    final if depth == len(depths) - 1 else _log_probabilities(model, stream[rows])
                )
                sums[depth] += _sums(read, final, wanted[rows])
    return [LensReading(*row) for row in (sums / len(wanted)).tolist()]


def _log_probabilities(model: Transformer, stream: Tensor) -> Tensor:
    """(positions, d_model) -> (positions, vocab_size)."""
    return wide(model.head(model.final_norm(stream))).log_softmax(-1)


def _sums(read: Tensor, final: Tensor, targets: Tensor) -> Tensor:
    loss = -read.gather(1, targets[:, None]).sum()
    divergence = (final.exp() * (final - read)).sum()
    agreement = (read.argmax(1) == final.argmax(1)).sum()
    return torch.stack([loss.double(), divergence.double(), agreement.double()]).cpu()
