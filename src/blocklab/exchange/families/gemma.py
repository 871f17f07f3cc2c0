"""Gemma: gains stored as their distance from one, embeddings times sqrt(d_model), GeGLU."""

import math
from typing import Any

from blocklab.exchange.families.llama import LlamaLike
from blocklab.exchange.family import ACTIVATION_OF, JsonObject
from blocklab.exchange.fields import Fields
from blocklab.model.config import ModelConfig


class GemmaLike(LlamaLike):
    """What all Gemmas share."""

    activation = "gelu_pytorch_tanh"
    tied = True
    head_dim = 256

    def norm(self, fields: Fields) -> JsonObject:
        return super().norm(fields) | {"unit_offset": True}

    def attention(self, fields: Fields) -> JsonObject:
        fields.expect("use_bidirectional_attention", False)
        return super().attention(fields)

    def feed_forward(self, fields: Fields) -> JsonObject:
        return self.gated(fields)

    def embedding_scale(self, d_model: int) -> float:
        return math.sqrt(d_model)

    def also(self, config: ModelConfig, block: Any) -> JsonObject:
        return {"attention_bias": block.attention.qkv_bias}


class Gemma(GemmaLike):
    model_type = "gemma"
    architecture = "GemmaForCausalLM"
    n_kv_heads = 16

    def gated(self, fields: Fields) -> JsonObject:
        said = super().gated(fields)
        # The first releases say "gelu" and were trained with its tanh approximation.
        if said["activation"] == "gelu":
            fields.notes.append("hidden_act 'gelu' means the tanh approximation in this family")
            said["activation"] = "gelu_tanh"
        other = fields.value("hidden_activation", None)
        if other is not None and ACTIVATION_OF.get(str(other)) != said["activation"]:
            # Older versions of transformers act by this one, newer by hidden_act.
            raise fields.refused("hidden_activation", other, "the same as hidden_act")
        return said
