"""Norms against PyTorch's own in float64 and against their formulas."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blocklab as bl

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
