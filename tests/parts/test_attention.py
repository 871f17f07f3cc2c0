"""Causal attention against a naive one of three loops, head by head and key by key."""

import itertools
import math

import pytest
import torch
from torch import Tensor

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.generation.cache import KeyValueCache
from blocklab.parts.context import AttentionContext
from blocklab.parts.linear import in_plain_torch
from tests.largest_tensor import LargestTensor

D_MODEL, LENGTH = 12, 7


def stream(length: int = LENGTH) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, length, D_MODEL, generator=generator, dtype=torch.float64)


def context(length: int = LENGTH, **fields: object) -> AttentionContext:
    return AttentionContext(
        positions=bl.parts.NoPositions.Config().build(D_MODEL, LENGTH),
        places=torch.arange(length),
        **fields,
    )


def attention(**fields: object) -> bl.parts.CausalAttention:
    torch.manual_seed(0)
    return bl.parts.CausalAttention.Config(**fields).build(D_MODEL).double()


def naive(part: bl.parts.CausalAttention, x: Tensor, real: Tensor | None = None) -> Tensor:
    """What the papers say, one query, one key and one head at a time."""
    d, group = part.head_dim, part.n_heads // part.n_kv_heads
    projected = x @ part.qkv.weight.T
    if part.qkv.bias is not None:
        projected = projected + part.qkv.bias
    queries, keys, values = projected.split(
        [part.n_heads * d, part.n_kv_heads * d, part.n_kv_heads * d], dim=-1
    )
    mixed = torch.zeros(*x.shape[:2], part.n_heads * d, dtype=x.dtype)
    for b, head, t in itertools.product(range(x.shape[0]), range(part.n_heads), range(x.shape[1])):
        mine, shared = slice(head * d, (head + 1) * d), head // group
        theirs = slice(shared * d, (shared + 1) * d)
        first = 0 if part.window is None else max(0, t - part.window + 1)
        seen = [s for s in range(first, t + 1) if real is None or real[b, s] or s == t]
        scores = torch.stack([queries[b, t, mine] @ keys[b, s, theirs] for s in seen]) * part.scale
        if part.softcap is not None:
            scores = part.softcap * torch.tanh(scores / part.softcap)
        weights = scores.exp() / scores.exp().sum()
        mixed[b, t, mine] = sum(
            w * values[b, s, theirs] for w, s in zip(weights, seen, strict=True)
        )
    out = mixed @ part.output.weight.T
    return out if part.output.bias is None else out + part.output.bias


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("window", [None, 1, 3, LENGTH, 99])
@pytest.mark.parametrize("n_kv_heads", [None, 1, 2, 4])
def test_attention_is_the_naive_one(
    n_kv_heads: int | None, window: int | None, softcap: float | None
) -> None:
    part = attention(n_heads=4, n_kv_heads=n_kv_heads, window=window, softcap=softcap)
    torch.testing.assert_close(part(stream(), context()), naive(part, stream()))


@pytest.mark.parametrize(
    "fields",
    [
        {"head_dim": 5},
        {"scale": 0.9},
        {"qkv_bias": False},
        {"out_bias": False},
        {"n_heads": 1},
        {"n_heads": 6, "n_kv_heads": 3, "head_dim": 8, "softcap": 2.0, "scale": 1.3},
    ],
    ids=str,
)
def test_every_field_is_the_naive_one_too(fields: dict[str, object]) -> None:
    part = attention(**{"n_heads": 4, **fields})
    torch.testing.assert_close(part(stream(), context()), naive(part, stream()))


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("window", [None, 2])
def test_padding_is_never_attended_to(window: int | None, softcap: float | None) -> None:
    part = attention(n_heads=4, n_kv_heads=2, window=window, softcap=softcap)
    real = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]]).bool()
    out = part(stream(), context(real=real))
    torch.testing.assert_close(out, naive(part, stream(), real))


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_a_window_of_w_sees_exactly_w_keys(
    window: int, cached: bool, softcap: float | None
) -> None:
    """Counted by which inputs the last output depends on, in one pass and when decoding."""
    part = attention(n_heads=2, window=window, softcap=softcap)
    x = stream().requires_grad_()
    if cached:
        config = bl.presets.gpt2(d_model=D_MODEL, n_heads=2, n_layers=1, vocab_size=3)
        cache = KeyValueCache(config, batch_size=2, capacity=LENGTH, dtype=torch.float64)
        part(x[:, :-1], context(LENGTH - 1, cache=cache.layer(0)))
        cache.advance(LENGTH - 1)
        last = part(x[:, -1:], context(1, cache=cache.layer(0), start=LENGTH - 1))
    else:
        last = part(x, context())[:, -1:]
    (gradient,) = torch.autograd.grad(last[0].sum(), x)
    seen = gradient[0].abs().sum(-1) > 0
    assert seen.tolist() == [False] * (LENGTH - window) + [True] * window


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("over", ["head", "all"])
def test_qk_norm_acts_on_queries_and_keys_but_not_on_values(over: str, kind: str) -> None:
    part = attention(n_heads=4, n_kv_heads=2, qk_norm=kind, qk_norm_over=over)
    queries, keys, values = part._project(stream(), context())
    q, k, v = part.qkv(stream()).split([4 * 3, 2 * 3, 2 * 3], dim=-1)
    if over == "head":
        q, k = (part_.unflatten(-1, (-1, 3)) for part_ in (q, k))
    q, k = part.query_norm(q), part.key_norm(k)
    torch.testing.assert_close(queries.transpose(1, 2).flatten(2), q.reshape(2, LENGTH, -1))
    torch.testing.assert_close(keys.transpose(1, 2).flatten(2), k.reshape(2, LENGTH, -1))
    torch.testing.assert_close(values.transpose(1, 2).flatten(2), v)


def test_the_default_scale_is_one_over_the_root_of_head_dim() -> None:
    assert attention(n_heads=4, head_dim=9).scale == pytest.approx(1 / math.sqrt(9))


@pytest.mark.parametrize("softcap", [None, 0.7])
def test_dropout_acts_on_weights_before_the_values_are_mixed(softcap: float | None) -> None:
    """With all values equal to one, what is left of the mixture is the sum of kept weights."""
    part = attention(n_heads=1, out_bias=False, qkv_bias=True, softcap=softcap)
    with torch.no_grad():
        part.qkv.weight.zero_()
        part.qkv.bias.copy_(torch.ones(3 * D_MODEL))
        part.output.weight.copy_(torch.eye(D_MODEL))
    out = part(stream(), context(dropout=0.5))
    kept = out[..., 0] * torch.arange(1, LENGTH + 1) * 0.5
    torch.testing.assert_close(kept, kept.round())
    assert out.std() > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block.attention.n_heads": 5}, r"n_heads: 5 heads do not divide d_model 12"),
        ({"block.attention.n_kv_heads": 3}, r"n_kv_heads: 3 key-value heads do not divide 4"),
    ],
)
def test_heads_that_do_not_divide_are_refused_by_path(
    changes: dict[str, int], message: str
) -> None:
    config = bl.presets.gpt2(d_model=12, n_heads=4, n_layers=1)
    with pytest.raises(BlocklabError, match=rf"block\.attention\.{message}"):
        config.with_changes(changes)


@pytest.mark.parametrize("positions", ["alibi", "rotary"])
@pytest.mark.parametrize("window", [None, 100])
def test_no_step_of_a_fused_attention_holds_all_scores(positions: str, window: int | None) -> None:
    batch, n_heads, length = 3, 2, 256
    config = bl.presets.modern(
        d_model=32, n_layers=1, n_heads=n_heads, vocab_size=11, context_length=length
    ).with_changes({"positions": {"kind": positions}, "block.attention.window": window})
    model = bl.Transformer(config, seed=0)
    tokens = torch.zeros(batch, length, dtype=torch.long)
    with LargestTensor() as largest, in_plain_torch():
        model.features(tokens).sum().backward()
    assert largest.elements < batch * n_heads * length**2
