"""Position similarity against a double loop over pairs."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from tests.model.strategies import configs, for_every_config, random_tokens, randomized


@for_every_config
@given(configs())
def test_similarity_is_the_mean_cosine_over_pairs_of_different_positions(
    config: ModelConfig,
) -> None:
    model, tokens = randomized(config), random_tokens(length=5)
    streams: list[torch.Tensor] = []
    hooks = [b.register_forward_hook(lambda *a: streams.append(a[2])) for b in model.blocks]
    model(tokens)
    for hook in hooks:
        hook.remove()
    similarities = bl.inspect.position_similarity(model, tokens)
    assert len(similarities) == config.n_layers
    for similarity, stream in zip(similarities, streams, strict=True):
        assert similarity.shape == (2,)
        for row, vectors in zip(similarity.tolist(), stream, strict=True):
            pairs = [
                F.cosine_similarity(a, b, dim=0, eps=0).item()
                for a, b in itertools.combinations(vectors, 2)
            ]
            assert row == pytest.approx(sum(pairs) / len(pairs), abs=1e-9)


def test_nothing_is_left_behind() -> None:
    config = bl.presets.gpt2(d_model=16, n_heads=2, n_layers=3, vocab_size=13, dropout=0.3)
    model = bl.Transformer(config, seed=0).train()
    state = torch.get_rng_state()
    first = bl.inspect.position_similarity(model, random_tokens())
    second = bl.inspect.position_similarity(model, random_tokens())
    assert torch.equal(torch.stack(first), torch.stack(second))
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert not first[0].requires_grad
    assert not any(block._forward_hooks for block in model.blocks)


def test_hooks_and_mode_go_back_after_an_error() -> None:
    model = bl.Transformer(bl.presets.gpt2(d_model=16, n_heads=2, n_layers=3, vocab_size=13))
    with pytest.raises(BlocklabError, match="tokens hold 99"):
        bl.inspect.position_similarity(model, torch.full((1, 3), 99))
    assert model.training
    assert not any(block._forward_hooks for block in model.blocks)


def test_one_position_has_no_pair() -> None:
    model = bl.Transformer(bl.presets.gpt2(d_model=16, n_heads=2, n_layers=1, vocab_size=13))
    with pytest.raises(BlocklabError, match="at least two positions"):
        bl.inspect.position_similarity(model, torch.zeros(1, 1, dtype=torch.long))
