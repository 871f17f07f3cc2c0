"""The linear map of every part, multiplied by whoever is fastest here.

It is `nn.Linear` in everything but who multiplies: PyTorch's own CPU products keep AMD processors
to narrower instructions than they have, oneDNN, which PyTorch ships too, does not.
"""

import functools
import math
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import MappingProxyType, TracebackType
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from blocklab.parts import few_rows

Products: TypeAlias = Literal["torch", "onednn"]
"""Which library multiplies matrices. Both are exact; float32 sums differ in their last bits."""


def default_products(x: Tensor) -> Products:
    """oneDNN for float32 on x86: as fast as MKL on Intel, over twice as fast on AMD with AVX-512.

    MKL keeps AMD processors to AVX2. Measured on Zen 5: 255 against 110 GFLOP/s on one core.
    """
    plain = x.device.type == "cpu" and x.dtype == torch.float32 and type(x) in _PLAIN
    return "onednn" if plain and _has_onednn() else "torch"


_PLAIN = (Tensor, nn.Parameter)


@functools.cache
def _has_onednn() -> bool:
    on_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return on_x86 and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def inner_product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a @ b^T by oneDNN: (..., d), (M, d) -> (..., M). Both dense, in rows or in columns."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(a, b, bias, "none", [], "")
    return product


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return inner_product(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            inner_product(gradient, weight.t()) if for_x else None,
            inner_product(gradient.t(), x.t()) if for_weight else None,
            gradient.sum(0) if for_bias else None,
        )


_plainly = ContextVar("computes by PyTorch's own functions", default=False)


@contextmanager
def in_plain_torch() -> Iterator[None]:
    """Inside, our parts compute by PyTorch's own functions, as a user's part would be written.

    Equal mathematics then has equal bits, whoever wrote it.
    """
    token = _plainly.set(True)
    try:
        yield
    finally:
        _plainly.reset(token)


def is_plain_torch() -> bool:
    """Whether only PyTorch's own functions may be used: asked for, compiled or transformed."""
    # In this order: a compiler cannot read a context variable, it would break the graph in two.
    return torch.compiler.is_compiling() or _plainly.get() or _is_transformed()


def _is_transformed() -> bool:
    """Whether torch.func is at work: `vmap` has rules for PyTorch's own functions only."""
    return bool(torch._C._are_functorch_transforms_active())


_NONE: Mapping[nn.Module, Tensor] = MappingProxyType({})
_active = ContextVar("packed weights", default=_NONE)


class Linear(nn.Linear):
    """x W^T + b, (..., d_in) -> (..., d_out); constructed and stored exactly as `nn.Linear`."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() and few_rows.are_traced():
            return few_rows.product(x, self.weight, self.bias)
        # oneDNN refuses to multiply no rows at all.
        if is_plain_torch() or torch.is_autocast_enabled("cpu") or not x.numel():
            return F.linear(x, self.weight, self.bias)
        packed = _active.get().get(self)
        if packed is not None and packed.dtype == x.dtype:
            return inner_product(x.contiguous(), packed, self.bias)
        if default_products(x) == "torch":
            return F.linear(x, self.weight, self.bias)
        if not torch.is_grad_enabled():
            return inner_product(x.contiguous(), self.weight, self.bias)
        rows = x.reshape(-1, self.in_features).contiguous()
        y: Tensor = _OneDnnLinear.apply(rows, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return y.view(*x.shape[:-1], self.out_features)


# For one row oneDNN asks for float32 weights as they are; the layout for more is faster there too.
_PACKED_FOR_ROWS = 16


class PackedWeights:
    """A context in which linear maps multiply copies of their weights, laid out for oneDNN.

    It is for products of few rows on the CPU, whose time is that of reading the weights: measured
    on one core of a Zen 5, where a sum reads 34 GB/s, 28 against 20 in float32 and 26 against 14 in
    bf16. The copies are made once, here, and cost the weights' memory once more; where that is not
    free none are made. No gradient is computed inside.
    """

    def __init__(self, model: nn.Module) -> None:
        linears = [module for module in model.modules() if isinstance(module, Linear)]
        packable = [module for module in linears if _packable(module.weight)]
        size = sum(module.weight.nbytes for module in packable)
        if size > _free_memory():
            packable = []
        with torch.no_grad():
            self._packed: dict[nn.Module, Tensor] = {
                module: _packed(module.weight) for module in packable
            }
        self._tokens: list[Token[Mapping[nn.Module, Tensor]]] = []

    def of(self, linear: nn.Module) -> Tensor | None:
        """The copy of a linear map's weight, if there is one."""
        return self._packed.get(linear)

    def __enter__(self) -> None:
        self._tokens.append(_active.set(self._packed))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _active.reset(self._tokens.pop())


def _packable(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or type(weight) not in _PLAIN or not _has_onednn():
        return False
    return weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and _has_onednn_bf16())


@functools.cache
def _has_onednn_bf16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _packed(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
    return packed


def _free_memory() -> float:
    """Bytes of memory nobody uses; unlimited where the system does not say."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return math.inf
