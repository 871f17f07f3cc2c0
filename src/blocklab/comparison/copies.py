"""A learner's module copied: in float64 on the processor, its parameters drawn anew.

What the original can never train is found out on the way. The module itself is left as it was.
"""

import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


@dataclass(frozen=True)
class Copied:
    """The copy, and what was found while making it. Every parameter of the copy can train."""

    module: nn.Module
    first_values: dict[str, Tensor]
    """Each parameter as the learner had it."""
    frozen: frozenset[str]
    """Parameters that ask for no gradient."""
    unregistered: tuple[str, ...]
    """Lists and dictionaries of Python that hold modules or parameters: nothing in them trains."""
    untrained: dict[str, tuple[str, tuple[int, ...]]]
    """Tensors that are no parameters, by name: a buffer or a plain tensor, and its shape."""


def copied(module: nn.Module) -> Copied:
    """A copy to try out."""
    new = copy.deepcopy(module, _without_graph(module)).cpu()
    unregistered = tuple(_registered(new))
    new.double().eval()
    untrained = {name: ("a buffer", tuple(b.shape)) for name, b in new.named_buffers()}
    untrained |= {name: ("a plain tensor", shape) for name, shape in _plain_tensors_widened(new)}
    parameters = dict(new.named_parameters())
    frozen = frozenset(name for name, p in parameters.items() if not p.requires_grad)
    first_values = {name: p.detach().clone() for name, p in parameters.items()}
    _draw(parameters, _constants(parameters, frozen))
    for parameter in parameters.values():
        parameter.requires_grad_(parameter.is_floating_point())
    return Copied(new, first_values, frozen, unregistered, untrained)


def fresh(module: nn.Module) -> nn.Module:
    """A copy with the same parameters, but with buffers and all else of its own."""
    return copy.deepcopy(module, {id(p): p for p in module.parameters()})


def _without_graph(module: nn.Module) -> dict[int, Any]:
    """For deepcopy: kept results of an earlier call, which have a graph and cannot be copied."""
    return {
        id(value): value.detach().clone()
        for owner in module.modules()
        for value in vars(owner).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }


def _own_attributes(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, Any]]:
    """Path, owner, name and value of every attribute that a learner set without registering it."""
    for path, owner in list(module.named_modules()):
        for name, value in list(vars(owner).items()):
            if name not in _OF_EVERY_MODULE:
                yield f"{path}.{name}".lstrip("."), owner, name, value


def _registered(module: nn.Module) -> Iterator[str]:
    """Registers modules and parameters that stand in Python's own lists; gives the lists' paths."""
    for path, owner, name, value in _own_attributes(module):
        known = {id(p) for p in module.parameters()}
        if not isinstance(value, list | tuple | dict) or not _hidden(value, known):
            continue
        if isinstance(value, dict):
            replaced: nn.Module = nn.ModuleDict(value)
        elif isinstance(value[0], nn.Module):
            replaced = nn.ModuleList(value)
        else:
            replaced = nn.ParameterList(value)
        delattr(owner, name)
        setattr(owner, name, replaced)
        yield path
        yield from _registered(replaced)


def _hidden(value: list[Any] | tuple[Any, ...] | dict[Any, Any], known: Collection[int]) -> bool:
    """Whether a container holds only modules, or only parameters, and some are unknown."""
    held = list(value.values() if isinstance(value, dict) else value)
    if held and all(isinstance(one, nn.Module) for one in held):
        return any(id(p) not in known for one in held for p in one.parameters())
    only = bool(held) and all(isinstance(one, nn.Parameter) for one in held)
    return only and not isinstance(value, dict) and any(id(p) not in known for p in held)


def _plain_tensors_widened(module: nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensors that are plain attributes, made float64 as `double` makes what is registered.

    Gives their paths and shapes.
    """
    for path, owner, name, value in _own_attributes(module):
        if isinstance(value, Tensor) and value.is_floating_point():
            setattr(owner, name, value.detach().double().cpu())
            yield path, tuple(value.shape)


def _constants(parameters: Mapping[str, nn.Parameter], frozen: Collection[str]) -> set[str]:
    """Frozen tables among parameters that train, such as sinusoidal positions: they are meant."""
    if len(frozen) == len(parameters):
        return set()
    return {name for name in frozen if parameters[name].ndim >= 2}


def _draw(parameters: Mapping[str, nn.Parameter], kept: Collection[str]) -> None:
    """Values at which no decision hides: matrices that keep size, gains and biases away from 0, 1.

    Ours and theirs use the same values, whatever they are.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name in kept or not parameter.is_floating_point():
                continue
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim >= 2:
                parameter.copy_(noise / max(min(parameter.shape[-2:]), 1) ** 0.5)
            else:
                parameter.add_(noise / 3)


class Snapshot:
    """Parameters as they are now: which a call changes, and how to put them back."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        # The memory too, for a call may give a parameter another.
        self._kept = [(name, p, p.data, p.detach().clone()) for name, p in parameters.items()]

    def changed(self) -> tuple[str, ...]:
        """Names of those that are no longer what they were."""
        return tuple(name for name, p, _, value in self._kept if not torch.equal(p.data, value))

    def put_back(self) -> None:
        for _, parameter, memory, value in self._kept:
            memory.copy_(value)
            parameter.data = memory
