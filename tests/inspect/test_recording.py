"""Hooks by the config tree's addresses: what they see, and that looking changes nothing."""

import pytest
import torch
from hypothesis import given

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from tests.model.strategies import configs, for_every_config, random_tokens, randomized


@pytest.fixture
def model() -> bl.Transformer:
    config = bl.presets.gpt2(
        d_model=16, n_heads=2, n_layers=3, vocab_size=13, context_length=10, dropout=0.3
    )
    return bl.Transformer(config, seed=0).train()


def hooks(model: bl.Transformer) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_an_address_of_a_block_records_that_part_in_every_block(model: bl.Transformer) -> None:
    seen = bl.inspect.record(model, random_tokens(), "block.feed_forward", "final_norm")
    assert list(seen) == [f"blocks.{i}.feed_forward" for i in range(3)] + ["final_norm"]
    for i in range(3):
        recorded = seen[f"blocks.{i}.feed_forward"]
        expected = model.blocks[i].feed_forward(recorded.inputs[0])
        assert torch.equal(recorded.output, expected)


def test_the_stream_is_the_sum_of_what_the_branches_add(model: bl.Transformer) -> None:
    tokens = random_tokens()
    seen = bl.inspect.record(model, tokens, "block.attention", "block.feed_forward")
    first, *rest = bl.inspect.streams(model, tokens)
    added = torch.stack([recorded.output for recorded in seen.values()]).unflatten(0, (2, 3))
    for block, stream in enumerate(rest):
        expected = first + added[:, : block + 1].sum((0, 1))
        assert torch.allclose(stream, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("address", "words"),
    [("block.atention", "blocks.0.atention.*attention"), ("positions", "does not run through")],
)
def test_an_address_that_cannot_be_watched_is_named(
    model: bl.Transformer, address: str, words: str
) -> None:
    with pytest.raises(BlocklabError, match=words):
        bl.inspect.record(model, random_tokens(), address)
    assert hooks(model) == 0


@for_every_config
@given(configs())
def test_an_inspection_changes_not_one_bit(config: ModelConfig) -> None:
    model, tokens, targets = randomized(config), random_tokens(), random_tokens(seed=1)
    before = model(tokens)
    weights = [p.detach().clone() for p in model.parameters()]
    state = torch.get_rng_state()
    model.train()
    found = bl.inspect.inspect_model(model, tokens, targets)
    assert model.training
    assert hooks(model) == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        assert torch.equal(parameter, weight)
    assert torch.equal(model.eval()(tokens), before)
    assert len(found.lens) == config.n_layers + 1
    assert len(found.heads) == len(found.hidden) == len(found.similarity) == config.n_layers
