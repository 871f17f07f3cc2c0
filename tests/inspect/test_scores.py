"""Scores read some queries at a time: the numbers are those of all at once, the memory is not."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from torch import Tensor, nn

import blocklab as bl
from blocklab.inspect import scores as module
from blocklab.inspect.attention_maps import attention_maps, head_measures
from blocklab.inspect.scores import Scores, fused_scores, given_scores, watching_scores
from blocklab.model.config import ModelConfig
from blocklab.parts.linear import in_plain_torch
from blocklab.training.measures import measure_stream
from tests.largest_tensor import LargestTensor
from tests.model.strategies import configs, for_every_config, random_tokens, randomized


def in_blocks_of(queries: int) -> AbstractContextManager[object]:
    return patch.multiple(module, HELD=1, FEWEST=queries)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def all_at_once(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax's argument (B, n_heads, T, S) as torch documents it, in float64."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    found = torch.einsum("bhtd,bhsd->bhts", query.double(), key.double()) * factor
    if is_causal:
        mask = torch.ones(found.shape[-2:], dtype=torch.bool).tril()
    if mask is None:
        return found
    if mask.dtype == torch.bool:
        return torch.where(mask, found, -math.inf)
    return found + mask


def put_together(scores: Scores) -> Tensor:
    whole = torch.full(scores.shape, -math.inf, dtype=torch.float64)
    for start, block in scores.blocks():
        whole[..., start : start + block.shape[-2], : block.shape[-1]] = block
    return whole


QUERIES, KEYS = 13, 17
VISIBLE = normal(2, 1, QUERIES, KEYS, seed=3) > -0.5
MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 2.5},
    "window": {"attn_mask": torch.ones(QUERIES, KEYS, dtype=torch.bool).tril().triu(-3)},
    "padding": {"attn_mask": VISIBLE},
    "same keys for all queries": {"attn_mask": VISIBLE[:, :, :1]},
    "bias": {"attn_mask": normal(4, QUERIES, KEYS, seed=4)},
    "bias of a key": {"attn_mask": normal(KEYS, seed=5)},
    "bias and mask": {"attn_mask": normal(2, 4, QUERIES, KEYS).masked_fill(~VISIBLE, -math.inf)},
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("queries", [1, 5, QUERIES])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("arguments", MASKS.values(), ids=MASKS)
def test_scores_in_blocks_are_those_of_the_whole_product(
    arguments: dict[str, Any], n_kv_heads: int, queries: int, dtype: torch.dtype
) -> None:
    query = normal(2, QUERIES, 4, 8).to(dtype).transpose(1, 2)
    key = normal(2, KEYS, n_kv_heads, 8, seed=1).to(dtype).transpose(1, 2)
    mask = arguments.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        mask = arguments["attn_mask"].to(dtype)
    given = {name: value for name, value in arguments.items() if name != "attn_mask"}
    expected = all_at_once(query, key, mask, **given)
    with in_blocks_of(queries):
        scores = fused_scores(query, key, key, mask, enable_gqa=n_kv_heads != 4, **given)
        assert len(list(scores.blocks())) == math.ceil(QUERIES / queries)
        found = put_together(scores)
        assert float(scores.largest()) == pytest.approx(float(expected.max()), rel=1e-5)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-12 if dtype.itemsize == 8 else 1e-5)
    # Read in one block they have the bits of the product as it is written.
    factor = given.get("scale") or 8**-0.5
    plain = query.to(found.dtype if dtype.itemsize == 8 else torch.float32)
    keys = key.repeat_interleave(4 // n_kv_heads, 1).to(plain.dtype)
    ((_, block),) = fused_scores(query, key, key, scale=factor, enable_gqa=True).blocks()
    assert torch.equal(block, plain @ keys.transpose(-1, -2) * factor)


def test_a_value_that_is_not_finite_is_found_where_it_can_be_seen_and_only_there() -> None:
    query, key = normal(1, 1, 9, 4), normal(1, 1, 9, 4, seed=1)
    key[:, :, 8] = math.nan  # seen by the last query alone
    with in_blocks_of(2):
        assert math.isnan(fused_scores(query, key, key, is_causal=True).largest())
        before = fused_scores(query[:, :, :8], key, key, is_causal=True)
        assert math.isfinite(before.largest())
        assert math.isnan(given_scores(key).largest())


@for_every_config
@given(configs())
def test_measures_of_every_attention_are_those_of_its_whole_maps(config: ModelConfig) -> None:
    model, tokens = randomized(config), random_tokens()
    maps = bl.inspect.attention_maps(model, tokens)
    with in_blocks_of(3):
        measures = bl.inspect.head_measures(model, tokens)
        largest = measure_stream(model, tokens).largest_attention_logit
        in_blocks = bl.inspect.attention_maps(model, tokens)
    for block, (weights, measured) in enumerate(zip(maps, measures, strict=True)):
        assert weights is not None
        assert measured is not None
        found = in_blocks[block]
        assert found is not None
        assert torch.allclose(found, weights, rtol=1e-9, atol=1e-300)
        assert largest[block] == max(measured.largest_logit)
        expected = from_the_whole(weights)
        for name, value in expected.items():
            assert getattr(measured, name) == pytest.approx(value, rel=1e-9, abs=1e-300), name


def from_the_whole(weights: Tensor) -> dict[str, Any]:
    """Head measures from maps (B, n_heads, T, T), position by position."""
    length = weights.shape[-1]
    places = torch.arange(1, length)
    entropy = -torch.where(weights > 0, weights * weights.log(), 0.0).sum(-1)
    return {
        "entropy": tuple(entropy.mean((0, 2)).tolist()),
        "uniform_entropy": float((weights > 0).sum(-1).double().log().mean()),
        "first_key": tuple(weights[:, :, 1:, 0].mean((0, 2)).tolist()),
        "previous_key": tuple(weights[:, :, places, places - 1].mean((0, 2)).tolist()),
    }


def largest_of_a_pass(model: bl.Transformer, tokens: Tensor) -> int:
    """Of the model alone, as it is when it is looked at."""
    with torch.no_grad(), in_plain_torch(), LargestTensor() as made:
        model.eval().features(tokens)
    return made.elements


LENGTH, HEADS, SEQUENCES = 512, 8, 2
# Beside each, how many T * T tensors the model itself makes as one, whoever looks: a mask for all
# heads, or every head's scores of every sequence.
KINDS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 0),
    "grouped": ({"block.attention.n_kv_heads": 2}, 0),
    "qk_norm": ({"block.attention.qk_norm": {"kind": "rms"}}, 0),
    "scale": ({"block.attention.scale": 0.1}, 0),
    "window": ({"block.attention.window": 32}, 1),
    "alibi": ({"positions": {"kind": "alibi"}}, HEADS),
    "softcap": ({"block.attention.softcap": 3.0}, HEADS * SEQUENCES),
}


@pytest.mark.parametrize("look", [measure_stream, bl.inspect.head_measures])
@pytest.mark.parametrize(("changes", "own"), KINDS.values(), ids=KINDS)
def test_a_look_never_holds_the_scores_of_all_queries(
    changes: dict[str, Any], own: int, look: Callable[[bl.Transformer, Tensor], object]
) -> None:
    config = bl.presets.modern(
        d_model=32, n_heads=HEADS, n_layers=2, vocab_size=13, context_length=LENGTH
    )
    model = bl.Transformer(config.with_changes(changes), seed=0)
    tokens = random_tokens(SEQUENCES, LENGTH)
    alone = largest_of_a_pass(model, tokens)
    with LargestTensor() as made:
        look(model, tokens)
    assert made.elements <= max(module.HELD, alone)
    assert alone <= max(own * LENGTH**2, module.HELD)
    assert module.HELD < SEQUENCES * HEADS * LENGTH**2 / 8


class OverwritesItsQueries(nn.Module):
    """Attention of a user's own that saves memory once its mixture is made."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x: Tensor, context: object) -> Tensor:
        q, k, v = (part[:, None] for part in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        q.zero_()
        return mixed[:, 0]


def test_scores_are_those_that_entered_whatever_becomes_of_the_queries() -> None:
    config = bl.presets.gpt2(d_model=16, n_heads=2, n_layers=1, vocab_size=13, context_length=10)
    model, tokens = bl.Transformer(config, seed=0), random_tokens()
    block = model.blocks[0]
    block.attention = OverwritesItsQueries(16)
    (found,) = measure_stream(model, tokens).largest_attention_logit
    x = bl.inspect.record(model, tokens, "blocks.0.attention")["blocks.0.attention"].inputs[0]
    q, k, _ = block.attention.qkv(x).detach()[:, None].chunk(3, -1)
    assert found == pytest.approx(float(all_at_once(q, k, is_causal=True).max()), rel=1e-5)


class LearnedQueries(nn.Module):
    """Every sequence is asked by the same queries."""

    def __init__(self, d_model: int, n_heads: int = 2) -> None:
        super().__init__()
        self.queries = nn.Parameter(normal(1, n_heads, 16, d_model // n_heads))

    def forward(self, x: Tensor, context: Any) -> Tensor:
        n_heads = self.queries.shape[1]
        keys = x.unflatten(-1, (n_heads, -1)).transpose(1, 2)
        queries = self.queries[:, :, : x.shape[1]]
        mixed = F.scaled_dot_product_attention(queries, keys, keys, is_causal=True)
        return mixed.transpose(1, 2).flatten(2)


def with_modules(path: str, module: nn.Module) -> bl.Transformer:
    model = bl.Transformer(
        bl.presets.modern(d_model=32, n_layers=1, n_heads=2, vocab_size=11, context_length=16),
        seed=0,
    ).eval()
    model.set_submodule(path, module)
    return model


def test_queries_that_all_sequences_share_are_read_of_every_sequence() -> None:
    model = with_modules("blocks.0.attention", LearnedQueries(32))
    tokens = torch.arange(33).view(3, 11) % 11
    (weights,) = attention_maps(model, tokens)
    (measured,) = head_measures(model, tokens)
    assert weights is not None
    assert weights.shape == (3, 2, 11, 11)
    assert measured is not None
    entropy = torch.special.entr(weights).sum(-1).mean((0, 2))
    assert measured.entropy == pytest.approx(entropy.tolist(), rel=1e-5)


class Memory(nn.Module):
    """A feed-forward that looks things up, by a softmax of its own, of three dimensions."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.table = nn.Parameter(normal(1, 5, d_model))

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, self.table, self.table)


def test_a_softmax_outside_attention_is_not_looked_at() -> None:
    tokens = torch.arange(22).view(2, 11) % 11
    model = with_modules("blocks.0.feed_forward", Memory(32))
    read: list[int] = []
    with watching_scores(model, lambda scores: read.append(len(scores.shape))):
        model.features(tokens)
    assert read == [4]
    assert head_measures(model, tokens)[0] is not None


class OneHead(nn.Module):
    """An attention whose scores are (B, T, S): they say no head."""

    def forward(self, x: Tensor, context: Any) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


def test_scores_without_heads_are_no_map() -> None:
    model = with_modules("blocks.0.attention", OneHead())
    tokens = torch.arange(22).view(2, 11) % 11
    assert attention_maps(model, tokens) == head_measures(model, tokens) == [None]
