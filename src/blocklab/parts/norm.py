"""Normalisations of a vector of the residual stream: layer, rms, dyt, none."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from blocklab.parts.linear import is_plain_torch
from blocklab.parts.part import PartConfig, Spec, part, slot


@slot(n_sizes=1)
class NormConfig(PartConfig):
    """A norm over the last dimension, of size d."""

    slot = "norm"
    default_kind = "layer"


def _affine(d: int, bias: bool) -> dict[str, Spec]:
    specs = {"weight": Spec((d,), "gain")}
    if bias:
        specs["bias"] = Spec((d,), "bias")
    return specs


class _ScaledConfig(NormConfig):
    """What norms have that divide by a measure of size and scale afterwards."""

    eps: float = Field(1e-5, gt=0)
    bias: bool = True
    unit_offset: bool = False
    """Store the gain as its distance from one (Gemma)."""

    def parameters(self, d: int) -> dict[str, Spec]:  # type: ignore[override]
        return _affine(d, self.bias)


class _Scaled(nn.Module):
    def __init__(self, d: int, config: _ScaledConfig) -> None:
        super().__init__()
        self.eps, self.unit_offset = config.eps, config.unit_offset
        self.weight = nn.Parameter(torch.zeros(d) if config.unit_offset else torch.ones(d))
        self.bias = nn.Parameter(torch.zeros(d)) if config.bias else None

    def gain(self, dtype: torch.dtype) -> Tensor:
        """What vectors are scaled by, (d,): half precision has no digits for what is near one."""
        weight = self.weight.to(dtype)
        return weight + 1 if self.unit_offset else weight


@part("norm", "layer")
class LayerNorm(_Scaled):
    """Subtract the mean, divide by the standard deviation, scale and shift (Ba et al. 2016).

    The variance divides by d, not d - 1, and eps stands inside the root.
    Shapes: (..., d) -> (..., d). Computes in at least float32 and returns the input's dtype.
    """

    class Config(_ScaledConfig):
        """`eps`, added to the variance, keeps the root from zero.

        `bias`: a learned shift (d,) after the learned gain (d,). `unit_offset`: the gain is stored
        as its distance from one (Gemma).
        """

        kind: Literal["layer"] = "layer"

    def forward(self, x: Tensor) -> Tensor:
        size = self.weight.shape
        if not self.unit_offset:
            # PyTorch's own widens all that it is given, and rounds once.
            return F.layer_norm(x, size, self.weight, self.bias, self.eps)
        wide = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(wide)
        return F.layer_norm(x.to(wide), size, self.gain(wide), bias, self.eps).to(x.dtype)


@part("norm", "rms")
class RMSNorm(_Scaled):
    """Divide each vector by its root mean square, then scale (Zhang & Sennrich 2019).

    Shapes: (..., d) -> (..., d). Computes in at least float32 and returns the input's dtype.
    """

    class Config(_ScaledConfig):
        """`eps`, added to the mean square, keeps the root from zero.

        `bias`: a learned shift (d,) after the learned gain (d,). `unit_offset`: the gain is stored
        as its distance from one (Gemma).
        """

        kind: Literal["rms"] = "rms"
        eps: float = Field(1e-6, gt=0)
        bias: bool = False

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        gain = self.gain(wide.dtype)
        y: Tensor
        if x.device.type == "cpu" and not is_plain_torch():
            y, _ = _DividedByRms.apply(wide, gain, self.eps)  # type: ignore[no-untyped-call]
        else:
            y = F.rms_norm(wide, gain.shape, gain, self.eps)
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype)


class _DividedByRms(torch.autograd.Function):
    """x / rms(x) * gain, (..., d), with its gradients in four passes over x.

    On a processor PyTorch takes its own apart into a dozen, which small models wait for.
    """

    @staticmethod
    def forward(x: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = size.square_().div_(x.shape[-1]).add_(eps).rsqrt_()  # (..., 1)
        return torch.mul(x, inverse).mul_(gain), inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, gain, _ = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, gain, output[1])

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor, _: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        x, gain, inverse = ctx.saved_tensors
        product = gradient * x
        for_gain = for_x = None
        if ctx.needs_input_grad[1]:
            for_gain = inverse.reshape(1, -1).mm(product.reshape(-1, x.shape[-1])).squeeze(0)
        if ctx.needs_input_grad[0]:
            # The part along x is what dividing by its own size takes away.
            along = (product @ gain).unsqueeze(-1).mul_(inverse.pow(3)).div_(x.shape[-1])
            for_x = torch.mul(gradient, gain).mul_(inverse).addcmul_(x, along, value=-1)
        return for_x, for_gain, None


@part("norm", "dyt")
class DynamicTanh(nn.Module):
    """tanh(alpha * x), scaled and shifted: no statistics at all (Zhu et al. 2025).

    Shapes: (..., d) -> (..., d). alpha is one learned number. Computes in at least float32 and
    returns the input's dtype.
    """

    class Config(NormConfig):
        """`alpha`: its first value. `bias`: a learned shift (d,) after the learned gain (d,)."""

        kind: Literal["dyt"] = "dyt"
        alpha: float = Field(0.5, gt=0)
        """First value of alpha."""
        bias: bool = True

        def parameters(self, d: int) -> dict[str, Spec]:  # type: ignore[override]
            return {"alpha": Spec((1,), "gain"), **_affine(d, self.bias)}

    def __init__(self, d: int, config: Config) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1,), config.alpha))
        self.weight = nn.Parameter(torch.ones(d))
        self.bias = nn.Parameter(torch.zeros(d)) if config.bias else None

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        y = torch.tanh(self.alpha * wide) * self.weight
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype)


@part("norm", "none")
class NoNorm(nn.Module):
    """The vector as it is."""

    class Config(NormConfig):
        """Nothing to set."""

        kind: Literal["none"] = "none"

        def parameters(self, d: int) -> dict[str, Spec]:  # type: ignore[override]
            return {}

    def __init__(self, d: int, config: Config) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x
