"""Qwen 2 and 2.5: Llama with biases on queries, keys and values (Yang et al. 2024)."""

from typing import Any, ClassVar

from blocklab.exchange.families.layer_types import described_windows, sliding_layers, windows
from blocklab.exchange.families.llama import LlamaLike
from blocklab.exchange.families.mistral import USUAL_WINDOW, window
from blocklab.exchange.family import JsonObject
from blocklab.exchange.fields import Fields
from blocklab.model.config import ModelConfig


class Qwen2(LlamaLike):
    model_type = "qwen2"
    architecture = "Qwen2ForCausalLM"
    n_kv_heads = 32
    own_tokenizer = "Qwen2Tokenizer"
    first_sliding: ClassVar[int] = 28

    def attention(self, fields: Fields) -> JsonObject:
        fields.expect("use_mrope", False)
        return {"qkv_bias": True, "out_bias": False}

    def feed_forward(self, fields: Fields) -> JsonObject:
        return self.gated(fields)

    def layers(self, fields: Fields) -> list[JsonObject]:
        size = window(fields, USUAL_WINDOW)
        size = size if fields.flag("use_sliding_window", False) else None
        # A whole number, or 0: every layer slides.
        first = fields.number("max_window_layers", self.first_sliding)
        n_layers = fields.n_layers("num_hidden_layers")
        sliding = sliding_layers(fields, n_layers, lambda i: size is not None and i >= first)
        return windows(fields, sliding, size)

    def also(self, config: ModelConfig, block: Any) -> JsonObject:
        size, types = described_windows(config)
        return {
            "use_sliding_window": size is not None,
            "sliding_window": size,
            "max_window_layers": config.n_layers,
            "layer_types": types,
        }
