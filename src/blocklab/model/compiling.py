"""Compiled code: for as many models as a process meets, and for single functions of tensors."""

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import BuiltinFunctionType, FunctionType, MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn

from blocklab.errors import BlocklabError
from blocklab.record import Record

MOST = 256
"""Kinds of models, dtypes and threads that one function is compiled for."""

Code: TypeAlias = Callable[..., Sequence[Tensor]]
"""Takes the tensors one by one and gives all results."""


def for_every_model() -> AbstractContextManager[object]:
    """Inside, compiled functions go on compiling where PyTorch would stop at the eighth kind.

    All models share one function's code, and from its limit on the rest would silently not be
    compiled: what a process did before would decide how a model is computed.
    """
    patch: AbstractContextManager[object] = torch._dynamo.config.patch(recompile_limit=MOST)
    return patch


def machine_code(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor],
    growing: Mapping[int, int] = MappingProxyType({}),
) -> Code:
    """The code of a function of tensors alone, without gradients, for inputs of these shapes.

    `growing` names the inputs one of whose sizes may differ from call to call, and its dimension.
    What else the function reads is fixed, and little is checked at a call: the inputs' dtypes,
    shapes and strides must be these, and so must the number of threads. In return a call costs a
    third of what one of `torch.compile` does. For one thread at a time. Raises whatever the
    compiler raises; the code raises BlocklabError where a size has left the range in which the
    function went the same way.
    """
    grows = torch.export.Dim.DYNAMIC
    sizes = tuple({growing[i]: grows} if i in growing else None for i in range(len(inputs)))
    # A tensor that was given twice would be one input for good; another time it may be two.
    single = tuple(tensor.detach() for tensor in inputs)
    with _no_size_for_another(), torch.no_grad(), torch.autocast("cpu", enabled=False):
        program = torch.export.export(
            _AsModule(function), single, dynamic_shapes=(sizes,), strict=False
        )
        graph = program.graph_module
        traced = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        code = _compiled(graph, traced)
    # Tensors that the function made or met on its way stand before those that it was given.
    met = [program.constants[name] for name in _names_of_constants(program)]
    limits = [
        (i, dim, bounds)
        for i, dim in growing.items()
        if (bounds := _bounds(program, traced[len(met) + i].shape[dim])) is not None
    ]
    if not met and not limits:
        return code

    def with_what_it_met(*given: Tensor) -> Sequence[Tensor]:
        for i, dim, (least, most) in limits:
            if not least <= given[i].shape[dim] <= most:
                raise BlocklabError(
                    f"code compiled for {least} to {most} cannot serve {given[i].shape[dim]}"
                )
        return code(*met, *given)

    return with_what_it_met


def _no_size_for_another() -> AbstractContextManager[object]:
    """Two sizes that happen to be equal when the code is made need not be equal for good."""
    sizes = torch.fx.experimental._config
    patch: AbstractContextManager[object] = sizes.patch(use_duck_shape=False)  # type: ignore[attr-defined]
    return patch


def _bounds(program: torch.export.ExportedProgram, size: Any) -> tuple[int, int] | None:
    """Between which the function was found to go the same way; None for whatever may come."""
    known = program.range_constraints.get(size.node.expr)
    if known is None or (known.lower <= 2 and known.upper > sys.maxsize // 2):
        return None
    return int(known.lower), int(min(known.upper, sys.maxsize))


def _names_of_constants(program: torch.export.ExportedProgram) -> list[str]:
    kinds = torch.export.graph_signature.InputKind
    specs = program.graph_signature.input_specs
    return [str(spec.target) for spec in specs if spec.kind != kinds.USER_INPUT]


def _compiled(graph: fx.GraphModule, inputs: list[Any]) -> Code:
    code: Code = torch._inductor.standalone_compile(
        graph,
        inputs,
        dynamic_shapes="from_graph",
        options={"config_patches": {"size_asserts": False}},
    )
    return code


class _AsModule(nn.Module):
    def __init__(self, function: Callable[..., Sequence[Tensor]]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: Tensor) -> Sequence[Tensor]:
        return self._function(*inputs)


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
    if kind.__module__.split(".")[0] != "blocklab" and kind not in _CONTAINERS:
        return f"{path} is a {kind.__qualname__}"
    if _has_hooks(part):
        return f"{path} has a hook"
    by_hand = (key for key, value in _facts(part) if not _is_plain(value))
    return next(
        (f"{path}.{key} is a {type(vars(part)[key]).__qualname__}" for key in by_hand), None
    )


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
    own = (base for base in kind.__mro__ if base.__module__.split(".")[0] == "blocklab")
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
