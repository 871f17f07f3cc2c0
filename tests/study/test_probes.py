"""Probes find nothing wrong with any model of our parts, and find what is planted in them."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import blocklab as bl
from blocklab.model.transformer import Transformer
from blocklab.parts.attention import AttentionConfig
from blocklab.parts.context import AttentionContext
from blocklab.parts.norm import NormConfig
from blocklab.study import part_probes, probes
from blocklab.study.differences import (
    anatomy,
    differing,
    leaves,
    unexplained_leaves,
    unexplained_places,
)
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


# Differences and what explains them.

CHANGES = {
    "vocab_size": [17],
    "context_length": [8],
    "d_model": [48],
    "n_layers": [4],
    "tie_embeddings": [True, False],
    "dropout": [0.2],
    "embedding.scale": [3.0],
    "positions.kind": ["learned", "sinusoidal", "none", "alibi"],
    "block.placement": ["post", "sandwich", "output", "pre"],
    "block.parallel": ["one_norm", "two_norms"],
    "block.norm.kind": ["layer", "dyt", "none"],
    "block.attention.n_heads": [1],
    "block.attention.window": [3],
    "block.feed_forward": [{"kind": "mlp", "d_ff": 20}],
    "block.residual": [{"kind": "scaled", "learned": True}],
    "blocks.0.norm.kind": ["dyt"],
    "blocks.-1.feed_forward.d_ff": [20],
    "layers": [[{"at": "::2", "block.attention.window": 3}]],
    "final_norm": ["none", {"kind": "layer"}],
    "head.bias": [True],
    "head.softcap": [9.0],
    "initialization.kind": ["depth", "fan_in"],
    "initialization.residual_writers": ["zero"],
}

changes = st.lists(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=3, unique=True).flatmap(
    lambda paths: st.fixed_dictionaries({path: st.sampled_from(CHANGES[path]) for path in paths})
)


def between(before, changed):
    """Every place and every leaf of the record that differs."""
    one, other = (anatomy(Transformer(config, seed=0)) for config in (before, changed))
    places = [
        *differing(one.modules, other.modules),
        *differing(one.shapes, other.shapes),
        *differing(one.values, other.values),
    ]
    return places, differing(leaves(before), leaves(changed))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(configs(), changes)
def test_whatever_a_declared_change_brings_about_is_explained_by_it(config, declared):
    try:
        changed = config.with_changes(declared)
    except bl.BlocklabError:
        assume(False)
    places, records = between(config, changed)
    n_layers = max(config.n_layers, changed.n_layers)
    assert unexplained_places(places, declared, n_layers, standard=True) == []
    assert unexplained_leaves(records, declared) == []


@pytest.mark.parametrize(
    ("path", "value"), [(path, value) for path in CHANGES for value in CHANGES[path]]
)
def test_each_change_explains_all_that_follows_from_it(path, value):
    before = built(
        **{
            "positions.kind": "alibi",
            "layers": [{"at": "-1", "positions.kind": "rotary"}],
            "block.attention.qk_norm": {"kind": "rms"},
        }
    ).config
    if path == "positions.kind" and value in ("learned", "sinusoidal"):
        before = before.with_changes({"layers": []})
    changed = before.with_changes({path: value})
    places, records = between(before, changed)
    assert (places, records) != ([], []) or value in (False, "pre", "alibi", "fan_in")
    n_layers = max(before.n_layers, changed.n_layers)
    assert unexplained_places(places, [path], n_layers, standard=True) == []
    assert unexplained_leaves(records, [path]) == []


@pytest.mark.parametrize(
    ("declared", "made"),
    [
        ("block.norm.kind", {"block.attention.n_heads": 4}),
        ("block.attention.n_heads", {"block.feed_forward.d_ff": 24}),
        ("blocks.0.norm.kind", {"blocks.1.norm.kind": "layer"}),
        ("blocks.0.norm.kind", {"final_norm": {"kind": "layer"}}),
        ("positions.kind", {"tie_embeddings": True}),
        ("head.bias", {"embedding.scale": 2.0}),
        ("dropout", {"block.residual": {"kind": "scaled", "learned": True}}),
        ("block.placement", {"head.bias": True}),
        ("block.placement", {"block.attention.n_heads": 4}),
        ("block.parallel", {"block.feed_forward.d_ff": 24}),
    ],
)
def test_what_another_change_brings_about_is_not_explained(declared, made):
    before = built().config
    places, records = between(before, before.with_changes(made))
    assert unexplained_places(places, [declared], 2, standard=True) != []
    if not declared.startswith("blocks"):
        assert unexplained_leaves(records, [declared]) != []


def test_a_difference_says_where_it_lies():
    study = minimal(
        variants={
            "layer-norm": {"block.norm": {"kind": "layer", "bias": True}},
            "warmer": {"training.schedule.warmup": 0.5},
        },
        match="none",
    )
    norm, warmup = require_differences(plan(study, TEXT))
    assert "blocks.1.norm.attention" in norm.modules
    assert norm.parameters[0] == "blocks.0.norm.attention.bias"
    assert norm.first_values == ()
    assert norm.logits > 0
    assert (warmup.modules, warmup.parameters, warmup.logits) == ((), (), 0.0)
    assert warmup.training == ("schedule.warmup",)


def test_a_path_that_only_says_what_null_means_is_let_through_and_listed():
    study = minimal(variants={"post": {"block.placement": "post", "final_norm": "none"}})
    (difference,) = require_differences(plan(study, TEXT))
    assert difference.idle == ("final_norm",)


def test_two_variants_that_train_the_same_are_refused_by_both_names():
    study = minimal(
        variants={
            "one": {"block.norm.kind": "layer"},
            "other": {"block.norm": {"kind": "layer", "eps": 1e-6, "bias": False}},
        }
    )
    with pytest.raises(bl.BlocklabError, match=r"variants\.other: trains what variants\.one"):
        require_differences(plan(study, TEXT))


def test_a_warmup_too_short_for_its_run_takes_no_effect():
    """A tenth of ten steps is the first one, and that is already at the full rate."""
    study = minimal(variants={"no-warmup": {"training.schedule.warmup": 0}})
    with pytest.raises(bl.BlocklabError, match=r"no-warmup: .*the same steps.* takes no effect"):
        require_differences(plan(study, TEXT))


def test_an_error_inside_a_part_says_while_what_it_happened(monkeypatch):
    def fails(self, x):
        raise RuntimeError("a shape does not fit")

    monkeypatch.setattr(bl.parts.LayerNorm, "forward", fails)
    with pytest.raises(RuntimeError) as caught:
        require_differences(plan(minimal(), TEXT))
    assert "while probing variants.layer-norm" in caught.value.__notes__[0]
