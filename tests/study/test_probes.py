"""Probes find nothing wrong with any model of our parts, and find what is planted in them."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

import blocklab as bl
from blocklab.model.transformer import Transformer
from blocklab.parts.attention import AttentionConfig
from blocklab.parts.context import AttentionContext
from blocklab.parts.norm import NormConfig
from blocklab.study import part_probes, probes
from blocklab.study.liveness import require_differences
from blocklab.study.plan import plan
from blocklab.training.optimizer import AdamW
from tests.model.strategies import configs
from tests.study.test_study import TEXT, minimal


def built(**changes):
    config = bl.presets.modern(
        d_model=32, n_layers=2, n_heads=2, vocab_size=64, context_length=24
    ).with_changes(changes)
    return Transformer(config, seed=0)


def shaken(**changes):
    model = built(**changes)
    probes.shake(model)
    return model


def findings(model):
    """Everything that is found, the loss at step 0 and the norms left out."""
    traced = probes.training_pass(model)
    return [
        *probes.never_called(model, traced),
        *probes.without_gradient(model, traced),
        *probes.ill_grouped(model, AdamW()),
        *probes.draws_wrongly(model),
        *part_probes.wrong_keys(model),
        *probes.sees_the_future(model),
        *part_probes.wrong_places(model),
        *part_probes.wrong_identity_path(model),
    ]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(configs())
def test_nothing_is_found_in_any_model_of_our_parts(config):
    model = Transformer(config, seed=0)
    assert list(part_probes.norm_statistics(model)) == []
    probes.shake(model)
    assert findings(model) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"positions.kind": kind, "block.attention.window": window}
        for kind in ("none", "learned", "sinusoidal", "rotary", "alibi")
        for window in (None, 1, 2, 3, 23)
    ]
    + [
        {"initialization.residual_writers": "zero"},
        {"block.residual": {"kind": "scaled", "scale": 0.0, "learned": True}},
        {"block.residual.kind": "none"},
        {"block.norm.kind": "none"},
        {"positions.kind": "none", "layers": [{"at": "1", "positions.kind": "rotary"}]},
        {"layers": [{"at": "0", "block.attention.window": 2, "block.residual.kind": "none"}]},
        {"context_length": 1},
        {"context_length": 2, "dropout": 0.1},
        {"n_layers": 6, "block.norm.kind": "none"},
        {"n_layers": 40, "block.norm.kind": "none"},  # its stream overflows
        {"n_layers": 8, "positions.kind": "learned", "block.residual.kind": "none"},
        {
            "n_layers": 8,
            "block.residual.kind": "none",
            "block.norm.kind": "dyt",
            "initialization.kind": "normal",
            "head.bias": True,  # which drowns what comes through
            "dropout": 0.3,
        },
    ],
)
def test_nothing_is_found_where_a_probe_could_mistake_what_it_sees(changes):
    assert findings(shaken(**changes)) == []


# The fingerprint that two models share when they compute the same.


def test_shaking_moves_every_weight_and_the_same_way_each_time():
    first, second, plain = shaken(), shaken(), built()
    for (name, p), q, unmoved in zip(
        first.named_parameters(), second.parameters(), plain.parameters(), strict=True
    ):
        assert torch.equal(p, q), name
        assert not torch.equal(p, unmoved), name


def test_a_training_pass_gives_the_gradients_of_the_next_token_loss():
    model = shaken(dropout=0.0)
    traced = probes.training_pass(model)
    tokens = probes.probe_tokens(model)
    assert tokens.shape == (2, 24)
    logits = model.eval()(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())
    expected = torch.autograd.grad(loss, list(model.parameters()))
    for (name, gradient), by_hand in zip(traced.gradients.items(), expected, strict=True):
        torch.testing.assert_close(gradient, by_hand, msg=name)
    assert "blocks.1.norm.feed_forward" in traced.called


def test_a_parameter_is_seen_to_move_its_block_where_gradients_vanish_and_tables_are_frozen():
    model = shaken()
    model.embedding.weight.requires_grad_(False)
    names = ["blocks.1.attention.qkv.weight", "final_norm.weight"]
    assert probes._moving_their_block(model, names) == set(names)


# Step 0.


def test_the_loss_at_step_0_is_that_of_the_theory():
    """ln V + half the variance of the logits, here 32 * 0.1^2."""
    model = built(**{"initialization.head_std": 0.1, "vocab_size": 4096})
    loss = probes.start_loss(probes.evaluated(model), probes.probe_tokens(model))
    assert loss == pytest.approx(math.log(4096) + 0.32 / 2, abs=0.1)


def test_a_loss_at_step_0_within_one_nat_of_chance_is_let_through():
    for std, finds in ((0.2, 0), (0.3, 1)):  # half the variance: 0.64 and 1.44
        model = built(**{"initialization.head_std": std})
        assert len(list(probes.starts_too_high(model, probes.evaluated(model)))) == finds


def test_a_loss_at_step_0_that_is_no_number_is_refused():
    model = built()
    logits = torch.full((2, 24, 64), math.nan)
    assert "is nan nats" in next(probes.starts_too_high(model, logits))


def test_the_refusal_names_the_variant_and_both_numbers():
    study = minimal(variants={"loud": {"initialization.head_std": 2.0}})
    with pytest.raises(bl.BlocklabError, match=r"variants\.loud.* step 0 is \d+\.\d+ .*= 6\.24"):
        require_differences(plan(study, TEXT))


def test_a_baseline_with_a_fault_is_named_as_the_baseline():
    study = minimal().with_settings({"initialization.head_std": 2.0})
    with pytest.raises(bl.BlocklabError, match=r"^baseline: the loss at step 0"):
        require_differences(plan(study, TEXT))


# Dropout.


def test_dropout_that_never_acts_is_found(monkeypatch):
    model = shaken(**{"dropout": 0.3, "block.attention.softcap": 5.0})
    assert list(probes.draws_wrongly(model)) == []
    # Under a softcap all of it goes through here.
    monkeypatch.setattr(AttentionContext, "drop", lambda self, x: x)
    assert list(probes.draws_wrongly(model)) == ["dropout is 0.3 but training equals evaluation"]


# Keys and places.


@pytest.mark.parametrize("window", [1, 2, 5, 23])
def test_exactly_the_keys_of_a_window_are_seen(window):
    model = shaken(**{"block.attention.window": window})
    (attention, _) = part_probes._attentions(model, 24)
    assert part_probes._keys_seen(attention, 23) == set(range(24 - window, 24))
    assert part_probes._keys_seen(attention, 4) == set(range(max(0, 5 - window), 5))


@pytest.mark.parametrize(
    ("kind", "repeats", "order"),
    [
        ("none", False, False),
        ("learned", True, False),
        ("sinusoidal", True, False),
        ("rotary", False, True),
        ("alibi", False, True),
    ],
)
def test_positions_show_in_a_repeated_token_or_in_the_order_of_keys(kind, repeats, order):
    model = shaken(**{"positions.kind": kind})
    (attention, _) = part_probes._attentions(model, 24)
    _, logits = part_probes._of_one_token_repeated(model)
    assert torch.allclose(logits[1:], logits[:1], rtol=1e-3, atol=1e-3) is not repeats
    assert part_probes._notices_order(attention, None) is order


def test_too_few_keys_have_no_order():
    (attention, _) = part_probes._attentions(shaken(), 24)
    assert part_probes._notices_order(attention, 2) is None


@pytest.mark.parametrize("kind", ["add", "none", "scaled"])
@pytest.mark.parametrize("placement", ["pre", "post", "output", "sandwich"])
def test_only_residual_none_cuts_the_identity_path(kind, placement):
    model = shaken(**{"block.residual.kind": kind, "block.placement": placement})
    assert part_probes._identity_path(model) is (kind != "none")


# What is left alone.


def test_parts_are_found_by_their_slot_nested_ones_too():
    model = built(**{"block.attention.qk_norm": {"kind": "rms"}, "n_layers": 1})
    assert list(probes.parts_of(model, NormConfig)) == [
        "blocks.0.norm.attention",
        "blocks.0.norm.feed_forward",
        "blocks.0.attention.query_norm",
        "blocks.0.attention.key_norm",
        "final_norm",
    ]
    assert list(probes.parts_of(model, AttentionConfig)) == ["blocks.0.attention"]


def test_probing_leaves_no_hook_and_no_random_number_behind():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    model = shaken(dropout=0.1)
    list(part_probes.norm_statistics(model))
    findings(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_large_vocabulary_is_probed_by_one_sequence():
    assert len(probes.probe_tokens(built(vocab_size=1024))) == 2
    many = built(vocab_size=probes.MOST_LOGITS // 24 + 1)
    assert probes.probe_tokens(many).shape == (1, 24)
    assert len(probes.probe_tokens(many, 12)) == 2
