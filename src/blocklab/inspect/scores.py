"""The scores that enter an attention's softmax, read some queries at a time.

They are read off the softmax itself, whoever takes it: torch's fused attention or a part of the
user's own that calls softmax. What is to be known of them is said by a function of `Scores`; of
those inside the fused attention it is given no more than a few queries' at once.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from blocklab.inspect.recording import watched, wide
from blocklab.model.transformer import Transformer
from blocklab.parts.linear import in_plain_torch

HELD = 2**18
"""Scores of a block of queries, of all sequences and heads together: in float32 1 MiB, which a
core's own cache holds. Measured on Zen 5."""

FEWEST = 16
"""Queries of a block at least: a product of fewer rows spends its time reading the keys."""

Found = TypeVar("Found")


@dataclass(frozen=True)
class Scores:
    """The masked scores (B, n_heads, T, S) of one softmax, in at least float32."""

    shape: tuple[int, ...]
    _of_queries: Callable[[int, int], Tensor]

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """A block's first query and its scores (B, n_heads, queries, keys), in order.

        Minus infinity where a key is not visible; keys after the last that any query of the block
        may see can be left out. Made anew each time. A block holds `HELD` scores at most, or those
        of `FEWEST` queries.
        """
        *leading, n_queries, n_keys = self.shape
        rows = max(FEWEST, HELD // max(1, math.prod(leading) * n_keys))
        for start in range(0, n_queries, rows):
            yield start, self._of_queries(start, min(start + rows, n_queries))

    def largest(self) -> Tensor:
        """The largest visible score, a scalar."""
        return torch.stack([block.amax() for _, block in self.blocks()]).amax()


@contextmanager
def watching_scores(
    model: Transformer, read: Callable[[Scores], Found]
) -> Iterator[list[Found | None]]:
    """What `read` makes of each block's scores in the forward pass inside, without dropout.

    One entry a block, filled as the pass leaves its attention; None where that takes no softmax
    over keys. Of several softmaxes the last counts.
    """
    found: list[Found | None] = [None] * len(model.blocks)
    softmax = _Softmax(read)

    def entering(_: tuple[Any, ...]) -> None:
        softmax.last, softmax.inside = None, True

    def leaving(block: int) -> Callable[[tuple[Any, ...], Tensor], None]:
        def after(_: tuple[Any, ...], __: Tensor) -> None:
            found[block], softmax.last, softmax.inside = softmax.last, None, False

        return after

    # A router inside the feed-forward takes a softmax too: only attention's own are meant.
    paths = [
        f"blocks.{i}.attention" if hasattr(block, "attention") else f"blocks.{i}"
        for i, block in enumerate(model.blocks)
    ]
    before = dict.fromkeys(paths, entering)
    after = {path: leaving(block) for block, path in enumerate(paths)}
    # Our own attention takes its softmax out of sight, unless it may only use PyTorch's functions.
    with watched(model, before=before, after=after), softmax, in_plain_torch():
        yield found


class _Softmax(TorchFunctionMode, Generic[Found]):
    """Reads the scores of every softmax over keys that is taken while it is `inside` attention.

    Those are of four dimensions, (B, n_heads, T, S).
    """

    def __init__(self, read: Callable[[Scores], Found]) -> None:
        super().__init__()
        self.last: Found | None = None
        self.inside = False
        self._read = read

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        # Before the softmax: afterwards its inputs may have been overwritten.
        if self.inside and name == "scaled_dot_product_attention":
            self._read_if_by_head(fused_scores(*args, **given))
        elif self.inside and name == "softmax":
            self._read_if_by_head(given_scores(args[0] if args else given["input"]))
        return func(*args, **given)

    def _read_if_by_head(self, scores: Scores) -> None:
        if len(scores.shape) == 4:
            self.last = self._read(scores)


def given_scores(scores: Tensor) -> Scores:
    """Scores (B, n_heads, T, S) that somebody holds already, masks applied."""
    scores = scores.detach()
    return Scores(tuple(scores.shape), lambda start, end: wide(scores[..., start:end, :]))


def fused_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Scores:
    """The scores inside torch's fused attention, whose arguments these are, masks applied.

    Each block's are computed when it is asked for, at least in float32.
    """
    n_queries, n_keys = query.shape[-2], key.shape[-2]
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])  # type: ignore[no-untyped-call]
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    # Once here: every block's product would copy what does not lie in one piece.
    queries, keys = (wide(x.detach()).contiguous() for x in (query, key))

    def of_queries(start: int, end: int) -> Tensor:
        # What causality hides after the last query need not be computed.
        last = min(end, n_keys) if is_causal else n_keys
        products = queries[..., start:end, :] @ keys[..., :last, :].transpose(-1, -2)
        return _masked(products.mul_(factor), start, attn_mask, is_causal)

    return Scores((*leading, n_queries, n_keys), of_queries)


def _masked(scores: Tensor, start: int, mask: Tensor | None, is_causal: bool) -> Tensor:
    """Scores (..., queries, keys) of the queries from `start` on, masked in place as torch does."""
    rows = scores.shape[-2]
    if is_causal:
        own = scores[..., start:]  # keys that some query of the block may not see
        later = torch.ones(own.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        own.masked_fill_(later, -math.inf)
        return scores
    if mask is None:
        return scores
    if mask.ndim > 1 and mask.shape[-2] > 1:
        mask = mask[..., start : start + rows, :]
    if mask.dtype == torch.bool:
        return scores.masked_fill_(~mask, -math.inf)
    return scores.add_(mask)
