"""The exact next-token loss from the stream to nats, without ever holding all logits.

Rows are taken a chunk at a time; while a chunk's softmax is at hand its gradients are made too, so
the backward pass only hands them on. Not for sampling: no logits come out of here.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from blocklab.data.windows import IGNORED
from blocklab.errors import BlocklabError
from blocklab.model.transformer import Head
from blocklab.parts.linear import Products, default_products, inner_product


class Loss(NamedTuple):
    """The loss, the mean log Z over the positions that count, and every position's own loss.

    Only `loss` has a gradient. `rows` is (N,), 0 where a position does not count.
    """

    loss: Tensor
    log_z: Tensor
    rows: Tensor


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    n_targets: int | None = None,
    chunk: int | None = None,
    products: Products | None = None,
) -> Loss:
    """Cross-entropy of softmax(logits) with logits = softcap * tanh(scale * (h W^T + b) / softcap).

    Shapes: hidden (N, d), weight (V, d), targets (N,) with -100 where a position does not count,
    bias (V,). The sum over positions is divided by `n_targets`: give the number of targets of the
    whole optimiser step, and micro-batches of unequal size add up exactly. By default it is the
    number of this call, and without any target the loss is 0.

    `chunk` is how many rows are at hand at most (default: `default_chunk(V, dtype)`), `products`
    who multiplies (default: `default_products(hidden)`). Softmax, loss and log Z compute in at
    least float32, from products in the hidden states' dtype; of half precision the target's own
    logit is computed apart, for its rounding would be the loss's. Gradients exist once: a second
    backward pass through the same loss is refused.
    """
    _require_fit(hidden, weight, targets, bias)
    counted = targets != IGNORED
    total = counted.sum().clamp(min=1) if n_targets is None else max(n_targets, 1)
    task = _Task(
        targets=torch.where(counted, targets, 0).unsqueeze(1),
        counted=counted,
        total=total,
        scale=scale,
        softcap=softcap,
        chunk=_evenly(len(hidden), chunk or default_chunk(weight.shape[0], hidden.dtype)),
        products=products or default_products(hidden),
    )
    if torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (hidden, weight, bias)
    ):
        return Loss(*_LinearCrossEntropy.apply(hidden, weight, bias, task))  # type: ignore[no-untyped-call]
    measured, _ = _run(task, hidden, weight, bias, (False, False, False))
    return measured


def next_token_loss(
    head: Head,
    hidden: Tensor,
    targets: Tensor,
    *,
    n_targets: int | None = None,
    chunk: int | None = None,
) -> Loss:
    """`linear_cross_entropy` of the logits that a model's head would make of (N, d_model)."""
    return linear_cross_entropy(
        hidden,
        head.weight,
        targets,
        bias=head.bias,
        scale=head.scale,
        softcap=head.softcap,
        n_targets=n_targets,
        chunk=chunk,
    )


def default_chunk(vocab_size: int, dtype: torch.dtype = torch.float32) -> int:
    """Rows at once. About two million float32 logits, which the caches hold, but 128 to 512 rows:
    fewer spend their time adding up the weight's gradient, more leave the caches.

    Half-precision products are so fast that adding up counts for more: 32 million logits, 64 MB,
    of which only a few rows at a time are read in float32.
    """
    if dtype in (torch.bfloat16, torch.float16):
        return min(4096, max(128, 2**25 // vocab_size // 16 * 16))
    return min(512, max(128, 2**21 // vocab_size // 16 * 16))


def _evenly(n_rows: int, chunk: int) -> int:
    """At most `chunk` rows, as many in each of the fewest chunks: a small last one is slow."""
    n_chunks = max(math.ceil(n_rows / chunk), 1)
    return min(chunk, max(math.ceil(n_rows / n_chunks / 16), 1) * 16)


class _Task(NamedTuple):
    targets: Tensor  # (N, 1), 0 where a position does not count
    counted: Tensor  # (N,)
    total: Tensor | int
    scale: float
    softcap: float | None
    chunk: int
    products: Products


class _Gradients(NamedTuple):
    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, task: _Task) -> Loss:
        measured, ctx.gradients = _run(task, hidden, weight, bias, ctx.needs_input_grad[:3])
        ctx.mark_non_differentiable(measured.log_z, measured.rows)
        return measured

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("linear_cross_entropy: its gradients were already handed on")
        # Letting go of them lets autograd keep them as they are instead of copying them.
        gradients, ctx.gradients = ctx.gradients, None
        factor = incoming[0]
        if factor.device.type != "cpu" or factor.item() != 1.0:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(factor)
        return (*gradients, None)


def _run(
    task: _Task, hidden: Tensor, weight: Tensor, bias: Tensor | None, needs: tuple[bool, ...]
) -> tuple[Loss, _Gradients]:
    """What is measured, and the gradients that `needs` asks for (hidden, weight, bias)."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    scaled = (hidden if task.scale == 1.0 else hidden * task.scale).contiguous()
    offset = None if bias is None else bias.to(wide) * task.scale
    products = _PRODUCTS[task.products](weight.detach().to(hidden.dtype).contiguous(), wide)
    share = (task.counted.to(wide) / task.total).unsqueeze(1)  # (N, 1), what a row weighs
    losses = hidden.new_empty((len(hidden), 1), dtype=wide)
    log_z = torch.empty_like(losses)
    minus_one = losses.new_full((1, 1), -1.0)
    for_hidden = torch.empty_like(hidden) if needs[0] else None
    for_bias = weight.new_zeros((1, weight.shape[0]), dtype=wide) if needs[2] else None
    # Probabilities: in a buffer of their own, or in place of logits of half precision.
    softmax = hidden.new_empty((task.chunk, weight.shape[0])) if wide == hidden.dtype else None
    for start in range(0, len(hidden), task.chunk):
        rows = slice(start, start + task.chunk)
        x, targets = scaled[rows], task.targets[rows]
        scores = products.logits(x)  # (chunk, V)
        p = scores if softmax is None else softmax[: len(x)]
        exact = _target_logits(x, products.weight, targets) if softmax is None else None
        found = scores.new_empty((3, len(x), 1), dtype=wide)
        for few in _few_rows(len(x), p):
            target = targets[few]
            logits = scores[few].to(wide)
            if exact is not None:
                logits.scatter_(1, target, exact[few])
            _cap(logits, offset, task.softcap)
            probabilities = torch.softmax(logits, 1, out=None if softmax is None else p[few])
            largest, likeliest, at_target = found[:, few]
            torch.amax(logits, 1, keepdim=True, out=largest)
            torch.amax(probabilities, 1, keepdim=True, out=likeliest)
            torch.gather(logits, 1, target, out=at_target)
            if not any(needs):
                continue
            probabilities.scatter_add_(1, target, minus_one.expand(target.shape))
            if task.softcap is not None:  # d tanh(u) = (1 - tanh(u)^2) du
                tanh = logits.div_(task.softcap)
                probabilities.addcmul_(probabilities, tanh.square_(), value=-1)
            if for_bias is not None:
                own = slice(start + few.start, start + few.stop)
                for_bias.addmm_(share[own].t(), probabilities, alpha=task.scale)
            if softmax is None:
                p[few] = probabilities
        # Well conditioned, as the largest probability is at least 1 / V.
        torch.sub(found[0], found[1].log_(), out=log_z[rows])
        torch.sub(log_z[rows], found[2], out=losses[rows])
        if for_hidden is not None:
            weighed = products.times_weight(p) * (share[rows] * task.scale)
            for_hidden[rows] = weighed
        if needs[1]:
            products.add_for_weight(p, x * share[rows])
    zero = losses.new_zeros(())
    rows_lost = torch.where(task.counted, losses.squeeze(1), zero)
    loss = rows_lost.sum() / task.total
    log_zs = torch.where(task.counted, log_z.squeeze(1), zero)
    mean_log_z = log_zs.sum() / task.counted.sum().clamp(min=1)
    gradients = _Gradients(
        for_hidden,
        products.for_weight().to(weight.dtype) if needs[1] else None,
        for_bias.squeeze(0).to(bias.dtype) if for_bias is not None and bias is not None else None,
    )
    return Loss(loss, mean_log_z, rows_lost), gradients


def _target_logits(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Of hidden states (N, d) and targets (N, 1), without rounding to half precision: (N, 1)."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide) * weight[targets.squeeze(1)].to(wide)).sum(1, keepdim=True)


def _few_rows(n: int, p: Tensor) -> Iterator[slice]:
    """All at once in full precision; of half precision as many as float32 copies stay cached."""
    step = n if p.dtype in (torch.float32, torch.float64) else max(2**17 // p.shape[1], 8)
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def _cap(logits: Tensor, offset: Tensor | None, softcap: float | None) -> None:
    if offset is not None:
        logits.add_(offset)
    if softcap is not None:
        logits.div_(softcap).tanh_().mul_(softcap)


class _Multiplier(Protocol):
    """The three products of a chunk with the weight (V, d); the third adds up over chunks."""

    weight: Tensor

    def __init__(self, weight: Tensor, wide: torch.dtype) -> None: ...
    def logits(self, x: Tensor) -> Tensor: ...  # (chunk, d) -> (chunk, V)
    def times_weight(self, p: Tensor) -> Tensor: ...  # (chunk, V) -> (chunk, d)
    def add_for_weight(self, p: Tensor, x: Tensor) -> None: ...
    def for_weight(self) -> Tensor: ...  # (V, d)


class _TorchProducts:
    """torch.mm. The logits' buffer is used again by every chunk."""

    def __init__(self, weight: Tensor, wide: torch.dtype) -> None:
        self.weight, self._wide = weight, wide
        self._buffer = weight.new_empty(0)
        self._total: Tensor | None = None  # (V, d)

    def logits(self, x: Tensor) -> Tensor:
        if len(self._buffer) < len(x):
            self._buffer = self.weight.new_empty(len(x), len(self.weight))
        return torch.mm(x, self.weight.t(), out=self._buffer[: len(x)])

    def times_weight(self, p: Tensor) -> Tensor:
        return p @ self.weight

    def add_for_weight(self, p: Tensor, x: Tensor) -> None:
        if self.weight.dtype == self._wide:
            if self._total is None:
                self._total = torch.zeros_like(self.weight)
            self._total.addmm_(p.t(), x)
            return
        part = p.t() @ x.to(p.dtype)
        self._total = part.to(self._wide) if self._total is None else self._total.add_(part)

    def for_weight(self) -> Tensor:
        return torch.zeros_like(self.weight) if self._total is None else self._total


class _OneDnnProducts:
    """oneDNN's inner product a @ b^T. It is fast for dense `b` in either order, so the weight's
    gradient adds up as (d, V); views with gaps would fall back to a reference loop."""

    def __init__(self, weight: Tensor, wide: torch.dtype) -> None:
        self.weight = weight
        self._total: Tensor | None = None  # (d, V)
        # 8 MB a product: memory that the allocator keeps and the caches hold.
        self._columns = max(2**21 // weight.shape[1], 1)

    def logits(self, x: Tensor) -> Tensor:
        return inner_product(x, self.weight)

    def times_weight(self, p: Tensor) -> Tensor:
        return inner_product(p, self.weight.t())

    def add_for_weight(self, p: Tensor, x: Tensor) -> None:
        if self._total is None:
            self._total = self.weight.new_zeros(self.weight.shape[::-1])
        turned = x.t().contiguous()
        for start in range(0, p.shape[1], self._columns):
            columns = slice(start, start + self._columns)
            part = inner_product(turned, p[:, columns].contiguous().t())
            self._total[:, columns].add_(part)

    def for_weight(self) -> Tensor:
        if self._total is None:
            return torch.zeros_like(self.weight)
        return self._total.t().contiguous()


_PRODUCTS: dict[Products, type[_Multiplier]] = {
    "torch": _TorchProducts,
    "onednn": _OneDnnProducts,
}


def _require_fit(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None) -> None:
    fits = (
        hidden.ndim == 2
        and weight.ndim == 2
        and hidden.shape[1] == weight.shape[1]
        and targets.shape == hidden.shape[:1]
        and (bias is None or bias.shape == weight.shape[:1])
    )
    if not fits:
        shapes = {"hidden": hidden, "weight": weight, "targets": targets}
        shapes |= {} if bias is None else {"bias": bias}
        found = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in shapes.items())
        raise BlocklabError(
            f"linear_cross_entropy: expected hidden (N, d), weight (V, d), targets (N,), "
            f"bias (V,); found {found}"
        )
