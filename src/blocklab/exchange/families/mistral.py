"""Mistral: Llama with a sliding window in every layer (Jiang et al. 2023)."""

from typing import Any

from blocklab.exchange.families.llama import LlamaLike
from blocklab.exchange.family import JsonObject
from blocklab.exchange.fields import Fields
from blocklab.model.config import ModelConfig

USUAL_WINDOW = 4096
"""What a config.json without the field means; null in it means no window."""


def window(fields: Fields, missing: int | None) -> int | None:
    return fields.optional_whole("sliding_window") if fields.states("sliding_window") else missing


class Mistral(LlamaLike):
    model_type = "mistral"
    architecture = "MistralForCausalLM"
    n_kv_heads = 8

    def attention(self, fields: Fields) -> JsonObject:
        return {
            "qkv_bias": False,
            "out_bias": False,
            "window": window(fields, USUAL_WINDOW),
        }

    def feed_forward(self, fields: Fields) -> JsonObject:
        return self.gated(fields)

    def also(self, config: ModelConfig, block: Any) -> JsonObject:
        return {"sliding_window": block.attention.window}
