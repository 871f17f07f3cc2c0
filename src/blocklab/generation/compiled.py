"""The next tokens of a few sequences, block by block, in compiled code.

A token alone is a hundred small steps a block whose work is to read the weights once; a compiler
joins them into a few. One block is compiled, and serves every layer that is built alike, every
cache and every position.
"""

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from blocklab.errors import BlocklabError
from blocklab.generation.cache import KeyValueCache
from blocklab.model.compiling import Code, machine_code
from blocklab.model.huge_pages import into_huge_pages
from blocklab.model.layers import Layer
from blocklab.model.nature import foreign, foreign_itself, layout, nature, shell, tensors_of
from blocklab.model.transformer import Transformer
from blocklab.parts.context import ContextOfOneLayer
from blocklab.parts.few_rows import BY_SUMS, few_rows
from blocklab.parts.linear import PackedWeights
from blocklab.parts.positions import Positions, Tables

COMPILED_FROM = 3e11
"""Bytes of weights that new tokens read from which compiling takes less time than it saves.

Measured on one and two cores of a Zen 5: a compilation took 3 to 6 seconds, and a compiled step
saved 15 to 35 milliseconds for each gigabyte of weights.
"""

_codes: dict[Hashable, Code] = {}
"""Once a process: what was compiled for one model serves the next that is built alike."""

_failed: set[Hashable] = set()
"""What could not be compiled, and is tried again by whoever insists only."""

_one_at_a_time = threading.Lock()
"""PyTorch traces in one thread only; the others find what that one has compiled."""


def worth_compiling(model: Transformer, new_tokens: int) -> bool:
    """Whether so many tokens of each sequence are written sooner by compiled steps."""
    return _read_by_a_token(model) * new_tokens >= COMPILED_FROM and obstacle(model) is None


def obstacle(model: Transformer) -> str | None:
    """Why no step of a model can be compiled; None where it can."""
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    if model.config.routes:
        return "its experts are chosen token by token"
    for name, parameter in model.named_parameters():
        if parameter.device.type != "cpu":
            return f"the model is on {parameter.device}"
        if type(parameter) not in (Tensor, nn.Parameter):
            return f"{name} is a {type(parameter).__qualname__}"
    # The embedding is looked up as ever.
    parts = (item for item in model.named_children() if item[0] != "embedding")
    alien = foreign_itself(model, "the model") or next(
        filter(None, (foreign(part, name) for name, part in parts)), None
    )
    return alien and f"{alien}, and only blocklab's own parts are compiled"


def _attention(layer: Layer) -> Any:
    return getattr(layer.block, "attention", None)


class CompiledReading:
    """Reads one token of each sequence, after those that a cache holds, and gives the next logits.

    As the model does in evaluation, whatever mode it is in. Its weights must stay as they are.
    `insisting` tries again what could not be compiled before.
    """

    def __init__(
        self, model: Transformer, n_sequences: int, *, padded: bool = False, insisting: bool = False
    ) -> None:
        self._model, self._storage = model, model.embedding.weight.data_ptr()
        packed = PackedWeights(model) if n_sequences > BY_SUMS else None
        if packed is None:
            into_huge_pages(model.parameters())
        self._turns = [_turning(model, index) for index in range(model.config.n_layers)]
        self._blocks = [
            _Compiled(
                _Block(
                    block,
                    positions,
                    window=_attention(model.config.layer(index)).window,
                    turns=positions.tables(torch.zeros(1), head_dim, torch.float32) is not None,
                    padded=padded,
                ),
                packed,
                insisting,
            )
            for index, (block, (positions, head_dim)) in enumerate(
                zip(model.blocks, self._turns, strict=True)
            )
        ]
        self._end = _Compiled(_End(model), packed, insisting)

    def changed(self) -> str | None:
        """What keeps it from reading on, as far as that is seen: the model was moved, autocast."""
        if torch.is_autocast_enabled("cpu"):
            return "autocast is on"
        moved = self._model.embedding.weight.data_ptr() != self._storage
        return "the model was moved meanwhile" if moved else None

    def logits(
        self, tokens: Tensor, cache: KeyValueCache, attention_mask: Tensor | None = None
    ) -> Tensor:
        """(B, 1) -> (B, vocab_size). The cache holds the tokens afterwards.

        `attention_mask` (B, S) is 1 for real tokens and 0 for padding, over the cached and these.
        Raises what the compiler raises, at the first token, and BlocklabError where the code does
        not reach.
        """
        start = torch.tensor([cache.length])
        real, places = self._model.places(tokens, attention_mask, cache.length)
        places = places.contiguous()
        padding = () if real is None else (real,)
        x = self._model.embedded(tokens, places)  # (B, 1, d_model)
        tables: dict[tuple[Positions, int], Tables | tuple[()]] = {}
        for index, (block, turning) in enumerate(zip(self._blocks, self._turns, strict=True)):
            if turning not in tables:
                tables[turning] = turning[0].tables(places, turning[1], x.dtype) or ()
            keys, values, place = cache.layer(index).slot()
            # Most layers keep every token where it stands, and need no tensor of their own.
            slot = start if place == cache.length else torch.tensor([place])
            x = block((x, keys, values, slot, start, places, *padding, *tables[turning]))
        logits = self._end((x,))
        cache.advance(1)
        return logits


def _turning(model: Transformer, index: int) -> tuple[Positions, int]:
    """What a layer's queries and keys are turned by, and the width of its heads."""
    _, _, head_dim = _attention(model.config.layer(index)).heads(model.config.d_model)
    return model.positions_of(index), head_dim


class _Compiled:
    """The code of a module that takes nothing but tensors, for inputs of one layout."""

    def __init__(
        self, module: "_Block | _End", packed: PackedWeights | None, insisting: bool
    ) -> None:
        self._module, self._insisting = module, insisting
        self._own = tensors_of(module)
        laid_out = {} if packed is None else _packed_in(module, packed)
        self._given = [laid_out.get(name, tensor) for name, tensor in self._own.items()]
        self._code: Code | None = None

    def __call__(self, inputs: tuple[Tensor, ...]) -> Tensor:
        if self._code is None:
            self._code = self._found(inputs)
        return self._code(*self._given, *inputs)[0]

    def _found(self, inputs: tuple[Tensor, ...]) -> Code:
        growing = self._module.growing(inputs)
        layouts = tuple(layout(tensor, growing.get(i)) for i, tensor in enumerate(inputs))
        kind = nature(self._module), layouts, torch.get_num_threads()
        with _one_at_a_time:
            if kind in _failed and not self._insisting:
                raise BlocklabError("what could not be compiled before is not tried again")
            if kind not in _codes:
                _codes[kind] = self._made(kind, inputs, growing)
            return _codes[kind]

    def _made(self, kind: Hashable, inputs: tuple[Tensor, ...], growing: Mapping[int, int]) -> Code:
        own = tuple(self._own.values())
        sizes = {len(own) + i: dim for i, dim in growing.items()}
        try:
            return machine_code(self._traced(), (*own, *inputs), sizes)
        except Exception:
            _failed.add(kind)
            raise

    def _traced(self) -> Callable[..., Sequence[Tensor]]:
        """The module as a function of its tensors and inputs, apart from who else may use it."""
        module, names = shell(self._module), tuple(self._own)

        def function(*given: Tensor) -> Sequence[Tensor]:
            own = dict(zip(names, given, strict=False))
            with few_rows() as values:
                return functional_call(module, own, given[len(names) :]), *values

        return function


def _packed_in(module: nn.Module, packed: PackedWeights) -> dict[str, Tensor]:
    found = ((name, packed.of(part)) for name, part in module.named_modules())
    return {f"{name}.weight": weight for name, weight in found if weight is not None}


class _Block(nn.Module):
    """A block and the positions it turns by, (B, 1, d_model) -> (B, 1, d_model)."""

    def __init__(
        self,
        block: nn.Module,
        positions: Positions,
        *,
        window: int | None,
        turns: bool,
        padded: bool,
    ) -> None:
        super().__init__()
        self.block, self.positions = block, positions
        self.window, self.turns, self.padded = window, turns, padded

    def growing(self, inputs: tuple[Tensor, ...]) -> dict[int, int]:
        """The inputs that grow with the text, and the dimension: keys, values, what is real."""
        full = inputs[1].shape[2] == self.window
        sizes = {} if full else {1: 2, 2: 2}
        return {**sizes, 6: 1} if self.padded else sizes

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
        context = ContextOfOneLayer(
            self.positions,
            places,
            start=start,
            real=more[0] if self.padded else None,
            cache=_Slot(keys, values, slot),
            given=(more[-2], more[-1]) if self.turns else None,
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


def _read_by_a_token(model: Transformer) -> int:
    looked_up = 0 if model.config.tie_embeddings else model.embedding.weight.nbytes
    return sum(p.nbytes for p in model.parameters()) - looked_up
