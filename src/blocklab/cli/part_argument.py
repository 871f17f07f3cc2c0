"""What PART means on the command line: the record of a part, or of a small whole model."""

import math
from collections.abc import Mapping
from typing import Any

from blocklab.cli.model_argument import model_config
from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.parts.attention import AttentionConfig, CausalAttention
from blocklab.parts.feed_forward import FeedForwardConfig
from blocklab.parts.norm import NormConfig
from blocklab.parts.part import PartConfig
from blocklab.record import with_changes

SLOTS: dict[str, type[PartConfig]] = {
    "norm": NormConfig,
    "feed_forward": FeedForwardConfig,
    "attention": AttentionConfig,
}

VOCABULARY, CONTEXT = 101, 32
"""Of the small models that whole ones are compared by; no other size of theirs is the same."""


def named_part(
    name: str, changes: Mapping[str, Any], d_model: int, n_heads: int, n_layers: int
) -> PartConfig | ModelConfig:
    """The record that PART names, changed. Raises BlocklabError when it names none."""
    slot, dot, kind = name.replace("-", "_").partition(".")
    if slot in SLOTS:
        base = SLOTS[slot]
        record = base.parse({"kind": kind if dot else base.default_kind}, at=slot)
        if slot == "attention":
            record = with_changes(record, {"n_heads": n_heads}, at=slot)
        return with_changes(record, changes, at=slot)
    try:
        config = model_config(name)
    except BlocklabError as error:
        parts = ", ".join(f"{one}.KIND" for one in SLOTS)
        raise BlocklabError(f"{error}; as a part: {parts}") from None
    small = {
        "d_model": d_model,
        "n_layers": n_layers,
        "vocab_size": VOCABULARY,
        "context_length": CONTEXT,
        "dropout": 0.0,
        "block.attention.n_heads": n_heads,
        "block.attention.n_kv_heads": None,
    }
    return config.with_changes(small | _following(config, d_model, n_heads) | dict(changes))


def _following(config: ModelConfig, d_model: int, n_heads: int) -> dict[str, Any]:
    """Widths and factors that a record fixes for its own size, left to the rules of a small one."""
    found: dict[str, Any] = {}
    if config.embedding.scale and math.isclose(config.embedding.scale, config.d_model**0.5):
        found["embedding.scale"] = d_model**0.5
    feed_forward = getattr(config.block, "feed_forward", None)
    if d_model != config.d_model and getattr(feed_forward, "d_ff", None) is not None:
        found["block.feed_forward.d_ff"] = None
    attention = getattr(config.block, "attention", None)
    if not isinstance(attention, CausalAttention.Config):
        return found
    if (d_model, n_heads) != (config.d_model, attention.n_heads):
        found["block.attention.head_dim"] = None
    head_dim = attention.heads(config.d_model)[2]
    if attention.scale and math.isclose(attention.scale, head_dim**-0.5):
        found["block.attention.scale"] = None
    return found


def sizes_of(config: PartConfig | ModelConfig, d_model: int) -> dict[str, Any]:
    """The record's sizes under our words, for a learner's constructor."""
    sizes: dict[str, Any] = {"d_model": d_model, "dropout": 0.0, "context_length": CONTEXT}
    if isinstance(config, ModelConfig):
        sizes |= {
            "n_layers": config.n_layers,
            "vocab_size": config.rows,
            "context_length": config.context_length,
        }
        block: Any = config.block
        return sizes | _of_part(block.attention, d_model) | _of_part(block.feed_forward, d_model)
    return sizes | _of_part(config, d_model)


def _of_part(config: PartConfig, d_model: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for ours, field in (("bias", "bias"), ("eps", "eps"), ("qkv_bias", "qkv_bias")):
        value = getattr(config, field, None)
        if value is not None:
            found[ours] = value
    heads = getattr(config, "heads", None)
    if heads is not None:
        n_heads, n_kv_heads, head_dim = heads(d_model)
        found |= {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim}
    if isinstance(config, FeedForwardConfig):
        found["d_ff"] = config.width(d_model)
    return found
