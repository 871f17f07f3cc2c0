"""The linear map is nn.Linear whoever multiplies: values, gradients, construction, storage."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from blocklab.parts.linear import Linear, PackedWeights, default_products


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(1, 5), max_size=3),
    st.integers(1, 40),
    st.integers(1, 40),
    st.booleans(),
    st.booleans(),
)
def test_values_and_gradients_are_those_of_float64(leading, d_in, d_out, bias, transposed):
    generator = torch.Generator().manual_seed(d_in * 41 + d_out)
    ours, reference = Linear(d_in, d_out, bias=bias), nn.Linear(d_in, d_out, bias=bias).double()
    reference.load_state_dict({k: v.double() for k, v in ours.state_dict().items()})
    x = torch.randn(*leading, d_in, generator=generator)
    if transposed and x.ndim > 1:
        x = torch.randn(*x.shape[:-2], d_in, x.shape[-2], generator=generator).transpose(-1, -2)
    gradient = torch.randn(*leading, d_out, generator=generator)
    a, b = x.clone().requires_grad_(), x.double().clone().requires_grad_()
    y, z = ours(a), reference(b)
    y.backward(gradient)
    z.backward(gradient.double())
    torch.testing.assert_close(y.double(), z, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(a.grad.double(), b.grad, atol=1e-4, rtol=1e-4)
    for p, q in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad.double(), q.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("grad", [True, False])
def test_no_rows_give_no_rows(grad):
    ours = Linear(7, 4)
    with torch.set_grad_enabled(grad):
        y = ours(torch.randn(0, 3, 7))
    assert y.shape == (0, 3, 4)
    if grad:
        y.sum().backward()
        assert not ours.weight.grad.any()


def test_it_is_constructed_from_the_same_random_numbers_as_nn_linear():
    torch.manual_seed(3)
    ours = Linear(5, 7)
    torch.manual_seed(3)
    theirs = nn.Linear(5, 7)
    assert all(torch.equal(p, theirs.state_dict()[k]) for k, p in ours.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_take_torchs_own_product(dtype):
    x = torch.randn(2, 4, dtype=dtype)
    assert default_products(x) == "torch"
    layer = Linear(4, 3).to(dtype)
    assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))


def test_a_frozen_weight_gets_no_gradient_and_the_input_still_does():
    layer = Linear(4, 3).requires_grad_(False)
    x = torch.randn(2, 4, requires_grad=True)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(2, 4))


def tower(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Linear(48, 80), nn.GELU(), Linear(80, 33, bias=False)).to(dtype)


@pytest.mark.parametrize("shape", [(48,), (1, 1, 48), (1, 48), (3, 5, 48), (2, 40, 48)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "rounding"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str
)
@torch.no_grad()
def test_packed_weights_give_the_same_products(
    shape: tuple[int, ...], dtype: torch.dtype, rounding: float
) -> None:
    model = tower(dtype)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    wide = tower(torch.float64)
    wide.load_state_dict(model.state_dict())
    with PackedWeights(model):
        packed = model(x)
    assert packed.dtype == dtype
    assert packed.shape == (*shape[:-1], 33)
    torch.testing.assert_close(packed.double(), wide(x.double()), atol=rounding, rtol=rounding)


@torch.no_grad()
def test_weights_are_packed_inside_only_and_for_one_model_only() -> None:
    model, other = tower(torch.float32), tower(torch.float32)
    packed = PackedWeights(model)
    x = torch.randn(1, 48)
    before = model(x)
    for linear in (model[0], model[2], other[0], other[2]):
        linear.weight.zero_()
    with packed:
        torch.testing.assert_close(model(x)[0] - before[0], torch.zeros(33), atol=1e-5, rtol=0)
        assert not other(x).any()
    assert not model(x).any()
    with pytest.raises(ZeroDivisionError), packed:
        _ = 1 / 0
    assert not model(x).any()


@torch.no_grad()
def test_float64_and_other_dtypes_of_the_input_are_left_to_torch() -> None:
    model = tower(torch.float64)
    x = torch.randn(2, 48, dtype=torch.float64)
    with PackedWeights(model):
        assert torch.equal(model(x), F.linear(F.gelu(F.linear(x, model[0].weight, model[0].bias)),
                                              model[2].weight))  # fmt: skip


@torch.no_grad()
def test_without_free_memory_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tower(torch.float32)
    monkeypatch.setattr("blocklab.parts.linear._free_memory", lambda: 100.0)
    packed = PackedWeights(model)
    model[2].weight.zero_()
    with packed:
        assert not model(torch.randn(1, 48)).any()
