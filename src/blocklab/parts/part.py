"""What every swappable part has: a record with a kind, a module, and counts without building it.

A part stands in one file: its module, the record nested in it as `Config`, and the shapes of its
parameters. `part` registers both under a kind; a user's own part registers the same way.
"""

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, cast

import torch
from pydantic import create_model
from torch import nn

from blocklab.errors import BlocklabError, nearest
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
        """The part's module, freshly constructed by PyTorch's own constructors."""
        with _own_stream(self.slot):
            return self._constructed(*sizes)

    def _constructed(self, *sizes: int) -> nn.Module:
        if self.takes_config:
            return self.module(*sizes, self)
        fields = {name: getattr(self, name) for name in type(self).model_fields if name != "kind"}
        return self.module(*sizes, **fields)

    def parameters(self, *sizes: int) -> dict[str, Spec]:
        """Name, shape and role of every parameter, in the order of the built module.

        Ours state them; a user's own part is built without storage and read off.
        """
        with torch.device("meta"):
            return specs_of(self.build(*sizes))

    def matrix_parameters(self, *sizes: int) -> int:
        """Parameters that take part in matrix products for one token."""
        return sum(
            spec.size
            for spec in self.parameters(*sizes).values()
            if spec.role in ("matrix", "writer")
        )


def specs_of(module: nn.Module) -> dict[str, Spec]:
    """Shapes and roles read off a built module: linear maps are matrices, lookup tables are not."""
    drawn: dict[str, Role] = {}
    for path, inner in module.named_modules():
        if isinstance(inner, nn.Linear | nn.Embedding):
            role: Role = "matrix" if isinstance(inner, nn.Linear) else "position"
            drawn[f"{path}.weight" if path else "weight"] = role
    specs = {}
    for name, parameter in module.named_parameters():
        role = drawn.get(name, "other")
        if parameter.ndim < 2:
            role = "bias" if name.endswith("bias") else "gain"
        specs[name] = Spec(tuple(parameter.shape), role)
    return specs


_SLOTS: dict[str, tuple[type[PartConfig], int]] = {}

SlotBase = TypeVar("SlotBase", bound=type[PartConfig])
Module = TypeVar("Module", bound=type[nn.Module])


def slot(n_sizes: int) -> Callable[[SlotBase], SlotBase]:
    """Declare a kind of part: its base record, and how many sizes its constructor takes first."""

    def declare(base: SlotBase) -> SlotBase:
        _SLOTS[base.slot] = (base, n_sizes)
        return base

    return declare


def part(slot: str, kind: str) -> Callable[[Module], Module]:
    """Register a module as a part: `@bl.part("norm", "my-norm")`, then `{kind: my-norm}` anywhere.

    The constructor takes the slot's sizes first (norm: d; attention, feed_forward, residual and
    block: d_model; positions: d_model, context_length). With a nested `Config` it then takes that
    record; without one its further parameters become the record's fields, so they need a type and
    a default.

    Raises BlocklabError for an unknown slot, a taken kind, or a constructor that does not fit.
    """
    if slot not in _SLOTS:
        raise BlocklabError(f"unknown kind of part '{slot}'; {nearest(slot, _SLOTS)}")
    base, n_sizes = _SLOTS[slot]

    def register(module: Module) -> Module:
        if not issubclass(module, base.contract):
            raise BlocklabError(f"{module.__name__} must be a subclass of {base.contract.__name__}")
        config = module.__dict__.get("Config")
        if config is None:
            config = _config_from_signature(module, base, kind, n_sizes)
            module.Config = config  # type: ignore[attr-defined]
        elif not issubclass(config, base):
            raise BlocklabError(f"{module.__name__}.Config must be a {base.__name__}")
        elif config.model_fields["kind"].default != kind:
            raise BlocklabError(
                f"{module.__name__}.Config must state its kind: Literal['{kind}'] = '{kind}'"
            )
        config.module = module
        config.register(kind)
        return module

    return register


def _config_from_signature(
    module: type[nn.Module], base: type[PartConfig], kind: str, n_sizes: int
) -> type[PartConfig]:
    parameters = list(inspect.signature(module).parameters.values())
    fields: dict[str, Any] = {"kind": (Literal[kind], kind)}
    if len(parameters) < n_sizes:
        raise BlocklabError(f"{module.__name__}: the constructor must take {n_sizes} size(s) first")
    for parameter in parameters[n_sizes:]:
        if parameter.name == "kind" or hasattr(base, parameter.name):
            raise BlocklabError(
                f"{module.__name__}: constructor parameter '{parameter.name}' is a word of every "
                f"{base.__name__}; call it something else"
            )
        if parameter.default is inspect.Parameter.empty:
            raise BlocklabError(
                f"{module.__name__}: constructor parameter '{parameter.name}' needs a default, "
                "so that the record can state it"
            )
        annotation = parameter.annotation
        if annotation is inspect.Parameter.empty:
            annotation = type(parameter.default)
        fields[parameter.name] = (annotation, parameter.default)
    config = create_model(
        f"{module.__name__}Config", __base__=base, __module__=module.__module__, **fields
    )
    config.takes_config = False
    return cast(type[PartConfig], config)
