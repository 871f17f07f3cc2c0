"""Phi-3: Llama with fused matrices, each frequency stretched by its own (Abdin et al. 2024)."""

from typing import Any

from blocklab.exchange.families.llama import NORMS, OUTSIDE, LlamaLike
from blocklab.exchange.families.mistral import window
from blocklab.exchange.family import JsonObject
from blocklab.exchange.fields import Fields
from blocklab.exchange.names import Names, Whole
from blocklab.exchange.rope import rotary
from blocklab.model.config import ModelConfig
from blocklab.parts.positions import Rotary
from blocklab.parts.rotary_scaling import LongRope

_FUSED: Names = {
    "blocks.{i}.attention.qkv": Whole("model.layers.{i}.self_attn.qkv_proj"),
    "blocks.{i}.attention.output": Whole("model.layers.{i}.self_attn.o_proj"),
    "blocks.{i}.feed_forward.expand": Whole("model.layers.{i}.mlp.gate_up_proj"),
    "blocks.{i}.feed_forward.contract": Whole("model.layers.{i}.mlp.down_proj"),
}


class Phi3(LlamaLike):
    model_type = "phi3"
    architecture = "Phi3ForCausalLM"
    eps = 1e-5
    fraction = 1.0
    layouts = (_FUSED | NORMS | OUTSIDE,)

    def positions(self, fields: Fields, stated: int) -> Rotary.Config:
        before = fields.whole("original_max_position_embeddings", 4096)
        found = rotary(fields, stated, theta=self.theta, fraction=1.0, original=before)
        if found.scaling.kind not in ("none", "longrope"):
            raise fields.refused("rope_scaling", found.scaling.kind, "longrope in this family")
        return found

    def attention(self, fields: Fields) -> JsonObject:
        fields.expect("attention_bias", False)
        # What Phi-4-mini says of variants that it is not.
        fields.expect("full_attn_mod", 1)
        fields.expect("interpolate_factor", 1)
        fields.expect("lm_head_bias", False)
        fields.expect("mlp_bias", False)
        fields.only_in_training("resid_pdrop")
        fields.ignore("embd_pdrop")  # never applied
        return {"qkv_bias": False, "out_bias": False, "window": window(fields, None)}

    def feed_forward(self, fields: Fields) -> JsonObject:
        return self.gated(fields)

    def describe(self, config: ModelConfig) -> JsonObject:
        said = super().describe(config)
        scaling = self.rotary_of(config).scaling
        if isinstance(scaling, LongRope):
            said["rope_scaling"] = _described(scaling, config.context_length)
        return said

    def unloadable(self, config: ModelConfig) -> list[str]:
        block: Any = config.block
        positions = self.rotary_of(config)
        n_heads, _, head_dim = block.attention.heads(config.d_model)
        shared = config.d_model // n_heads
        pairs = {int(width * positions.fraction) // 2 for width in (head_dim, shared)}
        if not isinstance(positions.scaling, LongRope) or len(pairs) == 1:
            return []
        # Its factors are counted by the width of heads that share d_model.
        return [f"block.attention.head_dim ({head_dim} beside longrope)"]

    def also(self, config: ModelConfig, block: Any) -> JsonObject:
        positions = self.rotary_of(config)
        scaling = positions.scaling
        before = scaling.original_context if isinstance(scaling, LongRope) else None
        return {
            "sliding_window": block.attention.window,
            "partial_rotary_factor": positions.fraction,
            "original_max_position_embeddings": before or config.context_length,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
        }


def _described(scaling: LongRope, context_length: int) -> JsonObject:
    """The three fields that older readers accept, and a fourth only where it does not follow."""
    said: JsonObject = {
        "type": "longrope",
        "short_factor": list(scaling.short),
        "long_factor": list(scaling.long),
    }
    usual = scaling.model_copy(
        update={"amplitude": None, "factor": context_length / scaling.original_context}
    )
    return said if usual.size() == scaling.size() else said | {"attention_factor": scaling.size()}
