"""What every swappable part has: a record with a kind, a module, and counts without building it.

A part stands in one file: its module, the record nested in it as `Config`, and the shapes of its
parameters. `part` registers both under a kind; a user's own part registers the same way.
"""

import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import torch
from torch import nn

from blocklab.errors import BlocklabError, nearest
from blocklab.parts.contract import SIZES, constructing, is_ours, require_begun, require_module
from blocklab.parts.own_record import record_of, require_config_taken
from blocklab.parts.read_off import Built, Products, products_in, products_of, specs_of
from blocklab.parts.spec import Role as Role
from blocklab.parts.spec import Spec as Spec
from blocklab.parts.spec import linear as linear
from blocklab.parts.spec import under as under
from blocklab.record import Tagged
from blocklab.streams import stream_seed


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
            built[module] = Built(self, sizes)
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
        return specs_of(*self._read_off(*sizes))

    def matrix_parameters(self, *sizes: int) -> int:
        """Parameters of linear maps that one token is multiplied by, each as often as it is."""
        return self._products(*sizes).linear

    def in_products(self, *sizes: int) -> int:
        """Parameters in matrix products for one token, each as often as it is multiplied by.

        A class of the user's own that a token meets only in part (experts) states them by a static
        method `matrix_parameters` that takes the record and the sizes. Otherwise all its linear
        maps count, and what it multiplies by hand: raw parameters of two dimensions or more. A
        tensor that several of its modules hold counts in each, a module that is called several
        times counts once.
        """
        own = getattr(self.module, "matrix_parameters", None)
        if own is not None:
            return int(own(self, *sizes))
        if type(self).matrix_parameters is not PartConfig.matrix_parameters:
            return self.matrix_parameters(*sizes)
        return sum(self._products(*sizes))

    def _products(self, *sizes: int) -> Products:
        if type(self).parameters is not PartConfig.parameters:
            return products_in(self.parameters(*sizes))
        return products_of(*self._read_off(*sizes))

    def _read_off(self, *sizes: int) -> tuple[nn.Module, Mapping[nn.Module, Built]]:
        """The module, built without storage, and the parts that were built inside it."""
        inside: dict[nn.Module, Built] = {}
        token = _built_inside.set(inside)
        try:
            with torch.device("meta"):
                module = self.build(*sizes)
        finally:
            _built_inside.reset(token)
        del inside[module]
        return module, inside


_built_inside: ContextVar[dict[nn.Module, Built] | None] = ContextVar("built_inside", default=None)
"""Where the parts are noted that are built while a part is read off."""


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

    The constructor's values are not the first ones of everything: `initialization` draws the
    weights of its `nn.Linear` and `nn.Embedding` again and zeroes their biases, so that all parts
    start alike. Raw parameters keep what the constructor gave them.

    Three attributes of the class say more. `keeps_values = ("gate.bias",)` names parameters that
    are not drawn again: what the constructor set is meant. `residual_writers = ("down.weight",)`
    names the matrices whose product is added to the residual stream: `initialization` draws them as
    it draws ours (kind depth, `residual_writers`). Parts that are built inside have said both
    themselves. `keeps_promise = False` says that a class derived from one of ours is meant to
    compute something else than ours promises (its mean square, the keys it sees); a study refuses
    it otherwise. What a part keeps between two steps belongs in its parameters and buffers, which
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
            config.takes_config = False
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
