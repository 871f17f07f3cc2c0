"""Maps and head measures against attention written out, and against attention of the user's own."""

import math

import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

import blocklab as bl
from blocklab.model.config import ModelConfig
from tests.model.strategies import configs, for_every_config, random_tokens, randomized


@for_every_config
@given(configs())
def test_maps_times_values_are_what_the_output_projection_reads(config: ModelConfig) -> None:
    """The strongest check there is: weights that are not the ones used cannot rebuild the mix."""
    model, tokens = randomized(config), random_tokens()
    maps = bl.inspect.attention_maps(model, tokens)
    paths = [f"blocks.{i}.attention" for i in range(config.n_layers)]
    seen = bl.inspect.record(model, tokens, *(f"{p}.{n}" for p in paths for n in ("qkv", "output")))
    for block, path, weights in zip(model.blocks, paths, maps, strict=True):
        attention = block.attention
        assert weights is not None
        heads = seen[f"{path}.qkv"].output.unflatten(-1, (-1, attention.head_dim))
        values = heads[:, :, attention.n_heads + attention.n_kv_heads :].transpose(1, 2)
        values = values.repeat_interleave(attention.n_heads // attention.n_kv_heads, 1)
        mixed = (weights @ values).transpose(1, 2).flatten(2)
        assert torch.allclose(mixed, seen[f"{path}.output"].inputs[0], atol=1e-9)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_a_single_token_has_a_map_of_every_head_that_shares_keys(softcap: float | None) -> None:
    config = bl.presets.gpt2(d_model=16, n_heads=4, n_kv_heads=2, n_layers=1, vocab_size=13)
    model = randomized(config.with_changes({"block.attention.softcap": softcap}))
    (weights,) = bl.inspect.attention_maps(model, random_tokens(2, 1))
    assert weights is not None
    assert torch.equal(weights, torch.ones(2, 4, 1, 1, dtype=torch.float64))
    (heads,) = bl.inspect.head_measures(model, random_tokens(2, 1))
    assert heads is not None
    assert len(heads.largest_logit) == 4


def test_uniform_scores_have_the_entropy_of_all_visible_keys() -> None:
    config = bl.presets.gpt2(d_model=16, n_heads=2, n_layers=1, vocab_size=13, context_length=10)
    model = bl.Transformer(config, seed=0)
    with torch.no_grad():
        model.blocks[0].attention.qkv.weight.zero_()
    heads = bl.inspect.head_measures(model, random_tokens())[0]
    assert heads is not None
    expected = sum(math.log(n) for n in range(1, 11)) / 10
    assert heads.uniform_entropy == pytest.approx(expected)
    assert heads.entropy == pytest.approx((expected, expected))
    assert heads.largest_logit == (0.0, 0.0)
    # After the first query: 1/2, 1/3, ... of the weight for any one visible key.
    share = sum(1 / n for n in range(2, 11)) / 9
    assert heads.first_key == pytest.approx((share, share))
    assert heads.previous_key == pytest.approx((share, share))


def test_the_largest_logit_is_over_visible_keys_only() -> None:
    config = bl.presets.gpt2(d_model=16, n_heads=2, n_layers=1, vocab_size=13, context_length=10)
    model, tokens = randomized(config), random_tokens()
    block = model.blocks[0]
    stream = bl.inspect.record(model, tokens, "blocks.0.attention.qkv")["blocks.0.attention.qkv"]
    q, k, _ = stream.output.unflatten(-1, (3, 2, 8)).unbind(2)  # each (B, T, heads, 8)
    expected = [
        max(
            float(q[b, t, head] @ k[b, s, head]) * block.attention.scale
            for b in range(2)
            for t in range(10)
            for s in range(t + 1)
        )
        for head in range(2)
    ]
    measures = bl.inspect.head_measures(model, tokens)[0]
    assert measures is not None
    assert measures.largest_logit == pytest.approx(expected)


@bl.part("attention", "softmax-by-hand")
class SoftmaxByHand(nn.Module):
    """Attention of a user's own that knows nothing of ours."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.q, self.k, self.o = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x: Tensor, context: object) -> Tensor:
        scores = (self.q(x) @ self.k(x).transpose(1, 2))[:, None]
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        weights = torch.softmax(scores.masked_fill(~seen, -math.inf), -1)[:, 0]
        return self.o(weights @ x)


@bl.part("attention", "no-softmax")
class NoSoftmax(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.o = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, context: object) -> Tensor:
        return self.o(x.cumsum(1))


@pytest.mark.parametrize(("kind", "heads"), [("softmax-by-hand", 1), ("no-softmax", None)])
def test_attention_of_the_users_own_is_read_by_its_softmax(kind: str, heads: int | None) -> None:
    config = bl.presets.gpt2(d_model=16, n_heads=2, n_layers=1, vocab_size=13)
    model = bl.Transformer(config.with_changes({"block.attention": {"kind": kind}}), seed=0)
    (weights,) = bl.inspect.attention_maps(model, random_tokens())
    if heads is None:
        assert weights is None
    else:
        assert weights is not None
        assert weights.shape == (2, heads, 10, 10)
        assert torch.allclose(weights.sum(-1), torch.ones(2, heads, 10))


def test_grouped_heads_share_their_keys_in_order() -> None:
    """Heads 0 and 1 look through the first key head, 2 and 3 through the second."""
    config = bl.presets.gpt2(
        d_model=16, n_heads=4, n_kv_heads=2, n_layers=1, vocab_size=13, context_length=10
    )
    model, tokens = randomized(config), random_tokens()
    path = "blocks.0.attention.qkv"
    heads = bl.inspect.record(model, tokens, path)[path].output.unflatten(-1, (8, 4))
    (weights,) = bl.inspect.attention_maps(model, tokens)
    assert weights is not None
    hidden = torch.ones(10, 10, dtype=torch.bool).triu(1)
    for head in range(4):
        scores = heads[:, :, head] @ heads[:, :, 4 + head // 2].transpose(1, 2) / 2
        expected = scores.masked_fill(hidden, -math.inf).softmax(-1)
        assert torch.allclose(weights[:, head], expected, atol=1e-12)
