"""What a config means, so that two that are written differently can be compared.

Derived sizes are resolved, layer exceptions applied, and what changes no logit left out: dropout,
first values, and choices that the rest of the config makes void.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from blocklab.model.config import ModelConfig
from blocklab.model.layers import Layer
from blocklab.parts.attention import CausalAttention
from blocklab.parts.experts import Experts
from blocklab.parts.feed_forward import FeedForwardConfig
from blocklab.parts.norm import NormConfig
from blocklab.parts.part import PartConfig
from blocklab.parts.positions import Rotary
from blocklab.record import Value

Meaning: TypeAlias = dict[str, Value]
"""Dotted path -> value, as a user would write it."""


def meaning(config: ModelConfig) -> dict[int | None, Meaning]:
    """For the whole model under None, and for every layer by index, what it means."""
    whole: Meaning = {
        "vocab_size": config.rows,
        "context_length": config.context_length,
        "d_model": config.d_model,
        "n_layers": config.n_layers,
        "tie_embeddings": config.tie_embeddings,
        "embedding.scale": config.embedding_scale,
        "head.bias": config.head.bias,
        "head.scale": config.head.scale or 1.0,
        "head.softcap": config.head.softcap,
        **_flat("final_norm", config.norm_at_the_end.plain()),
    }
    known: dict[str, Meaning] = {}
    found: dict[int | None, Meaning] = {None: whole}
    for index in range(config.n_layers):
        layer = config.layer(index)
        key = layer.model_dump_json(serialize_as_any=True)
        if key not in known:
            block = _flat("block", _resolved(layer.block, config.d_model))
            known[key] = block | _flat("positions", _resolved(layer.positions, config.d_model))
        found[index] = known[key]
    return found


def differences(one: ModelConfig, other: ModelConfig) -> list[str]:
    """Where two configs do not mean the same: `path value`, with the layer where one differs."""
    here, there = meaning(one), meaning(other)
    found: dict[str, str] = {}
    for index, said in here.items():
        others = there.get(index, {})
        for path in said:
            if path not in others or said[path] != others[path]:
                layer = "" if index is None else f" in layer {index}"
                found.setdefault(path, f"{path} ({said[path]!r}{layer})")
    return list(found.values())


def nearest_layer(config: ModelConfig, required: Mapping[str, Value]) -> tuple[int, list[str]]:
    """The first of the layers that have most of what a family requires, and what it lacks."""
    lacking = {
        index: [
            f"{path} ({said.get(path)!r}, not {value!r})"
            for path, value in required.items()
            if said.get(path) != value
        ]
        for index, said in meaning(config).items()
        if index is not None
    }
    return min(lacking.items(), key=lambda item: len(item[1]))


def told_from(config: ModelConfig, index: int) -> ModelConfig:
    """The same model: what layer `index` has is stated, and every layer that differs excepted."""
    stated = config.layer(index)
    if stated == Layer(block=config.block, positions=config.positions):
        return config
    layers = [(i, config.layer(i)) for i in range(config.n_layers)]
    told = {
        **stated.plain(),
        "final_norm": config.norm_at_the_end.plain(),
        "layers": [{"at": str(i), **layer.plain()} for i, layer in layers if layer != stated],
    }
    return ModelConfig.parse(config.plain() | told)


def _flat(path: str, value: Value) -> Meaning:
    if isinstance(value, Mapping):
        flat: Meaning = {}
        for key, inner in value.items():
            flat |= _flat(f"{path}.{key}", inner)
        return flat
    return {path: value}


def _resolved(record: PartConfig, d_model: int) -> dict[str, Any]:
    """The record with derived sizes filled in and void choices left out."""
    said: dict[str, Any] = record.plain()
    for name in type(record).model_fields:
        inner = getattr(record, name)
        if isinstance(inner, PartConfig) and not isinstance(inner, NormConfig):
            said[name] = _resolved(inner, d_model)
    if isinstance(record, CausalAttention.Config):
        said["n_heads"], said["n_kv_heads"], said["head_dim"] = record.heads(d_model)
        said["scale"] = record.scale or said["head_dim"] ** -0.5
        if record.qk_norm is None:
            del said["qk_norm_over"]
    elif isinstance(record, FeedForwardConfig):
        if "d_ff" in said:
            said["d_ff"] = record.width(d_model)
        if isinstance(record, Experts.Config):
            said["normalized"] = record.is_normalized
    elif isinstance(record, Rotary.Config):
        said["scaling"]["amplitude"] = record.scaling.size()
        if record.scaling.kind == "longrope":
            del said["scaling"]["factor"]
    return said
