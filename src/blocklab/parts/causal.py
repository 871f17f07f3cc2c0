"""Causal attention on a processor: products and a softmax for some queries at a time.

Queries are taken in blocks, each with the keys up to its last one, so that what the mask hides is
never computed. The gradients are written out: autograd would pad each block's to all keys.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ROWS = 64
"""Queries of a block: fewer hide more, more make larger products. Measured on Zen 5."""

MOST_SCORES = 2**24
"""Attention weights that a layer may keep for its backward pass; beyond it they are made again."""


def is_faster(queries: Tensor, keys: Tensor) -> bool:
    """Whether `causal_attention` is, than PyTorch's fused one.

    Measured on one core of a Zen 5, forward and backward: with (16, 4, 128, 64) 4.8 against 19 ms
    in bfloat16 and 9.5 against 10.9 in float32; with (4, 8, 512, 64) 27 against 72, 52 against 82.
    """
    if queries.device.type != "cpu" or queries.dtype == torch.float16:
        return False
    return queries.shape[0] * queries.shape[1] * queries.shape[2] * keys.shape[2] <= MOST_SCORES


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """softmax(scale * q k^T) v of T queries on their own T keys, none seeing those after it.

    Shapes: queries (B, n_heads, T, head_dim), keys and values (B, n_kv_heads, T, head_dim) ->
    (B, n_heads, T, head_dim). Scores are at least float32 from the first product on; weights and
    gradients are rounded to the values' dtype before they are multiplied. Gradients exist once.
    """
    batch, n_heads, length, head_dim = queries.shape
    n_kv_heads, dtype = keys.shape[1], values.dtype
    grouped = queries.reshape(batch * n_kv_heads, n_heads // n_kv_heads, length, head_dim)
    flat = (t.reshape(batch * n_kv_heads, length, head_dim).to(dtype) for t in (keys, values))
    # Autocast would round the scores that are to stay wide.
    with torch.autocast(queries.device.type, enabled=False):
        mixed, *_ = _CausalAttention.apply(grouped.to(dtype), *flat, scale, _rows(length))  # type: ignore[no-untyped-call]
    return mixed.view(batch, n_heads, length, head_dim)  # type: ignore[no-any-return]


def _rows(length: int) -> int:
    """Queries of a block. A compiler's graph holds every block: it gets four at most."""
    if not torch.compiler.is_compiling():
        return ROWS
    return max(ROWS, math.ceil(length / 4))


class _CausalAttention(torch.autograd.Function):
    """q (N, G, T, d), k and v (N, T, d) -> (N, G, T, d); a group's queries share keys."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, scale: float, rows: int) -> tuple[Tensor, ...]:
        """The mixture, and the weights of every block for the way back."""
        n, group = q.shape[:2]
        wide = torch.promote_types(q.dtype, torch.float32)
        wide_q, wide_k = q.to(wide) * scale, k.to(wide)
        mixed, kept = [], []
        for start, end in _blocks(q.shape[2], rows):
            own = end - start
            scores = torch.bmm(_stacked(wide_q, start, end), wide_k[:, :end].transpose(1, 2))
            _hide_later_keys(scores.view(n, group, own, end), start)
            weights = torch.softmax(scores, -1).to(q.dtype)  # (N, G * own, end)
            mixed.append(torch.bmm(weights, v[:, :end]).view(n, group, own, v.shape[2]))
            kept.append(weights)
        return torch.cat(mixed, 2), *kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        q, k, v, ctx.scale, ctx.rows = inputs
        _, *kept = output
        ctx.mark_non_differentiable(*kept)
        ctx.save_for_backward(q, k, v, *kept)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *kept = ctx.saved_tensors
        with torch.autocast(q.device.type, enabled=False):
            found = _gradients(gradient, q, k, v, kept, ctx.scale, ctx.rows)
        return (*found, None, None)


def _hide_later_keys(scores: Tensor, start: int) -> None:
    """Scores (N, G, own, end) of the queries from `start` on become minus infinity, in place."""
    own, end = scores.shape[2:]
    if torch.compiler.is_compiling():
        # Within the loops of the softmax, and narrow: a part of the scores would be a case apart.
        places = torch.arange(end, dtype=torch.int32, device=scores.device)
        scores.masked_fill_(places > places[start:, None], float("-inf"))
    else:
        hidden = scores.new_full((own, own), float("-inf")).triu(1)
        scores[..., start:].add_(hidden)


def _gradients(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kept: Sequence[Tensor],
    scale: float,
    rows: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of queries, keys and values, from that of the mixture and every block's weights."""
    n, group = q.shape[:2]
    wide = torch.promote_types(q.dtype, torch.float32)
    for_q = []
    for_k, for_v = torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)
    for (start, end), weights in zip(_blocks(q.shape[2], rows), kept, strict=True):
        outward = _stacked(gradient, start, end)  # (N, G * own, d)
        for_v[:, :end].add_(torch.bmm(weights.transpose(1, 2), outward))
        for_weights = torch.bmm(outward, v[:, :end].transpose(1, 2))
        for_scores = torch._softmax_backward_data(for_weights, weights, -1, weights.dtype)
        own = torch.bmm(for_scores, k[:, :end])
        for_q.append(own.view(n, group, end - start, k.shape[2]))
        for_k[:, :end].add_(torch.bmm(for_scores.transpose(1, 2), _stacked(q, start, end)))
    return (
        torch.cat(for_q, 2).mul_(scale),
        for_k.mul_(scale).to(k.dtype),
        for_v.to(v.dtype),
    )


def _blocks(length: int, rows: int) -> Iterator[tuple[int, int]]:
    """First query and the one after the last, of every block."""
    return pairwise((*range(0, length, rows), length))


def _stacked(x: Tensor, start: int, end: int) -> Tensor:
    """A block's rows of all that share keys: (N, G, T, d) -> (N, G * rows, d)."""
    return x[:, :, start:end].reshape(len(x), x.shape[1] * (end - start), x.shape[3])
