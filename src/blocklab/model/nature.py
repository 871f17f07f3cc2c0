"""What a module is, as far as code that was traced from it depends on it: all but its weights."""

import copy
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType

import torch
from torch import Tensor, nn

from blocklab.record import Record


def is_ours(kind: type) -> bool:
    """Whether a class is blocklab's own, and not somebody's that builds on it."""
    return kind.__module__.split(".")[0] == "blocklab"


def foreign(module: nn.Module, path: str) -> str | None:
    """What in the module at `path` is not ours: traced once, it may not tell all that it does.

    A part of somebody else's, a hook, a method or a value set by hand; None where there is nothing.
    """
    if _has_hooks(nn.modules.module):
        return "hooks on all modules"
    parts = module.named_modules(prefix=path)
    return next(filter(None, (foreign_itself(part, name) for name, part in parts)), None)


def foreign_itself(part: nn.Module, path: str) -> str | None:
    """As `foreign` says, of the part alone, without those inside it."""
    kind = type(part)
    if not is_ours(kind) and kind not in _CONTAINERS:
        return f"{path} is a {kind.__qualname__}"
    if _has_hooks(part):
        return f"{path} has a hook"
    for key, value in _facts(part):
        if not _is_plain(value):
            return f"{path}.{key} is a {type(value).__qualname__}"
    return None


_CONTAINERS = (nn.ModuleDict, nn.ModuleList)

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def _has_hooks(of: object) -> bool:
    every = vars(of).items()
    return any(value for key, value in every if key.endswith(_HOOKS) and isinstance(value, dict))


def _facts(part: nn.Module) -> list[tuple[str, object]]:
    """What a module holds beside what every module holds."""
    return [(key, value) for key, value in vars(part).items() if key not in _OF_EVERY_MODULE]


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def _is_plain(value: object) -> bool:
    """Whether a value stays as it is, and its `repr` tells it from every other one."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, (*value.keys(), *value.values())))
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    if isinstance(value, FunctionType):
        home = str(value.__globals__.get("__name__", ""))
        return home.split(".")[0] in ("blocklab", "torch") and value.__closure__ is None
    if isinstance(value, BuiltinFunctionType):
        return True
    return value is None or isinstance(value, bool | int | float | str | torch.dtype | Record)


def nature(module: nn.Module) -> tuple[object, ...]:
    """All of a module of ours that its code depends on but the values of its tensors."""
    parts = tuple(
        (name, type(part), _methods(type(part)), *map(repr, _facts(part)))
        for name, part in module.named_modules()
    )
    numbers: dict[int, int] = {}  # one for each tensor, for tied ones have several names
    tensors = tuple(
        (name, numbers.setdefault(id(tensor), len(numbers)), *layout(tensor))
        for named in (module.named_parameters, module.named_buffers)
        for name, tensor in named(remove_duplicate=False)
    )
    return parts, tensors


def _methods(kind: type) -> tuple[object, ...]:
    """A class's own functions: someone may have put others in their place."""
    own = filter(is_ours, kind.__mro__)
    return tuple(f for base in own for f in vars(base).values() if isinstance(f, FunctionType))


def shell(module: nn.Module) -> nn.Module:
    """A copy of a module in evaluation mode, of which the tensors are the module's own."""
    tensors = (*module.parameters(), *module.buffers())
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors}).eval()


def layout(tensor: Tensor, growing: int | None = None) -> tuple[object, ...]:
    """What code knows of a tensor, one of whose sizes may grow."""
    sizes = tuple(None if dim == growing else size for dim, size in enumerate(tensor.shape))
    strides = None if growing is not None and tensor.is_contiguous() else tensor.stride()
    return sizes, strides, tensor.dtype, tensor.device


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by their names, without gradients."""
    named = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor.detach() for name, tensor in named}
