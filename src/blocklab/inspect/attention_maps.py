"""Where attention looks: the maps, how spread each head is, how large its scores become.

Scores are read off the softmax itself, whoever takes it: torch's fused attention or a part of the
user's own that calls softmax. An attention without a softmax has no map.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from blocklab.inspect.recording import watched, wide
from blocklab.model.transformer import Transformer
from blocklab.parts.linear import in_plain_torch


@dataclass(frozen=True)
class HeadMeasures:
    """One block's heads over a batch; a tuple has one number a head."""

    entropy: tuple[float, ...]
    """Mean entropy of a query's weights, nats; 0 looks at one key."""
    uniform_entropy: float
    """What the same mean would be if every visible key got the same weight."""
    largest_logit: tuple[float, ...]
    """Largest score that enters the softmax, over visible keys."""
    first_key: tuple[float, ...]
    """Mean weight that queries after the first give to the first key (an attention sink)."""
    previous_key: tuple[float, ...]
    """Mean weight that queries after the first give to the key just before them."""


def attention_maps(model: Transformer, tokens: Tensor) -> list[Tensor | None]:
    """Each block's attention weights (B, n_heads, T, T) for `tokens` (B, T), without dropout.

    Row t of a map is what position t takes from each position; None where a block's attention
    takes no softmax over keys.
    """
    maps: list[Tensor | None] = [None] * len(model.blocks)

    def keep(block: int, scores: Tensor) -> None:
        maps[block] = scores.softmax(-1)

    _watch_scores(model, tokens, keep)
    return maps


def head_measures(model: Transformer, tokens: Tensor) -> list[HeadMeasures | None]:
    """Entropy, largest logit and two habits of every head, on `tokens` (B, T), without dropout."""
    found: list[HeadMeasures | None] = [None] * len(model.blocks)

    def measure(block: int, scores: Tensor) -> None:
        found[block] = _measured(scores)

    _watch_scores(model, tokens, measure)
    return found


def _measured(scores: Tensor) -> HeadMeasures:
    """The measures of scores (B, n_heads, T, S), minus infinity where a key is not visible."""
    weights = scores.softmax(-1)
    entropy = torch.special.entr(weights).sum(-1)  # (B, n_heads, T)
    visible = scores.isfinite().sum(-1)
    later = weights[:, :, 1:]
    previous = later.diagonal(dim1=-2, dim2=-1)  # (B, n_heads, T - 1)
    return HeadMeasures(
        entropy=_by_head(entropy.mean((0, 2))),
        uniform_entropy=float(visible.to(scores.dtype).log().mean()),
        largest_logit=_by_head(scores.amax((0, 2, 3))),
        first_key=_by_head(later[..., 0].mean((0, 2))),
        previous_key=_by_head(previous.mean((0, 2))),
    )


def _by_head(values: Tensor) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _watch_scores(model: Transformer, tokens: Tensor, use: Callable[[int, Tensor], None]) -> None:
    with watching_scores(model, use):
        model.features(tokens)


@contextmanager
def watching_scores(model: Transformer, use: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Tell `use` each block's masked scores (B, n_heads, T, S), in at least float32."""
    scores = _Scores()

    def entering(_: tuple[Any, ...]) -> None:
        scores.last = None

    def leaving(block: int) -> Callable[[tuple[Any, ...], Tensor], None]:
        def after(_: tuple[Any, ...], __: Tensor) -> None:
            if scores.last is not None:
                use(block, scores.last)
            scores.last = None

        return after

    # A router inside the feed-forward takes a softmax too: only attention's own are meant.
    paths = [
        f"blocks.{i}.attention" if hasattr(block, "attention") else f"blocks.{i}"
        for i, block in enumerate(model.blocks)
    ]
    before = dict.fromkeys(paths, entering)
    after = {path: leaving(block) for block, path in enumerate(paths)}
    # Our own attention takes its softmax out of sight, unless it may only use PyTorch's functions.
    with watched(model, before=before, after=after), scores, in_plain_torch():
        yield


class _Scores(TorchFunctionMode):
    """Keeps the scores of the last softmax over keys that is taken while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            self.last = fused_scores(*args, **given)
        elif name == "softmax":
            scores = args[0] if args else given["input"]
            if scores.ndim == 4:
                self.last = wide(scores.detach())
        return func(*args, **given)


def fused_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The scores inside torch's fused attention, whose arguments these are, masks applied.

    (B, n_heads, T, S) in at least float32; minus infinity where a key is not visible.
    """
    n_queries, n_keys = query.shape[-2], key.shape[-2]
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = wide(query) @ wide(key).transpose(-1, -2) * factor
    if is_causal:
        seen = torch.ones(n_queries, n_keys, dtype=torch.bool, device=query.device).tril()
        return scores.masked_fill(~seen, -math.inf)
    if attn_mask is None:
        return scores
    if attn_mask.dtype == torch.bool:
        return scores.masked_fill(~attn_mask, -math.inf)
    return scores + attn_mask
