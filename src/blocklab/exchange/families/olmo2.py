"""OLMo 2: norms on what a branch puts out, queries and keys normalised as whole vectors
(OLMo Team 2025)."""

from typing import Any

from blocklab.exchange.families.llama import (
    ATTENTION,
    FEED_FORWARD,
    GATED_ROTARY,
    OUTSIDE,
    LlamaLike,
)
from blocklab.exchange.family import JsonObject
from blocklab.exchange.fields import Fields
from blocklab.exchange.names import Names, Whole
from blocklab.model.config import ModelConfig

_NORMS: Names = {
    "blocks.{i}.norm.attention": Whole("model.layers.{i}.post_attention_layernorm"),
    "blocks.{i}.norm.feed_forward": Whole("model.layers.{i}.post_feedforward_layernorm"),
}


class Olmo2(LlamaLike):
    model_type = "olmo2"
    architecture = "Olmo2ForCausalLM"
    eps = 1e-5
    requires = GATED_ROTARY | {"block.placement": "output", "positions.kind": "rotary"}
    layouts = (ATTENTION | FEED_FORWARD | _NORMS | OUTSIDE,)

    def attention(self, fields: Fields) -> JsonObject:
        fields.expect("clip_qkv")
        qk_norm = {"qk_norm": self.norm(fields), "qk_norm_over": "all"}
        return super().attention(fields) | qk_norm

    def feed_forward(self, fields: Fields) -> JsonObject:
        return self.gated(fields)

    def also(self, config: ModelConfig, block: Any) -> JsonObject:
        return {"attention_bias": block.attention.qkv_bias}
