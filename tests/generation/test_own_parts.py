"""Text that a user's own parts write with a cache: what they keep there, and what they do not."""

from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blocklab as bl
from blocklab.generation.cache import KeyValueCache
from blocklab.model.block import BlockConfig
from tests.model.strategies import random_tokens, randomized

Causal = bl.parts.CausalAttention

CONFIG = bl.presets.gpt2(d_model=16, n_heads=2, n_layers=2, vocab_size=13, context_length=10)


@bl.part("attention", "two-keys")
class TwoKeys(nn.Module):
    """One map less another, as in the differential transformer."""

    def __init__(self, d_model: int, n_heads: int = 2) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.maps = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(5))

    def forward(self, x: Tensor, context: bl.parts.AttentionContext) -> Tensor:
        parts = (f(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for f in self.maps)
        q, k, other_q, other_k, v = parts
        kept, other = context.extend(k, v), context.extend(other_k, v)
        y = self.mixed(q, *kept, context) - 0.5 * self.mixed(other_q, *other, context)
        return y.transpose(1, 2).flatten(2)

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, context: bl.parts.AttentionContext) -> Tensor:
        mask = context.mask(q, k.shape[2], None)
        causal = mask is None and q.shape[2] > 1
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


@bl.part("block", "two-attentions")
class TwoAttentions(nn.Module):
    """A near and a far attention; the record's first one is called last."""

    class Config(BlockConfig):
        kind: Literal["two-attentions"] = "two-attentions"
        attention: Causal.Config = Causal.Config(n_heads=2, n_kv_heads=1, window=2)
        far: Causal.Config = Causal.Config(n_heads=4, window=5)

    def __init__(self, d_model: int, config: Config) -> None:
        super().__init__()
        self.near, self.far = config.attention.build(d_model), config.far.build(d_model)

    def forward(self, x: Tensor, context: bl.parts.AttentionContext) -> Tensor:
        x = x + self.far(x, context)
        return x + self.near(x, context)


@bl.part("attention", "without-window")
class WithoutWindow(Causal):
    """Sees all, whatever the window in its record."""

    class Config(Causal.Config):
        kind: Literal["without-window"] = "without-window"

    def __init__(self, d_model: int, config: Config) -> None:
        super().__init__(d_model, config)
        self.window = None


@bl.part("feed_forward", "token-shift")
class TokenShift(nn.Module):
    """Looks at the token before, which no cache keeps for it."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.expand, self.contract = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(torch.relu(self.expand(x + F.pad(x, (0, 0, 1, -1)))))


KEEPING = [
    {"block.attention": {"kind": "two-keys"}},
    {"block": {"kind": "two-attentions"}},
    {"block.attention": {"kind": "without-window", "n_heads": 2, "window": 2}},
]


@pytest.mark.parametrize("changes", KEEPING)
@pytest.mark.parametrize("chunks", [[1] * 8, [5, 1, 2], [3, 3, 1, 1]])
def test_every_attention_of_a_layer_keeps_its_own_keys(
    changes: dict[str, object], chunks: list[int]
) -> None:
    model, tokens = randomized(CONFIG.with_changes(changes)), random_tokens(2, 8)
    cache = KeyValueCache.of(model, 2, 8)
    with torch.no_grad():
        read = [model(part, cache=cache) for part in tokens.split(chunks, 1)]
        whole = model(tokens)
    assert cache.complete
    assert torch.allclose(torch.cat(read, 1), whole, atol=1e-9)


@pytest.mark.parametrize("changes", [*KEEPING, {"block.feed_forward": {"kind": "token-shift"}}])
def test_the_text_is_the_one_without_a_cache(changes: dict[str, object]) -> None:
    model = randomized(CONFIG.with_changes(changes), seed=1)
    tokens, mask = random_tokens(2, 4), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    for given in (None, mask):
        texts = [
            bl.generate(
                model, tokens, max_new_tokens=9, use_cache=cached, attention_mask=given,
                temperature=1.0, seed=0,
            )
            for cached in (True, False)
        ]  # fmt: skip
        assert torch.equal(*texts)


def test_a_cache_that_is_found_right_goes_on_and_one_that_is_not_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    features = bl.Transformer.features

    def counted(self: bl.Transformer, tokens: Tensor, *rest: object) -> Tensor:
        read.append(tokens.shape[1])
        return features(self, tokens, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(bl.Transformer, "features", counted)
    for part, expected in (
        ({"block.attention": {"kind": "two-keys"}}, [3, 1, 4, 1, 1]),
        ({"block.feed_forward": {"kind": "token-shift"}}, [3, 1, 4, 5, 6]),
        ({}, [3, 1, 1, 1]),
    ):
        read.clear()
        bl.generate(randomized(CONFIG.with_changes(part)), random_tokens(1, 3), max_new_tokens=4)
        assert read == expected
