"""What every swappable part has: a record with a kind, a module, and counts without building it.

A part stands in one file: its module, the record nested in it as `Config`, and the shapes of its
parameters. `part` registers both under a kind; a user's own part registers the same way.
"""

import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import torch
from torch import nn

from blocklab.errors import BlocklabError, nearest
from blocklab.parts.contract import SIZES, constructing, is_ours, require_begun, require_module
from blocklab.parts.own_record import record_of, require_config_taken
from blocklab.record import Tagged
from blocklab.streams import stream_seed

Role: TypeAlias = Literal[
    "embedding", "position", "matrix", "writer", "head", "gain", "bias", "other"
]
"""What a parameter is for. It decides its first values and whether it decays.

`matrix` reads the residual stream or an inner width; `writer` is the matrix whose product is added
to the stream; `other` keeps the values its constructor gave it.
"""


@dataclass(frozen=True)
class Spec:
    """Shape and role of one parameter, known without building it."""

    shape: tuple[int, ...]
    role: Role

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def linear(
    name: str, d_in: int, d_out: int, *, bias: bool, role: Role = "matrix"
) -> dict[str, Spec]:
    """The specs of an `nn.Linear(d_in, d_out)` called `name`."""
    specs = {f"{name}.weight": Spec((d_out, d_in), role)}
    if bias:
        specs[f"{name}.bias"] = Spec((d_out,), "bias")
    return specs


def under(prefix: str, specs: dict[str, Spec]) -> dict[str, Spec]:
    """The same specs with their names one level deeper."""
    return {f"{prefix}.{name}": spec for name, spec in specs.items()}


@dataclass(frozen=True)
class _Construction:
    """The stream that a seeded module under construction draws from, and what it has built."""

    seed: int
    built: Counter[str] = field(default_factory=Counter)


_under_construction: ContextVar[_Construction | None] = ContextVar("construction", default=None)


@contextmanager
def seeded_construction(seed: int, label: str) -> Iterator[None]:
    """Everything constructed inside draws from the stream of (seed, label).

    Each part that is built inside draws from a stream below it, so that what one part's
    constructor takes moves nothing that another one draws.
    """
    construction = _Construction(stream_seed(seed, "construction", label))
    token = _under_construction.set(construction)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(construction.seed)
            yield
    finally:
        _under_construction.reset(token)


@contextmanager
def _own_stream(slot: str) -> Iterator[None]:
    outer = _under_construction.get()
    if outer is None:
        yield
        return
    outer.built[slot] += 1
    with seeded_construction(outer.seed, f"{slot}.{outer.built[slot]}"):
        yield


class PartConfig(Tagged):
    """The record of a part: builds its module and counts it."""

    module: ClassVar[type[nn.Module]]
    takes_config: ClassVar[bool] = True
    contract: ClassVar[type[nn.Module]] = nn.Module
    """What a module of this slot must be."""

    def build(self, *sizes: int) -> nn.Module:
        """The part's module, freshly constructed by PyTorch's own constructors.

        Raises BlocklabError, naming the class, when the constructor of a user's own part fails.
        """
        with _own_stream(self.slot), constructing(self.module):
            module = self._constructed(*sizes)
        require_begun(module)
        built = _built_inside.get()
        if built is not None:
            built[module] = _Built(self, sizes)
        return module

    def _constructed(self, *sizes: int) -> nn.Module:
        if self.takes_config:
            return self.module(*sizes, self)
        fields = {name: getattr(self, name) for name in type(self).model_fields if name != "kind"}
        return self.module(*sizes, **fields)

    def parameters(self, *sizes: int) -> dict[str, Spec]:
        """Name, shape and role of every parameter, in the order of the built module.

        Ours state them; a user's own part is built without storage and read off.
        """
        inside: dict[nn.Module, _Built] = {}
        token = _built_inside.set(inside)
        try:
            with torch.device("meta"):
                module = self.build(*sizes)
        finally:
            _built_inside.reset(token)
        del inside[module]
        return _with_writers(module, specs_of(module, inside))

    def matrix_parameters(self, *sizes: int) -> int:
        """Parameters that take part in matrix products for one token."""
        return sum(
            spec.size
            for spec in self.parameters(*sizes).values()
            if spec.role in ("matrix", "writer")
        )


class _Built(NamedTuple):
    """What a part was built from."""

    record: PartConfig
    sizes: tuple[int, ...]


_built_inside: ContextVar[dict[nn.Module, _Built] | None] = ContextVar("built_inside", default=None)
"""Where the parts are noted that are built while a part's parameters are read off."""


def specs_of(
    module: nn.Module, inside: Mapping[nn.Module, _Built] | None = None
) -> dict[str, Spec]:
    """Shapes and roles read off a built module: linear maps are matrices, lookup tables are not.

    `inside` says which modules in it are parts: their records know their roles.
    """
    known: dict[str, Role] = {}
    drawn: dict[str, Role] = {}
    for path, inner in module.named_modules():
        built = (inside or {}).get(inner)
        if built is not None:
            specs = under(path, built.record.parameters(*built.sizes))
            known |= {name: spec.role for name, spec in specs.items()}
        elif isinstance(inner, nn.Linear | nn.Embedding):
            role: Role = "matrix" if isinstance(inner, nn.Linear) else "position"
            drawn[f"{path}.weight" if path else "weight"] = role
    read = {}
    for name, parameter in module.named_parameters():
        role = drawn.get(name, "other")
        if parameter.ndim < 2:
            role = "bias" if name.endswith("bias") else "gain"
        read[name] = Spec(tuple(parameter.shape), known.get(name, role))
    return read


def _with_writers(module: nn.Module, specs: dict[str, Spec]) -> dict[str, Spec]:
    """The specs with the role of those that the class names as residual writers."""
    written = dict(specs)
    for name in getattr(module, "residual_writers", ()):
        at = f"{type(module).__name__}.residual_writers: '{name}'"
        if name not in specs:
            raise BlocklabError(f"{at} is no parameter of it; {nearest(name, specs)}")
        if len(specs[name].shape) < 2:
            raise BlocklabError(f"{at} has shape {specs[name].shape}; expected a matrix")
        written[name] = Spec(specs[name].shape, "writer")
    return written


_SLOTS: dict[str, type[PartConfig]] = {}

_DECLARED_IN = {"block": "blocklab.model.block"}
"""Slots of rooms above this one, which a user may fill before anything has imported them."""

SlotBase = TypeVar("SlotBase", bound=type[PartConfig])
Module = TypeVar("Module", bound=type[nn.Module])


def slot(n_sizes: int) -> Callable[[SlotBase], SlotBase]:
    """Declare a kind of part: its base record, and how many sizes its constructor takes first."""

    def declare(base: SlotBase) -> SlotBase:
        assert len(SIZES[base.slot]) == n_sizes
        _SLOTS[base.slot] = base
        return base

    return declare


def part(slot: str, kind: str) -> Callable[[Module], Module]:
    """Register a module as a part: `@bl.part("norm", "my-norm")`, then `{kind: my-norm}` anywhere.

    The constructor takes the slot's sizes first, and the module acts by forward:

    - norm: d; forward(x), (..., d) -> (..., d)
    - feed_forward: d_model; forward(x), (..., d_model) -> (..., d_model)
    - attention: d_model; forward(x, context), (B, T, d_model) -> (B, T, d_model)
    - residual: d_model; forward(stream, branch), both (..., d_model) -> (..., d_model)
    - block: d_model; forward(x, context), (B, T, d_model) -> (B, T, d_model)
    - positions: d_model, context_length; a subclass of bl.parts.Positions, which acts by whichever
      of its methods it defines: embed, tables and rotate, score_bias

    With a nested `Config` the constructor takes that record next; without one its further
    parameters become the record's fields, so they need a type and a default.

    Two attributes of the class say more. `residual_writers = ("down.weight",)` names the matrices
    whose product is added to the residual stream: `initialization` draws them as it draws ours
    (kind depth, `residual_writers`). Parts that are built inside have said so themselves.
    `keeps_promise = False` says that a class derived from one of ours is meant to compute
    something else than ours promises (its mean square, the keys it sees); a study refuses it
    otherwise. What a part keeps between two steps belongs in its parameters and buffers, which
    checkpoints hold.

    Raises BlocklabError for an unknown slot, a taken kind, or a class that does not fit.
    """
    if slot in _DECLARED_IN and slot not in _SLOTS:
        importlib.import_module(_DECLARED_IN[slot])
    if slot not in _SLOTS:
        raise BlocklabError(f"unknown kind of part '{slot}'; {nearest(slot, SIZES)}")
    base = _SLOTS[slot]

    def register(module: Module) -> Module:
        require_module(module, slot, base.contract)
        config = module.__dict__.get("Config")
        if config is None or getattr(config, "takes_config", None) is False:  # made here before
            config = record_of(module, base, kind)
            module.Config = config  # type: ignore[attr-defined]
        elif not (isinstance(config, type) and issubclass(config, base)):
            raise BlocklabError(f"{module.__name__}.Config must be a {base.__name__}")
        elif config.model_fields["kind"].default != kind:
            raise BlocklabError(
                f"{module.__name__}.Config must state its kind: Literal['{kind}'] = '{kind}'"
            )
        elif not is_ours(module):
            require_config_taken(module, base)
        config.module = module
        config.register(kind)
        return module

    return register
