"""Qwen 3: Llama with queries and keys normalised head by head (Yang et al. 2025)."""

from typing import Any

from blocklab.exchange.families.qwen2 import Qwen2
from blocklab.exchange.family import JsonObject
from blocklab.exchange.fields import Fields
from blocklab.model.config import ModelConfig


class Qwen3(Qwen2):
    model_type = "qwen3"
    architecture = "Qwen3ForCausalLM"
    head_dim = 128

    def attention(self, fields: Fields) -> JsonObject:
        bias = fields.flag("attention_bias", False)
        return {"qkv_bias": bias, "out_bias": bias, "qk_norm": self.norm(fields)}

    def also(self, config: ModelConfig, block: Any) -> JsonObject:
        return super().also(config, block) | {"attention_bias": block.attention.qkv_bias}
