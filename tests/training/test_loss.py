"""The loss and its gradients against float64 autograd over all logits at once."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from blocklab.errors import BlocklabError
from blocklab.parts.linear import default_products
from blocklab.training.loss import IGNORED, _evenly, default_chunk, linear_cross_entropy
from tests.largest_tensor import LargestTensor

needs_onednn = pytest.mark.skipif(
    default_products(torch.empty(0)) != "onednn", reason="this torch has no oneDNN product"
)
PRODUCTS = ["torch", pytest.param("onednn", marks=needs_onednn)]


def example(n, d, v, *, seed=0, ignored=0.3, dtype=torch.float64, size=1.0):
    """Random inputs; about a share `ignored` of the targets does not count."""
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, d, generator=g, dtype=torch.float64) * size
    weight = torch.randn(v, d, generator=g, dtype=torch.float64)
    bias = torch.randn(v, generator=g, dtype=torch.float64)
    targets = torch.randint(0, v, (n,), generator=g)
    targets[torch.rand(n, generator=g) < ignored] = IGNORED
    leaves = [tensor.to(dtype).requires_grad_() for tensor in (hidden, weight, bias)]
    return *leaves, targets


def reference(hidden, weight, bias, targets, scale=1.0, softcap=None, n_targets=None):
    """Loss, mean log Z and gradients in float64 by autograd."""
    leaves = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight, bias)]
    logits = scale * (leaves[0] @ leaves[1].t() + leaves[2])
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    counted = targets != IGNORED
    n = n_targets or max(int(counted.sum()), 1)
    loss = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum") / n
    log_z = logits.logsumexp(1)[counted].sum() / max(int(counted.sum()), 1)
    return loss.detach(), log_z.detach(), torch.autograd.grad(loss, leaves)


@given(
    n=st.integers(1, 40),
    d=st.integers(1, 9),
    v=st.integers(1, 30),
    chunk=st.integers(1, 17),
    scale=st.sampled_from([1.0, 0.3, 2.0]),
    softcap=st.sampled_from([None, 1.5, 30.0]),
    ignored=st.sampled_from([0.0, 0.4, 1.0]),
    n_targets=st.sampled_from([None, 100]),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=150)
def test_values_and_all_gradients_equal_float64_autograd(
    n, d, v, chunk, scale, softcap, ignored, n_targets, seed
):
    hidden, weight, bias, targets = example(n, d, v, seed=seed, ignored=ignored)
    settings_ = {"scale": scale, "softcap": softcap, "n_targets": n_targets}
    ours = linear_cross_entropy(hidden, weight, targets, bias=bias, chunk=chunk, **settings_)
    ours.loss.backward()
    loss, log_z, gradients = reference(hidden, weight, bias, targets, **settings_)
    torch.testing.assert_close(ours.loss.detach(), loss, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(ours.log_z, log_z, rtol=1e-12, atol=1e-13)
    for leaf, gradient in zip((hidden, weight, bias), gradients, strict=True):
        torch.testing.assert_close(leaf.grad, gradient, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize(
    ("n", "d", "v", "chunk"), [(70, 24, 257, 32), (64, 64, 1000, None), (8, 1024, 5000, 3)]
)
def test_float32_errs_by_rounding_only(products, softcap, n, d, v, chunk):
    hidden, weight, bias, targets = example(n, d, v, dtype=torch.float32)
    _, _, exact = reference(hidden, weight, bias, targets, softcap=softcap)
    ours = linear_cross_entropy(
        hidden, weight, targets, bias=bias, softcap=softcap, chunk=chunk, products=products
    )
    gradients = torch.autograd.grad(ours.loss, (hidden, weight, bias))
    logits = F.linear(hidden, weight, bias)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    eager = torch.autograd.grad(F.cross_entropy(logits, targets), (hidden, weight, bias))
    for mine, other, true in zip(gradients, eager, exact, strict=True):
        error, eagers = (mine - true).abs().max(), (other - true).abs().max()
        # oneDNN adds up in another order: at d = 1024 its rounding is near four times MKL's.
        assert error <= 8 * eagers + 1e-9


@pytest.mark.parametrize("products", PRODUCTS)
def test_a_chunk_without_any_target_adds_nothing(products):
    hidden, weight, bias, targets = example(12, 4, 9, ignored=0.0, dtype=torch.float32)
    targets[4:8] = IGNORED
    ours = linear_cross_entropy(hidden, weight, targets, bias=bias, chunk=4, products=products)
    ours.loss.backward()
    loss, _, gradients = reference(hidden, weight, bias, targets)
    assert ours.loss.item() == pytest.approx(loss.item(), rel=1e-5)
    assert hidden.grad[4:8].eq(0).all()
    torch.testing.assert_close(weight.grad.double(), gradients[1], rtol=1e-4, atol=1e-6)


def test_without_any_target_loss_and_gradients_are_zero():
    hidden, weight, bias, targets = example(6, 4, 9, ignored=1.0)
    ours = linear_cross_entropy(hidden, weight, targets, bias=bias)
    ours.loss.backward()
    assert ours.loss.item() == 0
    assert all(leaf.grad.eq(0).all() for leaf in (hidden, weight, bias))


@pytest.mark.parametrize("cuts", [(5,), (1, 2, 11), (4, 8)])
def test_micro_batches_with_unequal_masks_add_up_to_the_whole_batch(cuts):
    """transformers#34191: a mean of means weighs a token by its neighbours' masks."""
    hidden, weight, bias, targets = example(12, 4, 9, ignored=0.5, seed=3)
    targets[:3] = IGNORED
    n_targets = int((targets != IGNORED).sum())
    whole = linear_cross_entropy(hidden, weight, targets, bias=bias)
    expected = torch.autograd.grad(whole.loss, (hidden, weight, bias))
    total = 0.0
    for h, t in zip(hidden.tensor_split(cuts), targets.tensor_split(cuts), strict=True):
        part = linear_cross_entropy(h, weight, t, bias=bias, n_targets=n_targets)
        part.loss.backward()
        total += part.loss.item()
    assert total == pytest.approx(whole.loss.item(), rel=1e-13)
    for leaf, gradient in zip((hidden, weight, bias), expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient, rtol=1e-12, atol=1e-14)


def test_a_tied_weight_gets_the_gradient_of_both_its_uses():
    _, table, _, targets = example(10, 4, 9, ignored=0.2)
    tokens = torch.arange(10) % 9

    def gradient(loss_of):
        hidden = torch.tanh(F.embedding(tokens, table))
        return torch.autograd.grad(loss_of(hidden), table)[0]

    ours = gradient(lambda h: linear_cross_entropy(h, table, targets, chunk=3).loss)
    eager = gradient(lambda h: F.cross_entropy(h @ table.t(), targets))
    torch.testing.assert_close(ours, eager, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (1, 2)])
def test_only_what_requires_a_gradient_gets_one(wanted, products):
    leaves = example(10, 4, 9, dtype=torch.float32)
    targets = leaves[3]
    for index, leaf in enumerate(leaves[:3]):
        leaf.requires_grad_(index in wanted)
    hidden, weight, bias = leaves[:3]
    ours = linear_cross_entropy(hidden, weight, targets, bias=bias, chunk=4, products=products)
    ours.loss.backward()
    _, _, gradients = reference(hidden, weight, bias, targets)
    for index, leaf in enumerate(leaves[:3]):
        if index in wanted:
            torch.testing.assert_close(leaf.grad.double(), gradients[index], rtol=1e-4, atol=1e-6)
        else:
            assert leaf.grad is None


@pytest.mark.parametrize("products", PRODUCTS)
def test_evaluation_gives_the_same_numbers_and_no_gradient(products):
    hidden, weight, _, targets = example(50, 8, 33, dtype=torch.float32)
    trained = linear_cross_entropy(hidden, weight, targets, chunk=16, products=products)
    with torch.no_grad():
        swept = linear_cross_entropy(hidden, weight, targets, chunk=16, products=products)
    assert not swept.loss.requires_grad
    assert not trained.log_z.requires_grad
    assert (swept.loss, swept.log_z) == (trained.loss.detach(), trained.log_z)


@pytest.mark.parametrize("products", PRODUCTS)
def test_the_same_inputs_give_the_same_bits(products):
    runs = []
    for _ in range(2):
        hidden, weight, _, targets = example(70, 16, 130, dtype=torch.float32)
        loss = linear_cross_entropy(hidden, weight, targets, chunk=32, products=products).loss
        runs.append((loss.detach(), *torch.autograd.grad(loss, (hidden, weight))))
    assert all(first.equal(second) for first, second in zip(*runs, strict=True))


def test_the_incoming_gradient_scales_every_gradient():
    hidden, weight, bias, targets = example(10, 4, 9)
    (linear_cross_entropy(hidden, weight, targets, bias=bias).loss * -2.5).backward()
    _, _, gradients = reference(hidden, weight, bias, targets)
    for leaf, gradient in zip((hidden, weight, bias), gradients, strict=True):
        torch.testing.assert_close(leaf.grad, -2.5 * gradient)


def test_a_second_backward_pass_is_refused():
    hidden, weight, _, targets = example(10, 4, 9)
    loss = linear_cross_entropy(hidden, weight, targets).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="already handed on"):
        loss.backward()


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_huge_logits_neither_overflow_nor_vanish(size):
    hidden, weight, bias, targets = example(20, 8, 30, dtype=torch.float32, size=size)
    ours = linear_cross_entropy(hidden, weight, targets, bias=bias)
    ours.loss.backward()
    loss, log_z, gradients = reference(hidden, weight, bias, targets)
    assert ours.loss.item() == pytest.approx(loss.item(), rel=1e-5)
    assert ours.log_z.item() == pytest.approx(log_z.item(), rel=1e-5)
    torch.testing.assert_close(hidden.grad.double(), gradients[0], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("products", PRODUCTS)
def test_nan_stays_visible(products):
    """trl#6702: a NaN replaced by an average makes a diverged run look healthy."""
    hidden, weight, _, targets = example(8, 4, 9, ignored=0.0, dtype=torch.float32)
    with torch.no_grad():
        hidden[5, 2] = math.nan
    ours = linear_cross_entropy(hidden, weight, targets, chunk=4, products=products)
    ours.loss.backward()
    assert ours.loss.isnan()
    assert ours.log_z.isnan()
    assert weight.grad.isnan().any()
    assert hidden.grad[:4].isfinite().all()


def test_bfloat16_computes_its_softmax_and_sums_in_float32():
    hidden, weight, bias, targets = example(300, 16, 65, dtype=torch.bfloat16, size=0.3)
    ours = linear_cross_entropy(hidden, weight, targets, bias=bias, chunk=16)
    assert ours.loss.dtype == ours.log_z.dtype == torch.float32
    ours.loss.backward()
    loss, _, gradients = reference(hidden, weight, bias, targets)
    assert ours.loss.item() == pytest.approx(loss.item(), rel=2e-3)
    for leaf, gradient in zip((hidden, weight, bias), gradients, strict=True):
        assert leaf.grad.dtype == torch.bfloat16
        distance = (leaf.grad.double() - gradient).norm() / gradient.norm()
        assert distance < 0.01


def test_a_float32_weight_keeps_float32_gradients_under_bfloat16_activations():
    hidden, weight, bias, targets = example(64, 16, 65, dtype=torch.float32, size=0.3)
    narrow = hidden.detach().bfloat16().requires_grad_()
    linear_cross_entropy(narrow, weight, targets, bias=bias, chunk=16).loss.backward()
    _, _, gradients = reference(hidden, weight, bias, targets)
    assert (narrow.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.float32)
    distance = (weight.grad.double() - gradients[1]).norm() / gradients[1].norm()
    assert distance < 0.01


class CountProducts(TorchDispatchMode):
    """Counts the products of matrices."""

    products = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.products += function.__name__.split(".")[0] in ("mm", "addmm", "addmm_")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("frozen", "products"), [((), 3), ((0,), 2), ((1,), 2), ((0, 1), 1)])
def test_no_product_is_spent_on_a_gradient_that_nobody_wants(frozen, products):
    *leaves, targets = example(10, 4, 9)
    for index in frozen:
        leaves[index].requires_grad_(False)
    with CountProducts() as count:
        linear_cross_entropy(leaves[0], leaves[1], targets, chunk=5)
    assert count.products == 2 * products


@pytest.mark.parametrize("products", PRODUCTS)
def test_the_logits_of_all_rows_never_exist_at_once(products):
    n, d, v, chunk = 256, 4, 300, 16
    hidden, weight, _, targets = example(n, d, v, dtype=torch.float32)
    with LargestTensor() as largest:
        linear_cross_entropy(
            hidden, weight, targets, chunk=chunk, products=products
        ).loss.backward()
    assert largest.elements == chunk * v


@pytest.mark.parametrize(
    ("vocab_size", "rows"), [(64, 512), (1024, 512), (4096, 512), (8192, 256), (50257, 128)]
)
def test_the_default_chunk_depends_on_the_vocabulary_only(vocab_size, rows):
    assert default_chunk(vocab_size) == rows


def test_shapes_that_do_not_fit_are_named():
    hidden, weight, _, targets = example(6, 4, 9)
    with pytest.raises(BlocklabError, match=r"targets \(5,\)"):
        linear_cross_entropy(hidden, weight, targets[:5])
    with pytest.raises(BlocklabError, match=r"weight \(9, 3\)"):
        linear_cross_entropy(hidden, weight[:, :3], targets)


@pytest.mark.parametrize(
    ("n_rows", "chunk", "expected"),
    [(2048, 656, 512), (2048, 2048, 2048), (1000, 600, 512), (5, 128, 16), (0, 128, 16), (9, 3, 3)],
)
def test_chunks_are_as_few_as_fit_and_of_one_size(n_rows, chunk, expected):
    assert _evenly(n_rows, chunk) == expected


def test_a_targets_own_logit_is_not_rounded_to_bfloat16():
    """It enters a row's loss whole, where the others' rounding averages out in the softmax."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(256, 64, generator=generator).bfloat16()
    weight = (torch.randn(4000, 64, generator=generator) / 4).bfloat16()
    targets = torch.randint(4000, (256,), generator=generator)
    logits = hidden.double() @ weight.double().t()
    expected = F.cross_entropy(logits, targets, reduction="none")
    rows = linear_cross_entropy(hidden, weight, targets).rows
    assert (rows - expected).square().mean().sqrt() < 0.0025  # 0.0037 where it is rounded
