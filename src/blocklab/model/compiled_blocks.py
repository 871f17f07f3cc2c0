"""Blocks in compiled code, for training: their gradients are compiled too.

A block is compiled by itself. Its code serves every block that is built alike, of all models that
a process trains, and takes a fraction of the time that a whole model takes to compile.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from blocklab.model.nature import is_ours
from blocklab.model.transformer import called
from blocklab.parts.attention import CausalAttention
from blocklab.parts.context import AttentionContext, ContextOfOneLayer
from blocklab.parts.positions import Positions, Tables


def compiled(block: nn.Module, x: Tensor, context: AttentionContext) -> Tensor:
    """Through the block in compiled code, (B, T, d_model) -> (B, T, d_model).

    For whole sequences: nothing is padding, and no cache holds what came before. Call it within
    `for_every_model`. A block or an attention of somebody else's is called as it is: it may keep in
    the context what other layers are to find there. Raises what the compiler raises, at the first
    block of a kind.
    """
    assert context.cache is None and context.real is None
    attention = getattr(block, "attention", None)
    if not (is_ours(type(block)) and type(attention) is CausalAttention):
        return called(block, x, context)
    tables = context.tables(attention.head_dim, x.dtype)
    found: Tensor = _code()(block, x, context.positions, context.places, tables, context.dropout)
    return found


@functools.cache
def _code() -> Any:
    return torch.compile(_through, dynamic=False)


def _through(
    block: nn.Module,
    x: Tensor,
    positions: Positions,
    places: Tensor,
    tables: Tables | None,
    dropout: float,
) -> Tensor:
    context = ContextOfOneLayer(positions, places, dropout=dropout, given=tables)
    return block(x, context)  # type: ignore[no-any-return]
