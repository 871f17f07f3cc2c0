"""A whole GPT as a function whose decisions can be taken wrongly."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from blocklab.comparison.attention import (
    ATTENTION_CUTS,
    AttentionWiring,
    attend,
    attention_mistakes,
    attention_wiring,
)
from blocklab.comparison.feed_forward import (
    FEED_FORWARD_CUTS,
    FEED_FORWARD_MISTAKES,
    FeedForwardWiring,
    feed,
    feed_forward_wiring,
)
from blocklab.comparison.norm import (
    NORM_CUTS,
    NORM_MISTAKES,
    NormWiring,
    norm_wiring,
    normalise,
)
from blocklab.comparison.wiring import Mistake, Tensors, cut, cuts, under, within
from blocklab.errors import BlocklabError
from blocklab.model.block import StandardBlock
from blocklab.model.config import ModelConfig
from blocklab.model.sublayer import Placement
from blocklab.parts.contract import is_ours
from blocklab.parts.positions import LearnedPositions, SinusoidalPositions

_SINUSOID_BASE = 10_000.0

Joined = Literal["add", "none", "normed", "attention_only", "feed_forward_only"]


@dataclass(frozen=True)
class TransformerWiring:
    """How a decoder-only model is put together."""

    norm: NormWiring | None
    attention: AttentionWiring
    feed_forward: FeedForwardWiring
    placement: Placement
    residual: Joined
    final_norm: NormWiring | None
    positions: Literal["learned", "sinusoidal", "none"]
    n_layers: int
    embedding_scale: float
    head: Literal["tied", "own"]
    first_place: int = 0
    sinusoid_base: float = _SINUSOID_BASE
    order: Literal["attention_first", "feed_forward_first", "together"] = "attention_first"
    shared_norm: bool = False
    answer: Literal["logits", "probabilities", "log_probabilities"] = "logits"
    final_normed: bool = True
    head_bias: bool = True
    cut: str = "nothing"
    """One of TRANSFORMER_CUTS, where the graph is cut."""


def transformer_wiring(config: ModelConfig) -> TransformerWiring:
    """The wiring of a config. Raises BlocklabError for what it cannot say."""
    block = config.block
    if not (isinstance(block, StandardBlock.Config) and is_ours(block.module)):
        raise BlocklabError(f"block kind '{block.kind}' cannot be compared; standard can")
    if config.layers or block.parallel != "off":
        raise BlocklabError("only models of equal standard blocks in series can be compared")
    if block.residual.kind not in ("add", "none"):
        raise BlocklabError(f"residual kind '{block.residual.kind}' cannot be compared")
    if block.placement not in ("pre", "post"):
        raise BlocklabError(f"placement '{block.placement}' cannot be compared; pre and post can")
    if config.head.scale or config.head.softcap:
        raise BlocklabError("head.scale and head.softcap cannot be compared; set them to null")
    added = {LearnedPositions.Config: "learned", SinusoidalPositions.Config: "sinusoidal"}
    return TransformerWiring(
        norm=norm_wiring(block.norm),
        attention=attention_wiring(block.attention, config.d_model, config.positions),
        feed_forward=feed_forward_wiring(block.feed_forward),
        placement=block.placement,
        residual="add" if block.residual.kind == "add" else "none",
        final_norm=norm_wiring(config.norm_at_the_end),
        positions=added.get(type(config.positions), "none"),  # type: ignore[arg-type]
        n_layers=config.n_layers,
        embedding_scale=config.embedding_scale,
        head="tied" if config.tie_embeddings else "own",
        sinusoid_base=(
            config.positions.base
            if isinstance(config.positions, SinusoidalPositions.Config)
            else _SINUSOID_BASE
        ),
    )


def transform(tokens: Tensor, tensors: Tensors, wiring: TransformerWiring) -> Tensor:
    """Logits (B, T, vocab_size) of tokens (B, T)."""
    x = F.embedding(tokens, tensors["embedding.weight"]) * wiring.embedding_scale
    places = _places(tokens.shape[1], tensors, wiring, x)
    x = cut(x, "embedding", wiring) + cut(places, "positions", wiring)
    for i in range(wiring.n_layers):
        x = _block(cut(x, "stream_into_blocks", wiring), under(tensors, f"blocks.{i}"), wiring)
    x = cut(x, "stream_into_head", wiring)
    if wiring.final_norm is not None and wiring.final_normed:
        x = normalise(x, under(tensors, "final_norm"), wiring.final_norm)
    own = wiring.head == "own" and "head.weight" in tensors
    bias = tensors.get("head.bias") if wiring.head_bias else None
    table = cut(tensors["head.weight" if own else "embedding.weight"], "head", wiring)
    logits = F.linear(x, table, bias)
    if wiring.answer == "logits":
        return logits
    return logits.softmax(-1) if wiring.answer == "probabilities" else logits.log_softmax(-1)


def _places(length: int, tensors: Tensors, wiring: TransformerWiring, x: Tensor) -> Tensor:
    if wiring.positions == "none":
        return x.new_zeros(())
    places = torch.arange(wiring.first_place, wiring.first_place + length)
    if wiring.positions == "sinusoidal":
        d = x.shape[-1]
        exponents = torch.arange(0, d, 2, dtype=x.dtype) / d
        angles = places[:, None] * wiring.sinusoid_base**-exponents
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)
    table = tensors["positions.weight"]
    return table[places.clamp(max=len(table) - 1)]


def _block(x: Tensor, tensors: Tensors, wiring: TransformerWiring) -> Tensor:
    names = ["attention", "feed_forward"]
    if wiring.order == "feed_forward_first":
        names.reverse()
    if wiring.order == "together":
        return x + sum(_sublayer(name, x, tensors, wiring) - x for name in names)
    for name in names:
        x = _sublayer(name, x, tensors, wiring)
    return x


def _sublayer(name: str, x: Tensor, tensors: Tensors, wiring: TransformerWiring) -> Tensor:
    def norm(h: Tensor) -> Tensor:
        if wiring.norm is None:
            return h
        which = "attention" if wiring.shared_norm else name
        return normalise(h, under(tensors, f"norm.{which}"), wiring.norm)

    def branch(h: Tensor) -> Tensor:
        if name == "attention":
            return attend(h, under(tensors, "attention"), wiring.attention)
        return feed(h, under(tensors, "feed_forward"), wiring.feed_forward)

    h = norm(x) if wiring.placement == "pre" else x
    if wiring.cut in ("residual", f"residual_at_{name}"):
        x = x.detach()
    added = norm(branch(h)) if wiring.placement == "output" else branch(h)
    joined = wiring.residual
    if joined == "normed":
        y = h + added
    elif joined == "add" or joined == f"{name}_only":
        y = x + added
    else:
        y = added
    return norm(y) if wiring.placement == "post" else y


_TRANSFORMER_MISTAKES = (
    Mistake("placement-post", "normalises after each sublayer (post-norm), not before it",
            {"placement": "post"}),
    Mistake("placement-pre", "normalises before each sublayer (pre-norm), not after it",
            {"placement": "pre"}),
    Mistake("placement-output", "normalises what each sublayer gives (x + norm(f(x))), not what it "
            "is given", {"placement": "output"}),
    Mistake("residual-missing", "has no residual connections", {"residual": "none"}),
    Mistake("residual-there", "has residual connections", {"residual": "add"}),
    Mistake("residual-missing-at-feed-forward", "has no residual connection around the "
            "feed-forward", {"residual": "attention_only"}),
    Mistake("residual-missing-at-attention", "has no residual connection around attention",
            {"residual": "feed_forward_only"}),
    Mistake("residual-of-the-normed", "adds the branch to the normed stream (x = norm(x); "
            "x + f(x)), not to the stream itself", {"residual": "normed"}),
    Mistake("no-final-norm", "has no norm before the head", {"final_normed": False}),
    Mistake("positions-missing", "adds no position embedding", {"positions": "none"}),
    Mistake("positions-from-one", "counts positions from 1, not from 0",
            {"first_place": 1}),
    Mistake("positions-sinusoidal", "adds sinusoidal positions", {"positions": "sinusoidal"}),
    Mistake("head-not-tied", "has a head of its own: it is not the embedding's table",
            {"head": "own"}),
    Mistake("head-tied", "uses the embedding's table as its head", {"head": "tied"}),
    Mistake("embedding-not-scaled", "does not scale its embeddings", {"embedding_scale": 1.0}),
    Mistake("feed-forward-first", "runs the feed-forward before attention",
            {"order": "feed_forward_first"}),
    Mistake("sublayers-in-parallel", "runs attention and feed-forward on the same stream, side by "
            "side, not one after the other", {"order": "together"}),
    Mistake("one-norm-for-both", "uses one norm for both sublayers", {"shared_norm": True}),
    Mistake("answers-probabilities", "gives probabilities (a softmax), not logits",
            {"answer": "probabilities"}),
    Mistake("answers-log-probabilities", "gives log-probabilities, not logits",
            {"answer": "log_probabilities"}),
    Mistake("head-bias-unused", "has a head's bias that it does not add", {"head_bias": False}),
)  # fmt: skip


def transformer_mistakes(wiring: TransformerWiring, d_model: int) -> tuple[Mistake, ...]:
    """Those of the whole, then those of its parts."""
    scaled = Mistake(
        "embedding-scaled",
        "multiplies its embeddings by √d_model",
        {"embedding_scale": d_model**0.5},
    )
    norms = tuple(
        Mistake(m.name, m.words, {f"{place}.{path}": value for place in ("norm", "final_norm")
                                  for path, value in m.changes.items()})
        for m in NORM_MISTAKES
    )  # fmt: skip
    base = Mistake(
        "sinusoid-base",
        f"adds sinusoidal positions of base {_SINUSOID_BASE:,.0f}, not {wiring.sinusoid_base:,g}",
        {"sinusoid_base": _SINUSOID_BASE},
    )
    last = Mistake("final-norm-there", "has a norm before the head", {"final_norm": wiring.norm})
    return (
        *_TRANSFORMER_MISTAKES,
        scaled,
        base,
        *([last] if wiring.final_norm is None else ()),
        *within("attention", attention_mistakes(wiring.attention, d_model)),
        *within("feed_forward", FEED_FORWARD_MISTAKES),
        *(norms if wiring.final_norm is not None else within("norm", NORM_MISTAKES)),
    )


TRANSFORMER_CUTS = {
    "embedding": "its embeddings",
    "positions": "its positions",
    "stream_into_blocks": "the stream that goes into each block",
    "residual": "the residual stream beside each sublayer",
    "residual_at_attention": "the residual stream beside attention",
    "residual_at_feed_forward": "the residual stream beside the feed-forward",
    "stream_into_head": "the stream that goes into the head",
    "head": "the head's table",
}
"""Where a whole model's graph may be cut."""


def transformer_cuts(wiring: TransformerWiring) -> tuple[Mistake, ...]:
    """Those of the whole, then those of its parts."""
    norms = ("norm.", "final_norm.")
    ways = (norms, *((norm,) for norm in norms)) if wiring.final_norm else (norms[:1],)
    return (
        *cuts("", TRANSFORMER_CUTS),
        *(mistake for way in ways for mistake in cuts("", NORM_CUTS, way)),
        *cuts("attention-", ATTENTION_CUTS, ("attention.",)),
        *cuts("feed-forward-", FEED_FORWARD_CUTS, ("feed_forward.",)),
    )
