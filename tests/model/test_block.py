"""The wiring of a block against its formulas, written out by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.model.block import StandardBlock
from blocklab.parts.context import AttentionContext
from tests.model.strategies import random_tokens, randomized

D_MODEL, LENGTH = 12, 5


def block(**fields: Any) -> StandardBlock:
    torch.manual_seed(0)
    attention = {"kind": "causal", "n_heads": 3}
    built = StandardBlock.Config.parse({"attention": attention, **fields}).build(D_MODEL)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return built.double()


def stream() -> Tensor:
    return torch.randn(2, LENGTH, D_MODEL, dtype=torch.float64)


def context() -> AttentionContext:
    nothing = bl.parts.NoPositions.Config().build(D_MODEL, LENGTH)
    return AttentionContext(positions=nothing, places=torch.arange(LENGTH))


def by_hand(b: StandardBlock, placement: str, residual: str, x: Tensor) -> Tensor:
    """The four placements as the papers write them, with and without the path around."""
    around = (lambda x: x) if residual == "add" else torch.zeros_like
    norm, c = b.norm, context()
    if placement == "pre":
        x = around(x) + b.attention(norm["attention"](x), c)
        return around(x) + b.feed_forward(norm["feed_forward"](x))
    if placement == "post":
        x = norm["attention"](around(x) + b.attention(x, c))
        return norm["feed_forward"](around(x) + b.feed_forward(x))
    if placement == "output":
        x = around(x) + norm["attention"](b.attention(x, c))
        return around(x) + norm["feed_forward"](b.feed_forward(x))
    x = around(x) + norm["attention_out"](b.attention(norm["attention"](x), c))
    return around(x) + norm["feed_forward_out"](b.feed_forward(norm["feed_forward"](x)))


@pytest.mark.parametrize("residual", ["add", "none"])
@pytest.mark.parametrize("placement", ["pre", "post", "output", "sandwich"])
def test_each_placement_is_its_formula(placement: str, residual: str) -> None:
    b, x = block(placement=placement, residual=residual), stream()
    torch.testing.assert_close(b(x, context()), by_hand(b, placement, residual, x))


def test_scaled_residuals_have_a_scale_for_each_branch() -> None:
    b, x = block(residual={"kind": "scaled", "learned": True}), stream()
    first, second = b.residual["attention"].scale, b.residual["feed_forward"].scale
    assert not torch.equal(first, second)
    h = x + first * b.attention(b.norm["attention"](x), context())
    expected = h + second * b.feed_forward(b.norm["feed_forward"](h))
    torch.testing.assert_close(b(x, context()), expected)


def test_in_parallel_with_one_norm_both_branches_read_the_same() -> None:
    b, x = block(parallel="one_norm"), stream()
    h = b.norm["both"](x)
    assert list(b.norm) == ["both"]
    torch.testing.assert_close(b(x, context()), x + b.attention(h, context()) + b.feed_forward(h))


def test_in_parallel_with_two_norms_each_branch_has_its_own() -> None:
    b, x = block(parallel="two_norms"), stream()
    mixed = b.attention(b.norm["attention"](x), context())
    forward = b.feed_forward(b.norm["feed_forward"](x))
    torch.testing.assert_close(b(x, context()), x + mixed + forward)


def test_in_parallel_without_residual_both_branches_are_left() -> None:
    b, x = block(parallel="one_norm", residual="none"), stream()
    h = b.norm["both"](x)
    torch.testing.assert_close(b(x, context()), b.attention(h, context()) + b.feed_forward(h))


@pytest.mark.parametrize("placement", ["post", "output", "sandwich"])
def test_parallel_goes_with_pre_norm_only(placement: str) -> None:
    with pytest.raises(BlocklabError, match="parallel 'one_norm' goes with placement 'pre'"):
        block(parallel="one_norm", placement=placement)


def config(**changes: Any) -> bl.ModelConfig:
    small = bl.presets.gpt2(d_model=12, n_heads=3, n_layers=4, vocab_size=13, context_length=10)
    return small.with_changes(changes)


@pytest.mark.parametrize("residual", ["add", "none"])
def test_dropout_acts_on_every_branch_before_it_joins(residual: str) -> None:
    """What leaves a branch is zero or doubled at half dropout, with residual none too."""
    torch.manual_seed(0)
    changes = {"dropout": 0.5, "block.residual.kind": residual, "block.placement": "pre"}
    model = randomized(config(n_layers=1, **changes)).train()
    seen: dict[str, Tensor] = {}
    part = model.blocks[0]
    for name in ("attention", "feed_forward"):
        part.get_submodule(name).register_forward_hook(
            lambda _, __, out, name=name: seen.update({f"{name} gives": out})
        )
        part.residual[name].register_forward_hook(
            lambda _, inputs, __, name=name: seen.update({f"{name} joins": inputs[1]})
        )
    model(random_tokens())
    for name in ("attention", "feed_forward"):
        gives, joins = seen[f"{name} gives"], seen[f"{name} joins"]
        dropped = joins == 0
        assert 0.3 < dropped.double().mean() < 0.7
        torch.testing.assert_close(joins[~dropped], 2 * gives[~dropped])


def test_final_norm_follows_the_block_unless_it_is_post() -> None:
    for placement, kind in [("pre", "layer"), ("output", "layer"), ("post", "none")]:
        assert config(**{"block.placement": placement}).norm_at_the_end.kind == kind
    post = config(**{"block.placement": "post", "final_norm": "same", "block.norm.kind": "rms"})
    assert post.norm_at_the_end == post.block.norm
    assert config(final_norm="none").norm_at_the_end.kind == "none"


def test_exceptions_address_layers_by_index_and_slice_and_the_later_wins() -> None:
    c = config(
        layers=[
            {"at": "::2", "block.attention.window": 3},
            {"at": "-1", "block.norm": {"kind": "rms"}},
            {"at": "1:3", "block.attention.window": 5},
        ]
    )
    assert [c.layer(i).block.attention.window for i in range(4)] == [3, 5, 5, None]
    assert [c.layer(i).block.norm.kind for i in range(4)] == ["layer"] * 3 + ["rms"]
    windows = [b.attention.window for b in bl.Transformer(c).blocks]
    assert windows == [3, 5, 5, None]


def test_a_path_into_one_block_changes_that_block_only() -> None:
    c = config(**{"blocks.-1.norm.kind": "rms", "blocks.0.feed_forward.d_ff": 5})
    model = bl.Transformer(c)
    assert [type(b.norm["attention"]).__name__ for b in model.blocks] == ["LayerNorm"] * 3 + [
        "RMSNorm"
    ]
    assert [b.feed_forward.expand.out_features for b in model.blocks] == [5, 48, 48, 48]


def test_a_layer_without_positions_is_like_a_model_without_them_there() -> None:
    rotary = config(n_layers=1, positions="rotary")
    excepted = rotary.with_changes({"layers": [{"at": "0", "positions.kind": "none"}]})
    without = rotary.with_changes({"positions": "none"})
    tokens = random_tokens()
    expected = bl.Transformer(without, seed=0).eval()(tokens)
    assert torch.equal(bl.Transformer(excepted, seed=0).eval()(tokens), expected)
    assert not torch.equal(bl.Transformer(rotary, seed=0).eval()(tokens), expected)


@pytest.mark.parametrize(("model", "layer"), [("learned", "none"), ("rotary", "sinusoidal")])
def test_positions_on_the_embedding_cannot_differ_by_layer(model: str, layer: str) -> None:
    """The embedding is summed once; an exception there would change nothing, silently."""
    with pytest.raises(BlocklabError, match="act on the embedding"):
        config(positions=model, layers=[{"at": "1", "positions.kind": layer}])


def test_embedding_and_head_factors_are_their_formulas() -> None:
    c = config(
        **{
            "positions": "none",
            "embedding.scale": 3.0,
            "head": {"bias": True, "scale": 0.5, "softcap": 2.0},
        }
    )
    model, tokens = randomized(c), random_tokens()
    streams = []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: streams.append(inputs[0]))
    features = model.features(tokens)
    torch.testing.assert_close(streams[0], 3.0 * model.embedding.weight[tokens])
    logits = 0.5 * (features @ model.head.weight.T + model.head.bias)
    torch.testing.assert_close(model(tokens), 2.0 * torch.tanh(logits / 2.0))


def test_an_embeddings_scale_is_rounded_as_the_stream_is() -> None:
    """Gemma's sqrt(3072) is 55.5 in bfloat16, and so it was trained."""
    config = bl.presets.modern(
        d_model=32, n_layers=1, n_heads=2, vocab_size=8, context_length=4
    ).with_changes({"embedding.scale": 3072**0.5})
    model = bl.Transformer(config).bfloat16()
    with torch.no_grad():
        model.embedding.weight.fill_(1.0)
        entering = model.embedded(torch.zeros(1, 1, dtype=torch.long), torch.zeros(1))
    assert entering.unique().tolist() == [55.5]
