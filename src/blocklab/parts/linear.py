"""The linear map of every part, multiplied by whoever is fastest here.

It is `nn.Linear` in everything but who multiplies: PyTorch's own CPU products keep AMD processors
to narrower instructions than they have, oneDNN, which PyTorch ships too, does not.
"""

import functools
import platform
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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
    """a @ b^T by oneDNN: (N, d), (M, d) -> (N, M). Both dense, in rows or in columns."""
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


class Linear(nn.Linear):
    """x W^T + b, (..., d_in) -> (..., d_out); constructed and stored exactly as `nn.Linear`."""

    def forward(self, x: Tensor) -> Tensor:
        if (
            default_products(x) == "torch"
            or torch.compiler.is_compiling()
            or torch.is_autocast_enabled("cpu")
        ):
            return F.linear(x, self.weight, self.bias)
        rows = x.reshape(-1, self.in_features).contiguous()
        y: Tensor = _OneDnnLinear.apply(rows, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return y.view(*x.shape[:-1], self.out_features)
