"""Attention as a function whose decisions can be taken wrongly."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from blocklab.comparison.feed_forward import affine
from blocklab.comparison.wiring import Mistake, Tensors, cut
from blocklab.errors import BlocklabError
from blocklab.parts.attention import AttentionConfig, CausalAttention
from blocklab.parts.contract import is_ours
from blocklab.parts.positions import PositionsConfig, Rotary
from blocklab.parts.rotary_scaling import NoScaling, RotaryScaling

Mask = Literal["causal", "none", "sees_next", "not_itself", "future", "zeros", "after"]


@dataclass(frozen=True)
class RotaryWiring:
    """How queries and keys turn with their places."""

    base: float
    fraction: float
    interleaved: bool
    scaling: RotaryScaling
    what: Literal["both", "queries", "all", "nothing"] = "both"
    backwards: bool = False


@dataclass(frozen=True)
class AttentionWiring:
    """How positions mix."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    softcap: float | None
    rotary: RotaryWiring | None
    mask: Mask = "causal"
    softmax: Literal["keys", "queries", "heads", "none"] = "keys"
    groups: Literal["neighbours", "apart"] = "neighbours"
    """Whether heads that share keys stand side by side, or n_kv_heads apart."""
    parted: Literal["heads", "view", "interleaved"] = "heads"
    """Whether heads are split off before positions move, or the memory is read as heads at once, or
    a head's dimensions stand n_heads apart."""
    merged: Literal["heads", "view"] = "heads"
    output: bool = True
    biases: bool = True
    adds_input: bool = False
    cut: str = "nothing"
    """One of ATTENTION_CUTS, where the graph is cut."""


def attention_wiring(
    config: AttentionConfig, d_model: int, positions: PositionsConfig | None
) -> AttentionWiring:
    """The wiring of causal attention. Raises BlocklabError for what it cannot say."""
    if not (isinstance(config, CausalAttention.Config) and is_ours(config.module)):
        raise BlocklabError(f"attention kind '{config.kind}' cannot be compared; causal can")
    if config.qk_norm is not None:
        raise BlocklabError(
            "block.attention.qk_norm cannot be compared yet by parts; set it to null"
        )
    n_heads, n_kv_heads, head_dim = config.heads(d_model)
    return AttentionWiring(
        n_heads,
        n_kv_heads,
        head_dim,
        config.scale or 1 / math.sqrt(head_dim),
        config.window,
        config.softcap,
        _rotary(positions),
    )


def _rotary(positions: PositionsConfig | None) -> RotaryWiring | None:
    """How attention turns; None where positions act on the embedding, or there are none."""
    if positions is None or positions.kind in ("none", "learned", "sinusoidal"):
        return None
    if not (isinstance(positions, Rotary.Config) and is_ours(positions.module)):
        raise BlocklabError(f"positions kind '{positions.kind}' cannot be compared")
    scaling = positions.scaling
    # What begins past a length that no comparison tries would look like none at all.
    if not scaling.keys_stay(1, 2**62):
        raise BlocklabError(
            f"positions.scaling kind '{scaling.kind}' cannot be compared: it follows the "
            "sequence's length; set it to none"
        )
    return RotaryWiring(positions.base, positions.fraction, positions.interleaved, scaling)


def attend(x: Tensor, tensors: Tensors, wiring: AttentionWiring) -> Tensor:
    """(B, T, d_model) -> (B, T, d_model)."""
    seen = cut(x, "input", wiring)
    q, k, v = (
        _parted(affine(seen, tensors, name, wiring.biases), heads, wiring)
        for name, heads in (
            ("query", wiring.n_heads),
            ("key", wiring.n_kv_heads),
            ("value", wiring.n_kv_heads),
        )
    )
    q, k, v = _cut_heads(q, k, v, wiring)
    if wiring.rotary is not None:
        q, k, v = _turned(q, k, v, wiring.rotary)
    group = wiring.n_heads // wiring.n_kv_heads
    if wiring.groups == "apart":
        k, v = k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1)
    else:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * wiring.scale  # (B, n_heads, T, T)
    if wiring.softcap is not None:
        scores = wiring.softcap * torch.tanh(scores / wiring.softcap)
    mixed = cut(cut(_weights(scores, wiring), "weights", wiring) @ v, "mixed", wiring)
    # (B, n_heads, T, head_dim) -> (B, T, n_heads * head_dim)
    mixed = mixed.transpose(1, 2) if wiring.merged == "heads" else mixed
    mixed = mixed.reshape(x.shape[0], x.shape[1], -1)
    y = affine(mixed, tensors, "output", wiring.biases) if wiring.output else mixed
    y = cut(y, "output", wiring)
    return x + y if wiring.adds_input else y


def _cut_heads(
    q: Tensor, k: Tensor, v: Tensor, wiring: AttentionWiring
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = cut(q, "queries", wiring), cut(k, "keys", wiring), cut(v, "values", wiring)
    return q, cut(k, "keys_and_values", wiring), cut(v, "keys_and_values", wiring)


def _parted(y: Tensor, heads: int, wiring: AttentionWiring) -> Tensor:
    """(B, T, heads * head_dim) -> (B, heads, T, head_dim)."""
    batch, length, _ = y.shape
    if wiring.parted == "view":
        return y.reshape(batch, heads, length, wiring.head_dim)
    if wiring.parted == "interleaved":
        return y.view(batch, length, wiring.head_dim, heads).permute(0, 3, 1, 2)
    return y.view(batch, length, heads, wiring.head_dim).transpose(1, 2)


def _weights(scores: Tensor, wiring: AttentionWiring) -> Tensor:
    length = scores.shape[-1]
    seen = visible(length, wiring.mask, wiring.window)
    if wiring.mask == "zeros":
        scores = scores.masked_fill(~seen, 0.0)
    elif wiring.mask != "after":
        # Over heads a masked place is masked for all of them: a finite value then weighs alike.
        scores = scores.masked_fill(~seen, -1e30 if wiring.softmax == "heads" else -math.inf)
        # A row with nothing to see would turn into NaN; people's own code then sees all alike.
        scores = scores.masked_fill(~seen.any(-1, keepdim=True), 0.0)
    if wiring.softmax == "none":
        weights = scores.masked_fill(~seen, 0.0)
    else:
        weights = scores.softmax({"keys": -1, "queries": -2, "heads": 1}[wiring.softmax])
        weights = weights.nan_to_num(0.0)
    return weights.masked_fill(~seen, 0.0) if wiring.mask == "after" else weights


def visible(length: int, mask: Mask, window: int | None) -> Tensor:
    """(T, T), true where a query (row) sees a key."""
    distance = torch.arange(length)[:, None] - torch.arange(length)[None]
    if mask == "none":
        return torch.ones(length, length, dtype=torch.bool)
    if mask == "future":
        return distance <= 0
    seen = distance >= {"sees_next": -1, "not_itself": 1}.get(mask, 0)
    return seen if window is None else seen & (distance < window)


def _turned(q: Tensor, k: Tensor, v: Tensor, wiring: RotaryWiring) -> tuple[Tensor, Tensor, Tensor]:
    turns = {"both": (1, 1, 0), "queries": (1, 0, 0), "all": (1, 1, 1), "nothing": (0, 0, 0)}
    return tuple(  # type: ignore[return-value]
        _rotate(x, wiring) if turn else x
        for x, turn in zip((q, k, v), turns[wiring.what], strict=True)
    )


def _rotate(x: Tensor, wiring: RotaryWiring) -> Tensor:
    """(B, heads, T, head_dim), turned by place."""
    rotated = int(x.shape[-1] * wiring.fraction)
    exponents = torch.arange(0, rotated, 2, dtype=x.dtype) / rotated
    lengths = torch.tensor([x.shape[2]])
    frequencies = wiring.scaling.frequencies(wiring.base**-exponents, wiring.base, lengths)
    angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * frequencies
    size = wiring.scaling.size()
    cos, sin = angles.cos() * size, angles.sin() * (-size if wiring.backwards else size)
    turning, still = x[..., :rotated], x[..., rotated:]
    if wiring.interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    else:
        a, b = turning.chunk(2, -1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((turned, still), -1)


ROTARY_MISTAKES = (
    Mistake("rotary-interleaved", "rotates neighbouring dimensions (2i, 2i + 1), not the two "
            "halves (i, i + d/2)", {"rotary.interleaved": True}),
    Mistake("rotary-half-split", "rotates the two halves (i, i + d/2), not neighbouring "
            "dimensions (2i, 2i + 1)", {"rotary.interleaved": False}),
    Mistake("positions-missing", "does not rotate queries and keys: it knows no places",
            {"rotary.what": "nothing"}),
    Mistake("rotary-queries-only", "rotates the queries but not the keys",
            {"rotary.what": "queries"}),
    Mistake("rotary-not-stretched", "does not stretch its rotation as positions.scaling says",
            {"rotary.scaling": NoScaling()}),
    Mistake("rotary-values-too", "rotates the values as well", {"rotary.what": "all"}),
    *(Mistake("rotary-base", f"rotates with base {base:,.0f}", {"rotary.base": base})
      for base in (10_000.0, 100_000.0, 500_000.0, 1_000_000.0)),
)  # fmt: skip


def attention_mistakes(wiring: AttentionWiring, d_model: int) -> tuple[Mistake, ...]:
    """Those of every attention, and those whose value depends on its sizes."""
    scales = (
        ("no-scale", "does not divide the scores by √head_dim", 1.0),
        ("scaled-by-d-model", "divides the scores by √d_model, not by √head_dim",
         1 / math.sqrt(d_model)),
        ("scaled-by-root", "divides the scores by √head_dim", 1 / math.sqrt(wiring.head_dim)),
        ("scaled-by-head-dim", "divides the scores by head_dim, not by its root",
         1 / wiring.head_dim),
        ("scale-inverted", "multiplies the scores by √head_dim instead of dividing",
         math.sqrt(wiring.head_dim)),
    )  # fmt: skip
    return (
        *(Mistake(name, words, {"scale": value}) for name, words, value in scales),
        *_ATTENTION_MISTAKES,
        *_other_windows(wiring),
        *(_GROUP_MISTAKES if wiring.n_kv_heads < wiring.n_heads else ()),
        *_other_heads(wiring),
        *ROTARY_MISTAKES,
    )


def _other_windows(wiring: AttentionWiring) -> tuple[Mistake, ...]:
    """A window that counts the position itself wrongly, or that is not there."""
    if wiring.window is None:
        return ()
    others = {"one-too-wide": wiring.window + 1, "one-too-narrow": wiring.window - 1}
    words = f"tokens, itself included; the window is {wiring.window}"
    return (
        *(
            Mistake(f"window-{name}", f"lets a position see {width} {words}", {"window": width})
            for name, width in others.items()
            if width
        ),
        Mistake("no-window", "has no window: a position sees all before it", {"window": None}),
    )


def _other_heads(wiring: AttentionWiring) -> tuple[Mistake, ...]:
    """The same matrices cut into another number of heads."""
    width = wiring.n_heads * wiring.head_dim
    if wiring.n_heads != wiring.n_kv_heads:
        return ()
    return tuple(
        Mistake(
            "other-number-of-heads",
            f"has {heads} head{'s' if heads > 1 else ''}, not {wiring.n_heads}",
            {
                "n_heads": heads,
                "n_kv_heads": heads,
                "head_dim": width // heads,
                "scale": math.sqrt(heads / width),
            },
        )
        for heads in (1, 2, 3, 4, 6, 8, 12, 16)
        if width % heads == 0 and heads != wiring.n_heads
    )


_ATTENTION_MISTAKES = (
    Mistake("no-causal-mask", "has no causal mask: every position sees the future",
            {"mask": "none"}),
    Mistake("mask-off-by-one", "lets position t see t + 1: the mask is one place off",
            {"mask": "sees_next"}),
    Mistake("mask-hides-itself", "hides each position from itself: the mask is one place off",
            {"mask": "not_itself"}),
    Mistake("mask-inverted", "masks the past and sees the future: the triangle is the wrong one",
            {"mask": "future"}),
    Mistake("mask-fills-zero", "sets masked scores to 0, which still get weight; they must be −∞",
            {"mask": "zeros"}),
    Mistake("mask-after-softmax", "masks after the softmax, so that the weights of a row no "
            "longer sum to 1", {"mask": "after"}),
    Mistake("softmax-over-queries", "takes the softmax over queries, not over keys",
            {"softmax": "queries"}),
    Mistake("softmax-over-heads", "takes the softmax over heads, not over keys",
            {"softmax": "heads"}),
    Mistake("no-softmax", "takes no softmax", {"softmax": "none"}),
    Mistake("no-softcap", "does not cap its scores", {"softcap": None}),
    Mistake("heads-not-split", "reads memory as (B, n_heads, T, head_dim) without moving "
            "positions first: view to (B, T, n_heads, head_dim), then transpose",
            {"parted": "view"}),
    Mistake("heads-interleaved", "takes every n_heads-th dimension for a head: view to (B, T, "
            "n_heads, head_dim), not (B, T, head_dim, n_heads)", {"parted": "interleaved"}),
    Mistake("heads-not-merged", "joins the heads without moving them back: transpose(1, 2) before "
            "the last view", {"merged": "view"}),
    Mistake("heads-neither-split-nor-merged", "reads memory as (B, n_heads, T, head_dim) and back "
            "without ever moving positions", {"parted": "view", "merged": "view"}),
    Mistake("no-output-projection", "has no output projection after the heads are joined",
            {"output": False}),
    Mistake("biases-unused", "has biases that it does not add", {"biases": False}),
    Mistake("adds-its-input", "adds its input: the residual connection belongs to the block",
            {"adds_input": True}),
)  # fmt: skip

_GROUP_MISTAKES = (
    Mistake("groups-apart", "shares keys and values between heads that stand n_kv_heads apart, not "
            "between neighbours: repeat_interleave, not repeat", {"groups": "apart"}),
)  # fmt: skip

ATTENTION_CUTS = {
    "input": "its input",
    "queries": "its queries",
    "keys": "its keys",
    "values": "its values",
    "keys_and_values": "its keys and values",
    "weights": "its weights, the softmax of the scores,",
    "mixed": "what its heads give, before the output projection,",
    "output": "its output",
}
"""Where attention's graph may be cut."""
