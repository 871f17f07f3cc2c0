"""Activations and feed-forward parts against published figures and formulas."""

import pytest
import torch
import torch.nn.functional as F

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.parts.activation import ACTIVATIONS

X = torch.tensor([-3, -2, -1, -0.5, -0.1, 0, 0.5, 1, 2, 3])
PUBLISHED_GELU = [-0.0036, -0.0454, -0.1588, -0.1543, -0.046, 0, 0.3457, 0.8412, 1.9546, 2.9964]
PUBLISHED_RELU = [0, 0, 0, 0, 0, 0, 0.5, 1, 2, 3]


def test_gelu_tanh_gives_the_published_table() -> None:
    assert [round(v, 4) for v in ACTIVATIONS["gelu_tanh"](X).tolist()] == PUBLISHED_GELU
    assert [round(v, 4) for v in ACTIVATIONS["relu"](X).tolist()] == PUBLISHED_RELU


def test_gelu_tanh_has_its_published_minimum() -> None:
    x = torch.linspace(-3, 3, 60_001, dtype=torch.float64)
    y = ACTIVATIONS["gelu_tanh"](x)
    assert round(y.min().item(), 2) == -0.17
    assert abs(x[y.argmin()].item() + 0.75) < 0.005


def test_gelu_is_the_exact_one_by_the_error_function() -> None:
    exact = X * 0.5 * (1 + torch.erf(X / 2**0.5))
    torch.testing.assert_close(ACTIVATIONS["gelu"](X), exact)
    assert not torch.allclose(ACTIVATIONS["gelu_tanh"](X), exact, atol=1e-5)


def test_relu2_silu_and_identity_are_their_formulas() -> None:
    torch.testing.assert_close(ACTIVATIONS["relu2"](X), X.clamp(min=0) ** 2)
    torch.testing.assert_close(ACTIVATIONS["silu"](X), X / (1 + (-X).exp()))
    assert torch.equal(ACTIVATIONS["identity"](X), X)


def test_an_activation_of_ones_own_works_by_name_and_a_taken_name_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, function in {**ACTIVATIONS}.items():
        monkeypatch.setitem(ACTIVATIONS, name, function)
    monkeypatch.setitem(ACTIVATIONS, "cube", lambda x: x**3)
    mlp = bl.parts.MLP.Config(activation="cube", d_ff=5, bias=False).build(4)
    x = torch.randn(3, 4)
    torch.testing.assert_close(mlp(x), (x @ mlp.expand.weight.T) ** 3 @ mlp.contract.weight.T)
    with pytest.raises(BlocklabError, match="'silu' is already taken"):
        bl.parts.register_activation("silu", torch.tanh)


def test_an_unknown_activation_names_the_nearest() -> None:
    with pytest.raises(BlocklabError, match=r"activation: .*did you mean 'silu'"):
        bl.parts.MLP.Config(activation="silo")


@pytest.mark.parametrize("bias", [True, False])
def test_mlp_is_its_formula(bias: bool) -> None:
    mlp = bl.parts.MLP.Config(activation="relu", bias=bias).build(6).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    inner = F.relu(F.linear(x, mlp.expand.weight, mlp.expand.bias))
    assert inner.shape[-1] == 4 * 6
    torch.testing.assert_close(mlp(x), F.linear(inner, mlp.contract.weight, mlp.contract.bias))


@pytest.mark.parametrize(("name", "gate"), [("silu", F.silu), ("gelu", F.gelu), ("relu", F.relu)])
def test_gated_is_activation_of_the_gate_times_the_value(name: str, gate) -> None:  # type: ignore[no-untyped-def]
    part = bl.parts.Gated.Config(activation=name, d_ff=10).build(6).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    gate_matrix, value_matrix = part.expand.weight[:10], part.expand.weight[10:]
    inner = gate(x @ gate_matrix.T) * (x @ value_matrix.T)
    torch.testing.assert_close(part(x), inner @ part.contract.weight.T)


@pytest.mark.parametrize(
    ("d_model", "d_ff"), [(24, 64), (256, 640), (512, 1344), (768, 2048), (4096, 10880)]
)
def test_the_gated_width_follows_the_published_rule(d_model: int, d_ff: int) -> None:
    assert bl.parts.Gated.Config().width(d_model) == d_ff


def test_a_gated_part_too_narrow_for_the_rule_asks_for_d_ff() -> None:
    with pytest.raises(BlocklabError, match="give d_ff"):
        bl.parts.Gated.Config().width(23)
    assert bl.parts.Gated.Config(d_ff=8).width(23) == 8
