"""Norms against PyTorch's own in float64 and against their formulas."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blocklab as bl
from blocklab.parts.linear import in_plain_torch

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def vectors(dtype: torch.dtype = torch.float64) -> Tensor:
    return 3 * torch.randn(5, 7, 16, generator=torch.Generator().manual_seed(0)).to(dtype) + 1


def with_random_parameters(norm: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    norm.double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += torch.randn(parameter.shape, generator=generator).double()
    return norm


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_is_pytorchs(bias: bool) -> None:
    norm = with_random_parameters(bl.parts.LayerNorm.Config(eps=1e-3, bias=bias).build(16))
    expected = F.layer_norm(vectors(), (16,), norm.weight, norm.bias, eps=1e-3)
    torch.testing.assert_close(norm(vectors()), expected, **EXACT)


def test_layer_norm_divides_by_d_with_eps_inside_the_root() -> None:
    norm, x = bl.parts.LayerNorm.Config(eps=0.5).build(16).double(), vectors()
    variance = ((x - x.mean(-1, keepdim=True)) ** 2).sum(-1, keepdim=True) / 16
    expected = (x - x.mean(-1, keepdim=True)) / (variance + 0.5).sqrt()
    torch.testing.assert_close(norm(x), expected, **EXACT)


@pytest.mark.parametrize(
    ("given", "published"),
    [
        ([2.0, 4.0, 6.0, 8.0], [-1.3416, -0.4472, 0.4472, 1.3416]),
        ([1.0, 1.0, 1.0, 50.0], [-0.5774, -0.5774, -0.5774, 1.7321]),
    ],
)
def test_layer_norm_gives_the_published_numbers(given: list[float], published: list[float]) -> None:
    out = bl.parts.LayerNorm.Config(eps=1e-5).build(4)(torch.tensor(given))
    assert [round(v, 4) for v in out.tolist()] == published


@pytest.mark.parametrize("bias", [True, False])
def test_rms_norm_is_its_formula(bias: bool) -> None:
    norm, x = (
        with_random_parameters(bl.parts.RMSNorm.Config(eps=0.1, bias=bias).build(16)),
        vectors(),
    )
    expected = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.1) * norm.weight
    if bias:
        expected = expected + norm.bias
    torch.testing.assert_close(norm(x), expected, **EXACT)


@pytest.mark.parametrize("record", [bl.parts.LayerNorm.Config, bl.parts.RMSNorm.Config])
def test_unit_offset_stores_the_gain_as_its_distance_from_one(record: type) -> None:
    offset, plain = record(unit_offset=True).build(16).double(), record().build(16).double()
    assert not offset.weight.any()
    torch.testing.assert_close(offset(vectors()), plain(vectors()))
    with torch.no_grad():
        offset.weight += 0.5
        plain.weight += 0.5
    torch.testing.assert_close(offset(vectors()), plain(vectors()))


def test_dynamic_tanh_is_its_formula() -> None:
    norm = with_random_parameters(bl.parts.DynamicTanh.Config(alpha=0.7).build(16))
    expected = torch.tanh(norm.alpha * vectors()) * norm.weight + norm.bias
    torch.testing.assert_close(norm(vectors()), expected, **EXACT)
    assert bl.parts.DynamicTanh.Config(alpha=0.25).build(16).alpha.item() == 0.25


def test_no_norm_is_the_identity_without_parameters() -> None:
    norm = bl.parts.NoNorm.Config().build(16)
    assert torch.equal(norm(vectors()), vectors())
    assert not list(norm.parameters())


@pytest.mark.parametrize("kind", ["layer", "rms", "dyt"])
def test_bfloat16_is_computed_in_float32_and_rounded_once(kind: str) -> None:
    norm, x = bl.parts.NormConfig.of_kind(kind)().build(16), vectors(torch.bfloat16)
    half = norm.bfloat16()(x)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, norm.float()(x.float()).bfloat16())


def exact(norm: nn.Module, x: Tensor) -> Tensor:
    """The formula in float64, of the numbers that the module and `x` hold."""
    held = {name: tensor.double() for name, tensor in norm.named_parameters()}
    gain, shift, x = held["weight"], held.get("bias", 0.0), x.double()
    if isinstance(norm, bl.parts.DynamicTanh):
        return torch.tanh(held["alpha"] * x) * gain + shift
    if isinstance(norm, bl.parts.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
    x = x * (x.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    return x * (gain + 1 if norm.unit_offset else gain) + shift


NORMS = [
    *(
        record(bias=bias, unit_offset=offset)
        for record in (bl.parts.LayerNorm.Config, bl.parts.RMSNorm.Config)
        for bias in (True, False)
        for offset in (True, False)
    ),
    bl.parts.DynamicTanh.Config(bias=True),
    bl.parts.DynamicTanh.Config(bias=False),
]

OURS = [norm for norm in NORMS if norm.kind != "layer" or norm.unit_offset]
"""All but what is PyTorch's own, which takes no parameters narrower than its input."""


@pytest.mark.parametrize("config", NORMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("plainly", [False, True])
def test_half_precision_is_wrong_by_its_own_rounding_and_no_more(
    config: bl.parts.NormConfig, dtype: torch.dtype, plainly: bool
) -> None:
    """Deviations from one are smaller than half precision's steps near one; so are shifts."""
    norm, generator = config.build(16), torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
    norm, x = norm.to(dtype), vectors(dtype)
    with in_plain_torch() if plainly else nullcontext():
        y = norm(x)
    assert y.dtype == dtype
    expected = exact(norm, x)
    # Half a step of the result, and what float32 may have moved it across.
    step = torch.finfo(dtype).eps / 2 * expected.abs() + 1e-5
    assert ((y.double() - expected).abs() <= step).all()


@pytest.mark.parametrize(
    "config", [n for n in NORMS if n.kind != "layer" or n.unit_offset], ids=str
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_parameters_serve_a_wide_stream_in_its_own_precision(
    config: bl.parts.NormConfig, dtype: torch.dtype
) -> None:
    norm = config.build(16)
    with torch.no_grad():
        norm.weight += 0.01 * torch.randn(16, generator=torch.Generator().manual_seed(2))
    norm = norm.to(dtype)
    torch.testing.assert_close(
        norm(vectors().float()).double(), exact(norm, vectors().float()), rtol=1e-5, atol=1e-5
    )
