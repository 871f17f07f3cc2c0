"""The next token of one sequence, block by block, in compiled code.

A token alone is a hundred small steps a block whose work is to read the weights once; a compiler
joins them into a few. One block is compiled, and serves every layer that is built alike, every
cache and every position.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blocklab.generation.cache import KeyValueCache
from blocklab.model.compiling import for_every_model
from blocklab.model.layers import Layer
from blocklab.model.transformer import Transformer
from blocklab.parts.attention import CausalAttention
from blocklab.parts.context import AttentionContext, Shared
from blocklab.parts.positions import Positions, Tables

COMPILED_FROM = 4e11
"""Bytes of weights that new tokens read from which compiling takes less time than it saves.

Measured on one and two cores of a Zen 5: a compilation took 5 seconds, and a compiled step saved 10
to 30 milliseconds for each gigabyte of weights.
"""


def worth_compiling(model: Transformer, new_tokens: int) -> bool:
    """Whether so many tokens, one sequence's, are written sooner by a compiled step."""
    return compilable(model) and _read_by_a_token(model) * new_tokens >= COMPILED_FROM


def compilable(model: Transformer) -> bool:
    """Whether a step can be compiled: on a processor, with our attention, and nothing routed."""
    layers = map(model.config.layer, range(model.config.n_layers))
    ours = all(isinstance(_attention(one), CausalAttention.Config) for one in layers)
    return ours and model.embedding.weight.device.type == "cpu" and not model.config.routes


def _attention(layer: Layer) -> Any:
    return getattr(layer.block, "attention", None)


class CompiledReading:
    """Reads one token at a time, after those that a cache holds, and gives the next one's logits.

    For one sequence without padding. Raises what the compiler raises, at the first token.
    """

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self._block, self._head = _compiled(_block), _compiled(_head)
        self._was_read = False
        layers = map(model.config.layer, range(model.config.n_layers))
        self._head_dims = [_attention(one).heads(model.config.d_model)[2] for one in layers]

    def logits(self, token: Tensor, cache: KeyValueCache) -> Tensor:
        """(1, 1) -> (1, vocab_size). The cache holds the token afterwards."""
        with for_every_model():
            return self._logits(token, cache)

    def _logits(self, token: Tensor, cache: KeyValueCache) -> Tensor:
        model, start = self._model, cache.length
        places = torch.tensor([start], device=token.device)
        x = model.embedded(token, places)  # (1, 1, d_model)
        tables: dict[tuple[Positions, int], Tables | None] = {}
        for index, block in enumerate(model.blocks):
            keys, values, place = cache.layer(index).slot()
            if not self._was_read:
                torch._dynamo.maybe_mark_dynamic(keys, 1)
                torch._dynamo.maybe_mark_dynamic(values, 1)
            # Most layers keep every token where it stands, and need no tensor of their own.
            slot = _Slot(keys, values, places if place == start else places.new_tensor([place]))
            turning = model.positions_of(index), self._head_dims[index]
            if turning not in tables:
                tables[turning] = turning[0].tables(places, turning[1], x.dtype)
            x = self._block(block, turning[0], tables[turning], x, places, slot)
        cache.advance(1)
        self._was_read = True
        return self._head(model.final_norm, model.head, x)


@dataclass
class _Slot:
    """What a layer's cache is to the code of one step: room for one token among those seen."""

    keys: Tensor  # (n_kv_heads, S, head_dim), the new token's included
    values: Tensor
    place: Tensor  # (1,), where among them the new one goes

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(1, self.place, keys[0])
        self.values.index_copy_(1, self.place, values[0])
        return self.keys.unsqueeze(0), self.values.unsqueeze(0)


@dataclass(frozen=True)
class _OneLayersContext(AttentionContext):
    """Shares nothing with other layers but what it is given."""

    tables: Tables | None = None
    """The rotation; in the code of a step it would be computed anew for every head."""

    def rotate(self, x: Tensor) -> Tensor:
        return x if self.tables is None else self.positions.rotate(x, self.tables)

    def once(self, key: object, compute: Callable[[], Shared]) -> Shared:
        return compute()  # a key with a length in it would fix the length


def _block(
    block: nn.Module,
    positions: Positions,
    tables: Tables | None,
    x: Tensor,
    places: Tensor,
    slot: _Slot,
) -> Tensor:
    context = _OneLayersContext(positions, places, start=places, cache=slot, tables=tables)
    return block(x, context)  # type: ignore[no-any-return]


def _head(norm: nn.Module, head: nn.Module, x: Tensor) -> Tensor:
    return head(norm(x)[:, -1])  # type: ignore[no-any-return]


@functools.cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Once a process: what was compiled for one model serves the next that is built alike."""
    # Sizes were asserted when the code was compiled, and its guards hold to them.
    return torch.compile(function, fullgraph=True, options={"size_asserts": False})


def _read_by_a_token(model: Transformer) -> int:
    looked_up = 0 if model.config.tie_embeddings else model.embedding.weight.nbytes
    return sum(p.nbytes for p in model.parameters()) - looked_up
