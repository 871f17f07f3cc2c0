"""Where attention looks: the maps, how spread each head is, how large its scores become.

Scores are read off the softmax itself, whoever takes it (see `scores`). An attention without a
softmax has no map.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from blocklab.inspect.recording import require_batch
from blocklab.inspect.scores import Scores, watching_scores
from blocklab.model.transformer import Transformer


@dataclass(frozen=True)
class HeadMeasures:
    """One block's heads over a batch; a tuple has one number a head."""

    entropy: tuple[float, ...]
    """Mean entropy of a query's weights, nats; 0 looks at one key."""
    uniform_entropy: float
    """What the same mean would be if every visible key got the same weight."""
    largest_logit: tuple[float, ...]
    """Largest score that enters the softmax, over visible keys."""
    first_key: tuple[float, ...]
    """Mean weight that queries after the first give to the first key (an attention sink)."""
    previous_key: tuple[float, ...]
    """Mean weight that queries after the first give to the key just before them."""


def attention_maps(model: Transformer, tokens: Tensor) -> list[Tensor | None]:
    """Each block's attention weights (B, n_heads, T, T) for `tokens` (B, T), without dropout.

    Row t of a map is what position t takes from each position; None where a block's attention
    takes no softmax over keys. Every map is held whole, n_layers * B * n_heads * T^2 numbers: give
    it as few and short sequences as are to be drawn. Means over positions are `head_measures`.
    """
    require_batch(model, tokens)
    with watching_scores(model, _whole_map) as maps:
        model.features(tokens)
    return maps


def _whole_map(scores: Scores) -> Tensor:
    whole: Tensor | None = None
    for start, block in scores.blocks():
        # Keys that a block leaves out are seen by none of its queries.
        whole = block.new_zeros(scores.shape) if whole is None else whole
        whole[..., start : start + block.shape[-2], : block.shape[-1]] = block.softmax(-1)
    assert whole is not None
    return whole


def head_measures(model: Transformer, tokens: Tensor) -> list[HeadMeasures | None]:
    """Entropy, largest logit and two habits of every head, on `tokens` (B, T), without dropout.

    None where a block's attention takes no softmax over keys. Beside what the attention itself
    holds, the weights of a few queries at a time are.
    """
    require_batch(model, tokens)
    with watching_scores(model, _measured) as found:
        model.features(tokens)
    return found


class _Sums(NamedTuple):
    """Over some queries of all sequences, one number a head: (n_heads,)."""

    entropy: Tensor
    uniform_entropy: Tensor
    first_key: Tensor
    previous_key: Tensor


def _measured(scores: Scores) -> HeadMeasures:
    """The measures of scores (B, n_heads, T, S), minus infinity where a key is not visible."""
    batch, n_heads, n_queries, n_keys = scores.shape
    sums = torch.zeros(4, n_heads, dtype=torch.float64)
    largest = torch.full((n_heads,), -torch.inf, dtype=torch.float64)
    for start, block in scores.blocks():
        sums += torch.stack(_summed(block, start)).cpu().double()
        largest = torch.maximum(largest, block.amax((0, 2, 3)).cpu().double())
    total = _Sums(*sums)
    # Habits are those of the queries that have a key before them.
    later = torch.tensor(batch * (n_queries - 1), dtype=torch.float64)
    followed = later.clamp(max=batch * n_keys)
    return HeadMeasures(
        entropy=_by_head(total.entropy / (batch * n_queries)),
        uniform_entropy=float(total.uniform_entropy.mean() / (batch * n_queries)),
        largest_logit=_by_head(largest),
        first_key=_by_head(total.first_key / later),
        previous_key=_by_head(total.previous_key / followed),
    )


def _summed(scores: Tensor, start: int) -> _Sums:
    """Of a block (B, n_heads, queries, keys) whose first query is `start`."""
    weights = scores.softmax(-1)
    visible = scores.isfinite().sum(-1)  # (B, n_heads, queries)
    first = weights[:, :, max(1 - start, 0) :, 0]
    previous = weights.diagonal(start - 1, dim1=-2, dim2=-1)  # (B, n_heads, queries with one)
    return _Sums(
        entropy=torch.special.entr(weights).sum((0, 2, 3)),
        uniform_entropy=visible.to(weights.dtype).log().sum((0, 2)),
        first_key=first.sum((0, 2)),
        previous_key=previous.sum((0, 2)),
    )


def _by_head(values: Tensor) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
