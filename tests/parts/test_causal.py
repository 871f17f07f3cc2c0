"""Causal attention by blocks is PyTorch's attention, forward and backward, at every length."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import blocklab as bl
from blocklab.parts import attention, causal
from blocklab.parts.linear import in_plain_torch

some = settings(max_examples=25, deadline=None, derandomize=True)


def drawn(batch, n_heads, n_kv_heads, length, head_dim, dtype):
    """Queries, keys, values as attention hands them on, and a gradient from above."""
    generator = torch.Generator().manual_seed(length)
    return [
        torch.randn(batch, length, heads, head_dim, generator=generator, dtype=torch.float64)
        .to(dtype)
        .transpose(1, 2)
        for heads in (n_heads, n_kv_heads, n_kv_heads, n_heads)
    ]


def with_gradients(attend, q, k, v, outward):
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    mixed = attend(q, k, v)
    return mixed, *torch.autograd.grad(mixed, (q, k, v), outward)


def reference(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True)


def blocks(q, k, v):
    return causal.causal_attention(q, k, v, 0.3)


@some
@given(
    length=st.one_of(st.integers(1, 9), st.sampled_from([63, 64, 65, 127, 128, 129, 200])),
    batch=st.integers(1, 2),
    heads=st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 2), (3, 1)]),
)
def test_blocks_are_the_whole_in_float64(length, batch, heads):
    given_to = drawn(batch, *heads, length, 8, torch.float64)
    for mine, theirs in zip(
        with_gradients(blocks, *given_to), with_gradients(reference, *given_to), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


@pytest.fixture(params=[False, True], ids=["", "autocast"])
def autocast(request):
    """Training in half precision goes on inside autocast."""
    with torch.autocast("cpu", torch.bfloat16, enabled=request.param):
        yield


@pytest.mark.usefixtures("autocast")
@pytest.mark.parametrize("length", [48, 128, 160])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 6e-3)])
def test_no_more_is_rounded_than_the_dtype_asks_for(length, dtype, error):
    rounded = drawn(2, 4, 2, length, 16, dtype)
    exact = [t.double() for t in rounded]
    for mine, true in zip(
        with_gradients(blocks, *rounded), with_gradients(reference, *exact), strict=True
    ):
        assert (mine.double() - true).norm() / true.norm() < error
        assert mine.dtype == dtype


@pytest.mark.usefixtures("autocast")
def test_large_scores_stay_exact_in_half_precision():
    q, k, v, outward = drawn(1, 2, 2, 128, 16, torch.bfloat16)
    mine = with_gradients(blocks, 8 * q, 8 * k, v, outward)
    true = with_gradients(reference, *(t.double() for t in (8 * q, 8 * k, v, outward)))
    assert (mine[0].double() - true[0]).norm() / true[0].norm() < 5e-3


def test_queries_of_another_dtype_are_rounded_as_the_fused_attention_rounds_them():
    q, k, v, outward = drawn(1, 2, 2, 70, 8, torch.float32)
    mixed, *gradients = with_gradients(blocks, q, k, v.bfloat16(), outward.bfloat16())
    assert mixed.dtype == torch.bfloat16
    assert [g.dtype for g in gradients] == [torch.float32, torch.float32, torch.bfloat16]


def test_no_sequence_is_no_sequence():
    q, k, v, _ = drawn(0, 4, 2, 5, 8, torch.float32)
    assert blocks(q, k, v).shape == (0, 4, 5, 8)


def test_functional_gradients_go_through():
    q, k, v, outward = drawn(1, 2, 1, 70, 8, torch.float64)
    found = torch.func.grad(lambda q: (blocks(q, k, v) * outward).sum())(q)
    torch.testing.assert_close(found, with_gradients(reference, q, k, v, outward)[1])


def test_a_default_device_changes_nothing():
    q, k, v, _ = drawn(1, 2, 1, 9, 8, torch.float32)
    before = blocks(q, k, v)
    with torch.device("meta"):
        assert torch.equal(blocks(q, k, v), before)


def test_a_later_token_changes_nothing_before_it():
    q, k, v, _ = drawn(1, 4, 2, 130, 8, torch.float32)
    before = blocks(q, k, v)
    for t in (q, k, v):
        t[:, :, 100:] += 1
    assert torch.equal(blocks(q, k, v)[:, :, :64], before[:, :, :64])
    torch.testing.assert_close(blocks(q, k, v)[:, :, :100], before[:, :, :100])


def test_it_serves_training_and_evaluation_but_neither_dropout_nor_plain_torch(monkeypatch):
    calls = []
    whole = causal.causal_attention
    monkeypatch.setattr(causal, "causal_attention", lambda *a: calls.append(1) or whole(*a))
    config = bl.presets.modern(
        d_model=32, n_layers=1, n_heads=2, vocab_size=11, context_length=8, dropout=0.5
    )
    model, tokens = bl.Transformer(config, seed=0), torch.zeros(1, 8, dtype=torch.long)
    model.train()(tokens)
    with in_plain_torch():
        model.eval()(tokens)
    assert not calls
    model.eval()(tokens)
    with torch.no_grad():
        model(tokens)
    assert len(calls) == 2


def test_scores_that_would_fill_the_memory_are_left_to_pytorch(monkeypatch):
    monkeypatch.setattr(causal, "MOST_SCORES", 1 * 2 * 8 * 8)
    fits, too_many = (torch.zeros(b, 2, 8, 4) for b in (1, 2))
    assert causal.is_faster(fits, fits)
    assert not causal.is_faster(too_many, too_many)
    assert not attention._products_are_faster(too_many.bfloat16(), too_many.bfloat16())
