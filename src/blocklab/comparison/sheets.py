"""The tensors of a learner's module, gathered: matrices with their biases, vectors with their own.

What a tensor is for is guessed from its shape and its owner first, from its name only after that.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

Stored = Literal["out_in", "in_out", "unknown"]

Sources: TypeAlias = Mapping[str, frozenset[int]]
"""Identities of the parameters that a `weight` and a `bias` are made of."""


@dataclass(frozen=True)
class Sheet:
    """A matrix and the bias that belongs to it."""

    name: str
    matrix: Tensor
    bias: Tensor | None
    stored: Stored
    looked_up: bool = False
    """Whether it is a table, not a map."""
    sources: Sources = field(default_factory=dict)

    def oriented(self, d_out: int, d_in: int) -> list["Sheet"]:
        """The sheet as (d_out, d_in), in every way that fits its shape and its owner."""
        ways = []
        fits = self.bias is None or len(self.bias) == d_out
        if self.matrix.shape == (d_out, d_in) and self.stored != "in_out" and fits:
            ways.append(replace(self, stored="out_in"))
        if self.matrix.shape == (d_in, d_out) and self.stored != "out_in" and fits:
            name = f"{self.name} transposed"
            ways.append(replace(self, name=name, matrix=self.matrix.t(), stored="out_in"))
        return ways

    def rows(self, index: Tensor, what: str) -> "Sheet":
        """Some rows of an oriented sheet."""
        bias = None if self.bias is None else self.bias[index]
        return replace(self, name=f"{self.name}, {what}", matrix=self.matrix[index], bias=bias)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Under our name."""
        found = {f"{name}.weight": self.matrix}
        return found if self.bias is None else found | {f"{name}.bias": self.bias}


@dataclass(frozen=True)
class Vectors:
    """The vectors of one module: a norm's gain and shift."""

    name: str
    weight: Tensor | None
    bias: Tensor | None
    weight_name: str = ""
    bias_name: str = ""
    told_apart: bool = True
    """Whether their names say which is the gain, not their order alone."""
    sources: Sources = field(default_factory=dict)


@dataclass(frozen=True)
class Gathered:
    """Everything that a module owns."""

    sheets: tuple[Sheet, ...]
    vectors: tuple[Vectors, ...]
    repeated: tuple[Sheet, ...] = ()
    """The sheets again, where one parameter stands in two places: at each of them."""

    @property
    def ways(self) -> list[tuple[Sheet, ...]]:
        """The sheets each once, and repeated where something is."""
        return [self.sheets, self.repeated] if self.repeated else [self.sheets]


_BIASES = {"bias", "shift", "beta", "b", "b_2", "offset"}
_GAINS = {"weight", "scale", "gamma", "gain", "g", "a", "a_2", "alpha", "w"}


def gathered(module: nn.Module, n_heads: int | None = None) -> Gathered:
    """The tensors of a module and all inside it, in the order in which they are registered.

    One matrix a head, in lists or in one tensor of three dimensions, is joined over the heads.
    """
    found, again = _gathered(module, n_heads, True), _gathered(module, n_heads, False)
    more = len(again.sheets) > len(found.sheets)
    return replace(found, repeated=again.sheets) if more else found


def _gathered(module: nn.Module, n_heads: int | None, once: bool) -> Gathered:
    """Parameters that stand in two places, `once` or in both."""
    sheets: list[Sheet] = []
    vectors: list[Vectors] = []
    seen: set[int] = set()
    for path, owner in module.named_modules(remove_duplicate=once):
        own = {name: p for name, p in owner.named_parameters(recurse=False) if id(p) not in seen}
        if once:
            seen |= {id(p) for p in own.values()}
        stored, table = _stored(owner)
        plain = {name: _squeezed(p) if stored == "unknown" else p for name, p in own.items()}
        matrices = {name: _flat(p, n_heads) for name, p in plain.items() if p.ndim >= 2}
        if not matrices and own:
            vectors.append(_vectors(path, own))
            continue
        biases = {name: p for name, p in plain.items() if p.ndim == 1}
        for name, matrix in matrices.items():
            bias_name = _its_bias(name, matrix, biases)
            bias = biases.pop(bias_name) if bias_name else None
            sources = _sources(own, name, bias_name)
            sheets.append(Sheet(_joined(path, name), matrix, bias, stored, table, sources))
    return Gathered(tuple(_over_heads(sheets, n_heads)), tuple(vectors))


def _sources(own: Mapping[str, Tensor], weight: str | None, bias: str | None) -> Sources:
    named = {"weight": weight, "bias": bias}
    return {ours: frozenset([id(own[name])]) for ours, name in named.items() if name}


def _squeezed(p: Tensor) -> Tensor:
    """Without the dimensions of 1 in front that only help broadcasting, as in (1, T, d)."""
    while p.ndim > 1 and p.shape[0] == 1:
        p = p[0]
    return p


def _flat(p: Tensor, n_heads: int | None) -> Tensor:
    """(n_heads, d_in, head_dim) as (d_in, n_heads * head_dim); two dimensions as they are."""
    if p.ndim == 3 and p.shape[0] == n_heads:
        return p.permute(1, 0, 2).flatten(1)
    return p


def _stored(owner: nn.Module) -> tuple[Stored, bool]:
    if isinstance(owner, nn.Linear | nn.MultiheadAttention):
        return "out_in", False
    if isinstance(owner, nn.Embedding):
        return "out_in", True
    return ("in_out", False) if type(owner).__name__ == "Conv1D" else ("unknown", False)


def _its_bias(name: str, matrix: Tensor, biases: Mapping[str, Tensor]) -> str | None:
    """The name of the bias that goes with a matrix: by name, then by size and order."""
    likely = [name.replace("weight", "bias"), re.sub(r"^[wW]", "b", name)]
    fitting = [key for key, bias in biases.items() if len(bias) in matrix.shape]
    return next((key for key in likely if key in fitting), next(iter(fitting), None))


def _vectors(path: str, own: Mapping[str, Tensor]) -> Vectors:
    names = list(own)
    bias_name = next((name for name in names if name.lower() in _BIASES), None)
    weight_name = next((name for name in names if name.lower() in _GAINS), None)
    told_apart = bias_name is not None or weight_name is not None
    # What no name says, the order does: the gain comes first.
    weight_name = weight_name or next((name for name in names if name != bias_name), None)
    bias_name = bias_name or next((name for name in names if name != weight_name), None)
    return Vectors(
        path,
        _squeezed(own[weight_name]) if weight_name else None,
        _squeezed(own[bias_name]) if bias_name else None,
        _joined(path, weight_name or ""),
        _joined(path, bias_name or ""),
        told_apart,
        _sources(own, weight_name, bias_name),
    )


def _joined(path: str, name: str) -> str:
    return ".".join(filter(None, (path, "" if name == "weight" else name))) or name


def _over_heads(sheets: Iterable[Sheet], n_heads: int | None) -> list[Sheet]:
    """Lists of one small matrix a head, joined into one."""
    groups: dict[str, list[Sheet]] = {}
    for sheet in sheets:
        groups.setdefault(re.sub(r"\d+", "#", sheet.name), []).append(sheet)
    found: list[Sheet] = []
    for pattern, members in groups.items():
        alike = len({member.matrix.shape for member in members}) == 1
        if n_heads is None or n_heads == 1 or len(members) != n_heads or not alike:
            found += members
            continue
        axis = 1 if members[0].stored == "in_out" else 0
        biases = [member.bias for member in members if member.bias is not None]
        found.append(
            Sheet(
                pattern.replace("#", "*"),
                torch.cat([member.matrix for member in members], axis),
                torch.cat(biases) if biases else None,
                members[0].stored,
                sources={
                    ours: frozenset().union(*(member.sources[ours] for member in members))
                    for ours in members[0].sources
                },
            )
        )
    return found
