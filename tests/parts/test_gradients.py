"""Gradients that are written by hand are those that autograd finds, in float64."""

import pytest
import torch
import torch.nn.functional as F

import blocklab as bl
from blocklab.parts.positions import Rotary, _turned


def drawn(*shape, seed=0):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).requires_grad_()


@pytest.mark.parametrize("unit_offset", [False, True])
@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 16), (2, 3, 4, 8)])
def test_the_norms_gradients(shape, unit_offset):
    norm = bl.parts.RMSNorm.Config(eps=1e-2, unit_offset=unit_offset).build(shape[-1]).double()
    with torch.no_grad():
        norm.weight += drawn(shape[-1], seed=1)
    x, outward = drawn(*shape), drawn(*shape, seed=2).detach()
    mine = torch.autograd.grad((norm(x) * outward).sum(), (x, norm.weight))
    expected = F.rms_norm(x, shape[-1:], norm.gain(x.dtype), 1e-2)
    theirs = torch.autograd.grad((expected * outward).sum(), (x, norm.weight))
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(norm(x), expected, rtol=1e-13, atol=1e-13)


def test_a_norm_whose_gain_is_frozen_has_a_gradient_for_its_input_alone():
    norm = bl.parts.RMSNorm.Config().build(4).double().requires_grad_(False)
    x = drawn(3, 4)
    norm(x).sum().backward()
    assert x.grad is not None and norm.weight.grad is None


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("scaling", [{"kind": "none"}, {"kind": "yarn", "factor": 4.0}])
def test_the_rotations_gradients(interleaved, fraction, scaling):
    config = Rotary.Config.parse(
        {"fraction": fraction, "interleaved": interleaved, "scaling": scaling}
    )
    part = config.build(32, 64)
    tables = part.tables(torch.arange(9), 16, torch.float64)
    x, outward = drawn(2, 9, 3, 16), drawn(2, 9, 3, 16, seed=2).detach()
    (mine,) = torch.autograd.grad((part.rotate(x, tables) * outward).sum(), x)
    cos, sin = (table.unsqueeze(-2) for table in tables)
    plain = _turned(x, cos, sin, interleaved)
    (theirs,) = torch.autograd.grad((plain * outward).sum(), x)
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    assert torch.equal(part.rotate(x, tables), plain)
