"""Which tensor of a checkpoint fills which part of a parameter of ours, as data.

A family is a table from paths of our modules to entries; an entry says what the checkpoint calls
it and how it lies there. Every entry gives *views* of our parameter, so that one table serves both
ways: reading copies into the view, writing copies out of it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.model.layers import Layer
from blocklab.parts.attention import CausalAttention
from blocklab.parts.part import Spec


@dataclass(frozen=True)
class Stored:
    """One tensor of a checkpoint and the part of ours that it is."""

    name: str
    shape: tuple[int, ...]
    """As stored."""
    view: Callable[[Tensor], Tensor]
    """Our parameter -> the part of it, in an order that reshapes to `shape`."""
    skipped: int = 0
    """Leading rows of the stored tensor that have no counterpart and are written as zeros."""


@dataclass(frozen=True)
class Place:
    """Where a parameter of ours stands, for an entry to say what it is called."""

    layer: Layer | None
    index: int | None
    d_model: int
    leaf: str
    """`weight`, `bias`, or the name of a stack of matrices."""
    shape: tuple[int, ...]

    def heads(self) -> tuple[int, int, int]:
        attention = getattr(self.layer.block if self.layer else None, "attention", None)
        assert isinstance(attention, CausalAttention.Config)
        return attention.heads(self.d_model)

    def named(self, template: str, **more: int) -> str:
        return template.format(i=self.index, **more)


class Entry(Protocol):
    """What one module of ours is called elsewhere."""

    def stored(self, place: Place) -> Iterator[Stored]: ...


Names: TypeAlias = dict[str, Entry]
"""Path of a module of ours (`blocks.{i}.attention.qkv`) -> its entry."""


def _itself(parameter: Tensor) -> Tensor:
    return parameter


@dataclass(frozen=True)
class Whole:
    """One tensor as it is, or a matrix stored the other way round (GPT-2's Conv1D)."""

    name: str
    transposed: bool = False
    skipped: int = 0

    def stored(self, place: Place) -> Iterator[Stored]:
        turned = self.transposed and len(place.shape) == 2
        shape = place.shape[::-1] if turned else place.shape
        shape = (shape[0] + self.skipped, *shape[1:])
        view = (lambda p: p.t()) if turned else _itself
        yield Stored(f"{place.named(self.name)}.{place.leaf}", shape, view, self.skipped)


@dataclass(frozen=True)
class Rows:
    """Several tensors that lie one after the other in the rows of ours."""

    names: tuple[str, ...]
    cut: Literal["heads", "equal"] = "equal"
    """Queries, keys and values by their heads, or all alike."""

    def stored(self, place: Place) -> Iterator[Stored]:
        first = 0
        for name, width in zip(self.names, self._widths(place), strict=True):
            rows = slice(first, first + width)
            shape = (width, *place.shape[1:])
            yield Stored(f"{place.named(name)}.{place.leaf}", shape, _rows(rows))
            first += width

    def _widths(self, place: Place) -> list[int]:
        if self.cut == "equal":
            return [place.shape[0] // len(self.names)] * len(self.names)
        n_heads, n_kv_heads, head_dim = place.heads()
        return [n_heads * head_dim, n_kv_heads * head_dim, n_kv_heads * head_dim]


def _rows(rows: slice) -> Callable[[Tensor], Tensor]:
    return lambda parameter: parameter[rows]


@dataclass(frozen=True)
class HeadByHead:
    """Query, key and value of the first head, then of the second, and so on (GPT-NeoX)."""

    name: str

    def stored(self, place: Place) -> Iterator[Stored]:
        n_heads, _, head_dim = place.heads()

        def view(parameter: Tensor) -> Tensor:
            return parameter.view(3, n_heads, head_dim, *place.shape[1:]).transpose(0, 1)

        yield Stored(f"{place.named(self.name)}.{place.leaf}", place.shape, view)


@dataclass(frozen=True)
class PerExpert:
    """Matrices of each expert by itself; several names lie in the rows of one of our matrices."""

    names: tuple[str, ...]

    def stored(self, place: Place) -> Iterator[Stored]:
        n_experts, height, width = place.shape
        rows = height // len(self.names)
        for expert in range(n_experts):
            for n, name in enumerate(self.names):
                part = (expert, slice(n * rows, (n + 1) * rows))
                full = place.named(name, e=expert)
                yield Stored(full, (rows, width), _part(part))


def _part(part: tuple[int, slice]) -> Callable[[Tensor], Tensor]:
    return lambda parameter: parameter[part]


@dataclass(frozen=True)
class Stack:
    """A stack of all experts' matrices as it is."""

    name: str

    def stored(self, place: Place) -> Iterator[Stored]:
        yield Stored(place.named(self.name), place.shape, _itself)


_BLOCK = re.compile(r"blocks\.(\d+)\.")


def stored_tensors(
    names: Names, config: ModelConfig, at_most: int | None = None
) -> dict[str, list[Stored]]:
    """For every parameter of the model, by path, the tensors that make it up.

    Raises BlocklabError where the table has no name for one, or where there would be more than
    `at_most` tensors: a lying configuration must not cost the time to list them.
    """
    layers = [config.layer(i) for i in range(config.n_layers)]
    found: dict[str, list[Stored]] = {}
    n_stored = 0
    for path, spec in config.parameters().items():
        match = _BLOCK.match(path)
        index = int(match[1]) if match else None
        key = path if match is None else f"blocks.{{i}}.{path[match.end() :]}"
        module, _, leaf = key.rpartition(".")
        entry = names.get(module if leaf in ("weight", "bias") else key)
        if entry is None:
            raise BlocklabError(f"{path}: there is no name for it in this layout")
        layer = layers[index] if index is not None else None
        found[path] = []
        for stored in entry.stored(_place(spec, layer, index, config.d_model, leaf)):
            n_stored += 1
            if at_most is not None and n_stored > at_most:
                raise BlocklabError(
                    f"the configuration needs more than the {at_most} tensors that are there"
                )
            found[path].append(stored)
    return found


def _place(spec: Spec, layer: Layer | None, index: int | None, d_model: int, leaf: str) -> Place:
    return Place(layer, index, d_model, leaf, spec.shape)
