"""What is measured inside a model agrees with an independent computation and changes nothing."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import blocklab as bl
from blocklab.inspect.scores import fused_scores
from blocklab.training.config import TrainingConfig
from blocklab.training.inspection import growth_per_block
from blocklab.training.measures import (
    gradient_norm_by_block,
    measure_stream,
    update_ratios,
    weights_by_block,
)
from blocklab.training.trainer import Trainer

VOCABULARY = 32


def model(**changes):
    config = bl.presets.modern(
        d_model=32, n_layers=3, n_heads=4, vocab_size=VOCABULARY, context_length=12
    )
    return bl.Transformer(config.with_changes(changes), seed=1)


def tokens(batch=3, length=12):
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0))


def streams(made, batch):
    """The stream as it enters and after each block, by calling the blocks one at a time."""
    kept = []
    hooks = [
        b.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0])) for b in made.blocks
    ]
    hooks.append(made.blocks[-1].register_forward_hook(lambda *call: kept.append(call[2])))
    with torch.no_grad():
        made.eval()(batch)
    for hook in hooks:
        hook.remove()
    return kept


def test_rms_is_that_of_every_value_of_the_stream():
    made, batch = model(), tokens()
    measured = measure_stream(made, batch)
    expected = [math.sqrt(float((x**2).mean())) for x in streams(made, batch)]
    assert measured.rms == pytest.approx(expected)
    assert len(measured.rms) == 4
    assert growth_per_block(measured.rms) == pytest.approx((expected[3] / expected[0]) ** (1 / 3))
    after_norms = measure_stream(model(**{"block.placement": "post"}), batch)
    assert growth_per_block(after_norms.rms) == pytest.approx(1.0, abs=0.05)


def test_similarity_is_the_mean_cosine_over_pairs_of_different_positions():
    made, batch = model(), tokens()
    expected = []
    for stream in streams(made, batch)[1:]:
        cosines = F.cosine_similarity(stream[:, :, None], stream[:, None], dim=-1)  # (B, T, T)
        different = ~torch.eye(stream.shape[1], dtype=torch.bool)
        expected.append(float(cosines[:, different].mean()))
    assert measure_stream(made, batch).position_similarity == pytest.approx(expected, abs=1e-5)
    assert measure_stream(made, batch[:, :1]).position_similarity == (None, None, None)


def largest(*arguments, **given):
    return float(fused_scores(*arguments, **given).largest())


def scores_by_hand(made, batch, block, window=None):
    """Queries times keys of one block, softcapped and masked, in float64."""
    kept = []
    attention = made.blocks[block].attention
    hook = attention.register_forward_pre_hook(lambda _, inputs: kept.append(inputs))
    with torch.no_grad():
        made.eval()(batch)
        hook.remove()
        x, context = kept[0]
        queries, keys, _ = attention._project(x, context)
        keys = keys.repeat_interleave(attention.n_heads // attention.n_kv_heads, 1)
        scores = queries.double() @ keys.double().transpose(-1, -2) * attention.scale
    if attention.softcap is not None:
        scores = attention.softcap * torch.tanh(scores / attention.softcap)
    places = torch.arange(batch.shape[1])
    distance = places[:, None] - places
    bias = made.positions.score_bias(distance, attention.n_heads)
    scores = scores if bias is None else scores + bias
    visible = (distance >= 0) & (distance < (window or math.inf))
    return scores.masked_fill(~visible, -math.inf)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"block.attention.n_kv_heads": 2},
        {"block.attention.window": 2},
        {"block.attention.softcap": 0.4},
        {"block.attention.scale": 3.0},
        {"positions.kind": "alibi"},
        {"block.attention.qk_norm": {"kind": "rms"}},
    ],
)
def test_the_largest_attention_logit_is_that_of_the_scores_a_query_may_see(changes):
    made, batch = model(**changes), tokens()
    measured = measure_stream(made, batch).largest_attention_logit
    window = changes.get("block.attention.window")
    for block in range(3):
        by_hand = scores_by_hand(made, batch, block, window)
        assert measured[block] == pytest.approx(float(by_hand.max()), rel=1e-4)


def test_keys_that_a_query_may_not_see_count_for_nothing():
    query, value = -torch.ones(1, 1, 3, 4), torch.zeros(1, 1, 3, 4)
    key = torch.tensor([2.0, 3.0, 1.0])[:, None].expand(1, 1, 3, 4)
    # Every score is -2 times the key's size: -4, -6 and -2, the last seen by the last query alone.
    assert largest(query, key, value, is_causal=True) == pytest.approx(-2)
    assert largest(query[:, :, :2], key, value, is_causal=True) == pytest.approx(-4)
    seen = torch.tensor([[False, True, False]])
    assert largest(query, key, value, seen) == pytest.approx(-6)
    assert largest(query, key, value, torch.tensor([0.0, 0.0, -9.0])) == pytest.approx(-4)


def test_dropout_is_left_out_of_what_is_measured():
    batch = tokens()
    with_dropout, without = model(dropout=0.5).train(), model()
    assert measure_stream(with_dropout, batch) == measure_stream(without, batch)


def test_attention_without_a_softmax_has_no_logit():
    class Mean(nn.Module):
        def forward(self, x, context):
            return x.cumsum(1)

    made = model()
    made.blocks[1].attention = Mean()
    measured = measure_stream(made, tokens()).largest_attention_logit
    assert [logit is None for logit in measured] == [False, True, False]


def test_gradient_norms_by_block_add_up_to_the_whole():
    made, batch = model(tie_embeddings=True), tokens()
    F.cross_entropy(made(batch).flatten(0, 1), batch.roll(-1, 1).flatten()).backward()
    norms = gradient_norm_by_block(made)
    assert list(norms) == ["embedding", "blocks.0", "blocks.1", "blocks.2", "final_norm"]
    parts = [p.grad for n, p in made.named_parameters() if n.startswith("blocks.1.")]
    assert norms["blocks.1"] == pytest.approx(math.sqrt(sum(float((g**2).sum()) for g in parts)))
    whole = torch.nn.utils.get_total_norm([p.grad for p in made.parameters()])
    assert math.hypot(*norms.values()) == pytest.approx(float(whole), rel=1e-5)


def test_an_update_is_weighed_against_the_weights_before_it():
    made = model(**{"head.bias": True})
    before = {name: p.detach().clone() for name, p in made.named_parameters()}
    held = weights_by_block(made)
    with torch.no_grad():
        for p in made.blocks[0].parameters():
            p.mul_(1.25)
        made.embedding.weight += 1.0
    ratios = update_ratios(made, held)
    assert ratios["blocks.0"] == pytest.approx(0.25)
    assert ratios["blocks.1"] == 0.0
    ones = torch.ones_like(before["embedding.weight"])
    expected = float(ones.norm() / before["embedding.weight"].norm())
    assert ratios["embedding"] == pytest.approx(expected)


def test_weights_that_were_all_zero_have_no_ratio():
    layer = nn.Sequential(nn.Linear(2, 2))
    nn.init.zeros_(layer[0].weight)
    nn.init.zeros_(layer[0].bias)
    held = weights_by_block(layer)
    with torch.no_grad():
        layer[0].weight += 1
    assert update_ratios(layer, held) == {}


def trained(inspect_every):
    """Steps of a run with dropout and clipping, and its weights."""
    trainer = Trainer(
        model(dropout=0.2).config,
        corpus=torch.randint(VOCABULARY, (2000,), generator=torch.Generator().manual_seed(5)),
        training=TrainingConfig(inspect_every=inspect_every, steps=5, clip=0.5),
        batch_size=4,
        learning_rate=1e-2,
        seed=3,
    )
    steps = trainer.run().metrics
    return steps, torch.cat([p.detach().flatten() for p in trainer.model.parameters()]), trainer


def test_looking_into_a_run_changes_no_bit_of_it():
    plain, weights, unwatched = trained(None)
    watched, same, watching = trained(1)
    assert [step.train_loss for step in watched] == [step.train_loss for step in plain]
    assert torch.equal(same, weights)
    assert unwatched.inspect_seconds == 0 < watching.inspect_seconds < watching.train_seconds


def test_a_run_looks_at_its_first_step_and_then_at_every_nth():
    steps, _, _ = trained(2)
    assert [step.step for step in steps if step.inspection is not None] == [1, 3, 5]
    found = steps[2].inspection
    assert math.hypot(*found.gradient_norm.values()) == pytest.approx(steps[2].gradient_norm)
    assert all(ratio > 0 for ratio in found.update_ratio.values())
    assert len(found.stream_rms) == 4
    assert len(found.largest_attention_logit) == len(found.position_similarity) == 3


def test_measuring_leaves_mode_outputs_hooks_and_random_numbers_alone():
    made, batch = model(dropout=0.5).train(), tokens()
    torch.manual_seed(7)
    expected = made(batch)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    measure_stream(made, batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert made.training
    assert torch.equal(made(batch), expected)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in made.modules())
    assert all(p.grad is None for p in made.parameters())
