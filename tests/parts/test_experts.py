"""Experts against a loop over tokens, and the loss that keeps them in balance."""

import pytest
import torch
import torch.nn.functional as F

import blocklab as bl
from blocklab.parts.experts import Experts, balancing_loss, watched_routing, weighted_balancing_loss
from blocklab.training.trainer import Trainer

D = 16


def built(**fields) -> Experts:
    torch.manual_seed(0)
    experts = Experts.Config(**{"d_ff": 12, "n_experts": 4} | fields).build(D).double()
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.normal_(0.0, 0.5)
    return experts


def one_token(experts: Experts, x: torch.Tensor, config: Experts.Config) -> torch.Tensor:
    """The sum over chosen experts, written out for one vector."""
    probabilities = (experts.router.weight @ x).softmax(0)
    chosen = probabilities.argsort(descending=True)[: config.n_active]
    weights = probabilities[chosen]
    if config.is_normalized:
        weights = weights / weights.sum()
    y = torch.zeros(D, dtype=x.dtype)
    for weight, e in zip(weights, chosen, strict=True):
        gate = experts.experts_expand[e, : config.d_ff] @ x
        value = experts.experts_expand[e, config.d_ff :] @ x
        y += weight * (experts.experts_contract[e] @ (F.silu(gate) * value))
    if experts.shared is not None:
        shared = experts.shared(x)
        gate = 1.0 if experts.shared_gate is None else torch.sigmoid(experts.shared_gate(x))
        y += gate * shared
    return y


@pytest.mark.parametrize(
    "fields",
    [
        {"n_active": 1},
        {"n_active": 1, "normalized": True},
        {"n_active": 2},
        {"n_active": 4},
        {"n_active": 2, "normalized": False},
        {"n_active": 2, "shared_d_ff": 8},
        {"n_active": 1, "normalized": False, "shared_d_ff": 8, "shared_gate": True},
    ],
)
def test_each_token_takes_the_experts_its_router_likes_best(fields) -> None:
    experts = built(**fields)
    config = Experts.Config(**{"d_ff": 12, "n_experts": 4} | fields)
    x = torch.randn(3, 5, D, dtype=torch.float64)
    expected = torch.stack([one_token(experts, row, config) for row in x.flatten(0, 1)])
    torch.testing.assert_close(experts(x).flatten(0, 1), expected, rtol=1e-12, atol=1e-12)


def test_the_router_decides_in_float32_under_half_precision() -> None:
    """Two experts whose probabilities are one in bfloat16 are still told apart."""
    experts = built(n_experts=2, n_active=1).bfloat16()
    with torch.no_grad():
        experts.router.weight.zero_()
        experts.router.weight[1, 0] = 2.0**-7
    x = torch.zeros(1, D, dtype=torch.bfloat16)
    x[0, 0] = 1.0
    with watched_routing() as routing:
        experts(x)
    assert routing[0].probabilities.dtype == torch.float32
    assert routing[0].chosen.tolist() == [0.0, 1.0]


def test_the_router_decides_in_float32_where_products_are_taken_in_half_precision() -> None:
    experts = built(n_active=2).float()
    x = torch.randn(50, D)
    with watched_routing() as routing:
        experts(x)
        with torch.autocast("cpu", torch.bfloat16):
            y = experts(x)
    assert y.dtype == torch.float32
    assert torch.equal(routing[0].probabilities, routing[1].probabilities)


def test_an_idle_expert_has_a_gradient_of_zero_and_not_none() -> None:
    experts = built(n_active=1)
    with torch.no_grad():
        experts.router.weight.zero_()[0] = 1.0
    experts(torch.rand(4, D, dtype=torch.float64)).sum().backward()
    gradients = experts.experts_expand.grad.flatten(1).norm(dim=1)
    assert gradients[0] > 0
    assert gradients[1:].tolist() == [0.0, 0.0, 0.0]


def test_only_active_experts_count_as_work() -> None:
    base = {"d_ff": 12, "n_experts": 4}
    two = Experts.Config(n_active=2, **base)
    assert two.matrix_parameters(D) == 2 * 3 * 12 * D + 4 * D
    assert sum(s.size for s in two.parameters(D).values()) == 4 * 3 * 12 * D + 4 * D


def test_by_default_the_active_experts_weigh_as_much_as_one_gated_part() -> None:
    d_model = 768
    gated = bl.parts.Gated.Config().matrix_parameters(d_model)
    experts = Experts.Config().matrix_parameters(d_model) - 8 * d_model
    assert experts == pytest.approx(gated, rel=0.01)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"n_active": 5}, "n_active"),
        ({"shared_gate": True}, "shared_gate"),
        ({"n_active": 16, "n_experts": 16, "d_ff": None}, "d_ff"),
    ],
)
def test_what_cannot_be_built_is_refused_by_its_field(fields, named) -> None:
    config = {"kind": "experts", "n_experts": 4, "d_ff": 8} | fields
    with pytest.raises(bl.BlocklabError, match=rf"block\.feed_forward\.{named}"):
        bl.presets.modern(d_model=32, n_heads=2).with_changes({"block.feed_forward": config})


def test_evenly_used_experts_have_a_balancing_loss_of_n_active() -> None:
    experts = built(n_active=2)
    with torch.no_grad():
        experts.router.weight.zero_()
    with watched_routing() as routing:
        experts(torch.randn(64, D, dtype=torch.float64))
    assert balancing_loss(routing).item() == pytest.approx(2.0)


def test_the_balancing_loss_of_several_layers_is_that_of_all_their_tokens_together() -> None:
    """As transformers computes it: the means are taken over the layers' tokens in one."""
    layers = [built(n_active=2), built(n_active=2)]
    with torch.no_grad():
        layers[1].router.weight.normal_(0.0, 2.0)
    x = torch.randn(9, D, dtype=torch.float64)
    with watched_routing() as routing:
        for layer in layers:
            layer(x)
    probabilities = torch.cat([layer.router(x).softmax(-1) for layer in layers])
    chosen = F.one_hot(probabilities.topk(2).indices, 4).double().mean(0)  # (2, E)
    expected = 4 * (chosen * probabilities.mean(0)).sum()
    torch.testing.assert_close(balancing_loss(routing), expected, rtol=1e-12, atol=0)


def test_only_layers_with_a_weight_are_balanced_and_nothing_is_watched_outside() -> None:
    weighing, idle = built(balance=0.5), built(balance=0.0)
    x = torch.randn(3, D, dtype=torch.float64)
    with watched_routing() as routing:
        idle(x)
        assert weighted_balancing_loss(routing) is None
        weighing(x)
    weighing(x)
    assert len(routing) == 2
    assert weighted_balancing_loss(routing) == 0.5 * balancing_loss(routing[1:])


@pytest.mark.parametrize(
    ("n_active", "normalized", "resolved"),
    [(1, None, False), (2, None, True), (1, True, True), (2, False, False)],
)
def test_weights_are_normalized_by_default_where_there_are_several(
    n_active, normalized, resolved
) -> None:
    config = Experts.Config(n_active=n_active, normalized=normalized)
    assert config.is_normalized is resolved
    assert config.plain()["normalized"] is normalized


def test_by_default_the_loss_reaches_the_router_of_a_single_expert() -> None:
    """It weighs by the router's own probability (Switch); a stated 1 would hide it."""
    x = torch.randn(6, D, dtype=torch.float64)
    for fields, learns in (({}, True), ({"normalized": True}, False)):
        experts = built(n_active=1, **fields)
        experts(x).square().sum().backward()
        largest = float(experts.router.weight.grad.abs().max())
        assert largest > 1e-3 if learns else largest < 1e-12, fields


def _trained(balance: float) -> tuple[list[float], torch.Tensor]:
    config = bl.presets.modern(
        d_model=32, n_layers=2, n_heads=2, vocab_size=16, context_length=16
    ).with_changes(
        {
            "block.feed_forward": {
                "kind": "experts",
                "n_experts": 4,
                "n_active": 1,
                "d_ff": 8,
                "normalized": True,
                "balance": balance,
            }
        }
    )
    tokens = torch.randint(16, (4000,), generator=torch.Generator().manual_seed(0))
    trainer = Trainer(config, corpus=tokens, batch_size=4, learning_rate=1e-2)
    routers = [b.feed_forward.router.weight.detach().clone() for b in trainer.model.blocks]
    losses = [trainer.step() for _ in range(3)]
    after = [b.feed_forward.router.weight.detach() for b in trainer.model.blocks]
    moved = sum((a - b).norm() for a, b in zip(after, routers, strict=True))
    return losses, moved


def test_training_adds_the_balancing_loss_to_the_gradient_and_not_to_the_loss_it_reports() -> None:
    """With one expert that is stated to weigh 1 nothing but the balance reaches the router."""
    plain, unmoved = _trained(0.0)
    balanced, moved = _trained(1.0)
    assert plain[0] == balanced[0]
    # Decay alone moves a matrix by its share; a gradient moves it by the learning rate each step.
    assert moved > 20 * unmoved
