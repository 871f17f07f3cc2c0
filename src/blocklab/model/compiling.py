"""Compiled code: for as many models as a process meets, and for single functions of tensors."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn

from blocklab.errors import BlocklabError

MOST = 256
"""Kinds of models, dtypes and threads that one function is compiled for."""

Code: TypeAlias = Callable[..., Sequence[Tensor]]
"""Takes the tensors one by one and gives all results."""


def for_every_model() -> AbstractContextManager[object]:
    """Inside, compiled functions serve every model as if it were a process's only one.

    All models share one function's code. PyTorch would stop compiling at the eighth kind, and take
    a model with hooks for one without: what a process did before would decide what is computed.
    """
    patch: AbstractContextManager[object] = torch._dynamo.config.patch(
        recompile_limit=MOST, skip_nnmodule_hook_guards=False
    )
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
