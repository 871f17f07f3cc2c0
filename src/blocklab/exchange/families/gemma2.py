"""Gemma 2: norms on both sides of each branch, capped scores and logits, every other layer local
(Gemma Team 2024)."""

from typing import Any, ClassVar

from blocklab.exchange.families.gemma import GemmaLike
from blocklab.exchange.families.layer_types import described_windows, sliding_layers, windows
from blocklab.exchange.families.llama import (
    ATTENTION,
    FEED_FORWARD,
    GATED_ROTARY,
    OUTSIDE,
    undivided,
)
from blocklab.exchange.family import JsonObject
from blocklab.exchange.fields import Fields
from blocklab.exchange.names import Names, Whole
from blocklab.model.config import ModelConfig

_NORMS: Names = {
    "blocks.{i}.norm.attention": Whole("model.layers.{i}.input_layernorm"),
    "blocks.{i}.norm.attention_out": Whole("model.layers.{i}.post_attention_layernorm"),
    "blocks.{i}.norm.feed_forward": Whole("model.layers.{i}.pre_feedforward_layernorm"),
    "blocks.{i}.norm.feed_forward_out": Whole("model.layers.{i}.post_feedforward_layernorm"),
}


class Gemma2(GemmaLike):
    model_type = "gemma2"
    architecture = "Gemma2ForCausalLM"
    n_kv_heads = 4
    activation_field = "hidden_activation"
    requires = GATED_ROTARY | {"block.placement": "sandwich", "positions.kind": "rotary"}
    layouts = (ATTENTION | FEED_FORWARD | _NORMS | OUTSIDE,)
    usual_window: ClassVar[int] = 4096

    def attention(self, fields: Fields) -> JsonObject:
        scalar = fields.number("query_pre_attn_scalar", 256)
        if scalar <= 0:
            raise fields.refused("query_pre_attn_scalar", scalar, "a number above 0")
        return super().attention(fields) | {
            "scale": scalar**-0.5,
            "softcap": self.score_cap(fields),
        }

    def score_cap(self, fields: Fields) -> float | None:
        return _cap(fields, "attn_logit_softcapping", 50.0)

    def head(self, fields: Fields) -> JsonObject:
        return {"softcap": _cap(fields, "final_logit_softcapping", 30.0)}

    def gated(self, fields: Fields) -> JsonObject:
        # Beside the activation that counts, older files repeat it under the first Gemma's name.
        fields.ignore("hidden_act")
        return super().gated(fields)

    def layers(self, fields: Fields) -> list[JsonObject]:
        n_layers = fields.n_layers("num_hidden_layers")
        sliding = sliding_layers(fields, n_layers, lambda i: self.slides(fields, i))
        return windows(fields, sliding, fields.whole("sliding_window", self.usual_window))

    def slides(self, fields: Fields, layer: int) -> bool:
        return layer % 2 == 0

    def unloadable(self, config: ModelConfig) -> list[str]:
        block: Any = config.block
        odd = undivided(config, block)
        if not isinstance(_scalar(config, block), int):
            odd.append(f"block.attention.scale ({block.attention.scale}, not 1 / sqrt of a whole)")
        return odd

    def also(self, config: ModelConfig, block: Any) -> JsonObject:
        size, types = described_windows(config)
        return super().also(config, block) | {
            "query_pre_attn_scalar": _scalar(config, block),
            "attn_logit_softcapping": block.attention.softcap,
            "final_logit_softcapping": config.head.softcap,
            "sliding_window": size or self.usual_window,
            "layer_types": types,
        }


def _scalar(config: ModelConfig, block: Any) -> float:
    """256 for a scale that was computed as 256 ** -0.5 and is squared with a last bit missing."""
    _, _, head_dim = block.attention.heads(config.d_model)
    scalar: float = (block.attention.scale or head_dim**-0.5) ** -2
    return round(scalar) if round(scalar) > 0 and abs(round(scalar) - scalar) < 1e-9 else scalar


def _cap(fields: Fields, name: str, missing: float | None) -> float | None:
    return fields.optional_number(name) if fields.states(name) else missing
