"""Products of a few rows with a weight, as a compiler is shown them.

Their time is that of reading the weight. Up to four rows each row of the weight is read once and
summed with all of them, where it lies; more rows are left to oneDNN, and may be given weights that
were laid out anew for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor

BY_SUMS = 4
"""Rows up to which sums are faster.

Measured on a Zen 5 with two threads, 135 million weights in float32 and bf16, milliseconds a step:
4 rows 16.3 and 8.8 by sums, 17.4 and 9.6 by oneDNN; 8 rows 30 and 20 by sums, 19 and 12 by oneDNN.
"""

_handed_out: ContextVar[list[Tensor] | None] = ContextVar("values handed out", default=None)

_operators = torch.library.Library("blocklab", "FRAGMENT")  # type: ignore[no-untyped-call]
_operators.define(  # type: ignore[no-untyped-call]
    "few_rows(Tensor x, Tensor weight, Tensor? bias) -> Tensor"
)


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """PyTorch compiles oneDNN's own operator with constant weights only; ours with any."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return product


def _shaped(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


_operators.impl("few_rows", _by_onednn, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
_operators.impl("few_rows", _shaped, "Meta")  # type: ignore[no-untyped-call]


@contextmanager
def few_rows() -> Iterator[list[Tensor]]:
    """Inside, what is traced multiplies few rows.

    Gives a list of values that the code must hand out beside its results: a compiler computes once
    what is handed out, and anew for each row of a weight, a norm three thousand times, what is not.
    """
    values: list[Tensor] = []
    token = _handed_out.set(values)
    try:
        yield values
    finally:
        _handed_out.reset(token)


def are_traced() -> bool:
    """Whether few rows are being traced. Not asked by a compiler that reads Python itself."""
    return not torch.compiler.is_dynamo_compiling() and _handed_out.get() is not None


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b for few rows (..., d_in) -> (..., d_out), while they are traced."""
    n_rows = x.shape[:-1].numel()
    if n_rows <= BY_SUMS:
        return _by_sums(x, weight, bias)
    if weight.dtype in (torch.float32, torch.bfloat16):
        rows: Tensor = torch.ops.blocklab.few_rows(x.reshape(n_rows, -1), weight, bias)
        return rows.view(*x.shape[:-1], -1)
    return F.linear(x, weight, bias)


def _by_sums(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    rows = x.reshape(-1, x.shape[-1]).to(wide)
    values = _handed_out.get()
    assert values is not None
    values.append(rows)
    y = torch.stack([(weight.to(wide) * row).sum(-1) for row in rows.unbind()])
    if bias is not None:
        y = y + bias
    return y.to(x.dtype).view(*x.shape[:-1], -1)
