"""The next tokens of a few sequences, block by block, in compiled code.

A token alone is a hundred small steps a block whose work is to read the weights once; a compiler
joins them into a few. One block is compiled, and serves every layer that is built alike, every
cache and every position.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from blocklab.generation.cache import KeyValueCache
from blocklab.model.compiling import Code, layout, machine_code, nature, tensors_of
from blocklab.model.evaluation import evaluating
from blocklab.model.layers import Layer
from blocklab.model.transformer import Transformer
from blocklab.parts.attention import CausalAttention
from blocklab.parts.context import AttentionContext, Shared
from blocklab.parts.few_rows import BY_SUMS, few_rows
from blocklab.parts.linear import PackedWeights
from blocklab.parts.positions import Positions, Tables

COMPILED_FROM = 3e11
"""Bytes of weights that new tokens read from which compiling takes less time than it saves.

Measured on one and two cores of a Zen 5: a compilation took 3 to 6 seconds, and a compiled step
saved 15 to 35 milliseconds for each gigabyte of weights.
"""

_codes: dict[Hashable, Code | Exception] = {}
"""Once a process: what was compiled for one model serves the next that is built alike, and what
could not be compiled is not tried again."""


def worth_compiling(model: Transformer, new_tokens: int) -> bool:
    """Whether so many tokens of each sequence are written sooner by compiled steps."""
    return compilable(model) and _read_by_a_token(model) * new_tokens >= COMPILED_FROM


def compilable(model: Transformer) -> bool:
    """Whether a step can be compiled: on a processor, with our attention, and nothing routed."""
    layers = map(model.config.layer, range(model.config.n_layers))
    ours = all(isinstance(_attention(one), CausalAttention.Config) for one in layers)
    plain = all(
        type(p) in (Tensor, nn.Parameter) and p.device.type == "cpu" for p in model.parameters()
    )
    return ours and plain and not model.config.routes and not torch.is_autocast_enabled("cpu")


def _attention(layer: Layer) -> Any:
    return getattr(layer.block, "attention", None)


class CompiledReading:
    """Reads one token of each sequence, after those that a cache holds, and gives the next logits.

    As the model does in evaluation, whatever mode it is in. Its weights must stay where they are.
    """

    def __init__(self, model: Transformer, n_sequences: int) -> None:
        self._model = model
        packed = PackedWeights(model) if n_sequences > BY_SUMS else None
        layers = [model.config.layer(index) for index in range(model.config.n_layers)]
        self._head_dims = [_attention(one).heads(model.config.d_model)[2] for one in layers]
        self._positions = [model.positions_of(index) for index in range(model.config.n_layers)]
        self._blocks = [
            _Compiled(_Block(block, positions, _attention(layer).window), packed)
            for block, positions, layer in zip(model.blocks, self._positions, layers, strict=True)
        ]
        self._end = _Compiled(_End(model), packed)

    def logits(
        self, tokens: Tensor, cache: KeyValueCache, attention_mask: Tensor | None = None
    ) -> Tensor:
        """(B, 1) -> (B, vocab_size). The cache holds the tokens afterwards.

        `attention_mask` (B, S) is 1 for real tokens and 0 for padding, over the cached and these.
        Raises what the compiler raises, at the first token.
        """
        start = torch.tensor([cache.length])
        real, places = self._model.places(tokens, attention_mask, cache.length)
        padding = () if real is None else (real,)
        x = self._model.embedded(tokens, places)  # (B, 1, d_model)
        tables: dict[tuple[Positions, int], Tables | tuple[()]] = {}
        for index, block in enumerate(self._blocks):
            turning = self._positions[index], self._head_dims[index]
            if turning not in tables:
                tables[turning] = turning[0].tables(places, turning[1], x.dtype) or ()
            keys, values, place = cache.layer(index).slot()
            # Most layers keep every token where it stands, and need no tensor of their own.
            slot = start if place == cache.length else torch.tensor([place])
            inputs = x, keys, values, slot, start, places, *padding, *tables[turning]
            x = block(inputs)
        cache.advance(1)
        return self._end((x,))


class _Compiled:
    """The code of a module that takes nothing but tensors, for inputs of one layout."""

    def __init__(self, module: "_Block | _End", packed: PackedWeights | None) -> None:
        self._module = module
        self._own = tensors_of(module)
        laid_out = {} if packed is None else _packed_in(module, packed)
        self._given = [laid_out.get(name, tensor) for name, tensor in self._own.items()]
        self._code: Code | None = None

    def __call__(self, inputs: tuple[Tensor, ...]) -> Tensor:
        if self._code is None:
            with evaluating(self._module):
                self._code = self._found(inputs)
        return self._code(*self._given, *inputs)[0]

    def _found(self, inputs: tuple[Tensor, ...]) -> Code:
        growing = self._module.growing(inputs)
        layouts = tuple(layout(tensor, growing.get(i)) for i, tensor in enumerate(inputs))
        kind = nature(self._module), layouts, torch.get_num_threads()
        if kind not in _codes:
            own = tuple(self._own.values())
            sizes = {len(own) + i: dim for i, dim in growing.items()}
            try:
                _codes[kind] = machine_code(self._traced, (*own, *inputs), sizes)
            except Exception as error:
                _codes[kind] = error.with_traceback(None)  # which would hold on to the model
        code = _codes[kind]
        if isinstance(code, Exception):
            raise code
        return code

    def _traced(self, *given: Tensor) -> Sequence[Tensor]:
        own = dict(zip(self._own, given, strict=False))
        with few_rows() as values:
            return functional_call(self._module, own, given[len(own) :]), *values


def _packed_in(module: nn.Module, packed: PackedWeights) -> dict[str, Tensor]:
    found = ((name, packed.of(part)) for name, part in module.named_modules())
    return {f"{name}.weight": weight for name, weight in found if weight is not None}


class _Block(nn.Module):
    """A block and the positions it turns by, (B, 1, d_model) -> (B, 1, d_model)."""

    def __init__(self, block: nn.Module, positions: Positions, window: int | None) -> None:
        super().__init__()
        self.block, self.positions, self.window = block, positions, window

    def growing(self, inputs: tuple[Tensor, ...]) -> dict[int, int]:
        """The inputs that grow with the text, and the dimension: keys, values, what is real."""
        full = inputs[1].shape[2] == self.window
        sizes = {} if full else {1: 2, 2: 2}
        return {**sizes, 6: 1} if len(inputs) % 2 else sizes

    def forward(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        slot: Tensor,
        start: Tensor,
        places: Tensor,
        *more: Tensor,
    ) -> Tensor:
        """`more` is what is real, where there is padding, and the tables, where something turns."""
        real = more[0] if len(more) % 2 else None
        tables = (more[-2], more[-1]) if len(more) > 1 else None
        context = _OneLayersContext(
            self.positions,
            places,
            start=start,
            real=real,
            cache=_Slot(keys, values, slot),
            tables=tables,
        )
        return self.block(x, context)  # type: ignore[no-any-return]


class _End(nn.Module):
    """The stream of the last tokens -> logits."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.norm, self.head = model.final_norm, model.head

    def growing(self, inputs: tuple[Tensor, ...]) -> dict[int, int]:
        return {}

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x)[:, -1])  # type: ignore[no-any-return]


@dataclass
class _Slot:
    """What a layer's cache is to the code of one step: room for one token among those seen."""

    keys: Tensor  # (B, n_kv_heads, S, head_dim), the new token's included
    values: Tensor
    place: Tensor  # (1,), where among them the new one goes

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        # An assignment is compiled to one; index_copy_ would copy all keys onto themselves.
        self.keys[:, :, self.place] = keys
        self.values[:, :, self.place] = values
        return self.keys, self.values


@dataclass(frozen=True)
class _OneLayersContext(AttentionContext):
    """Shares nothing with other layers but what it is given."""

    tables: Tables | None = None
    """The rotation; in the code of a step it would be computed anew for every head."""

    def rotate(self, x: Tensor) -> Tensor:
        return x if self.tables is None else self.positions.rotate(x, self.tables)

    def once(self, key: object, compute: Callable[[], Shared]) -> Shared:
        return compute()  # a key with a length in it would fix the length


def _read_by_a_token(model: Transformer) -> int:
    looked_up = 0 if model.config.tie_embeddings else model.embedding.weight.nbytes
    return sum(p.nbytes for p in model.parameters()) - looked_up
