"""Mixtral: Mistral with a mixture of experts in every layer (Jiang et al. 2024)."""

from typing import Any

from blocklab.exchange.families.llama import ATTENTION, GATED_ROTARY, NORMS, OUTSIDE, LlamaLike
from blocklab.exchange.families.mistral import window
from blocklab.exchange.family import ACTIVATION_OF, JsonObject
from blocklab.exchange.fields import Fields
from blocklab.exchange.names import PerExpert, Stack, Whole
from blocklab.model.config import ModelConfig

_MOE = "model.layers.{i}.block_sparse_moe"


class Mixtral(LlamaLike):
    model_type = "mixtral"
    architecture = "MixtralForCausalLM"
    eps = 1e-5
    theta = 1e6
    n_kv_heads = 8
    requires = GATED_ROTARY | {
        "block.placement": "pre",
        "positions.kind": "rotary",
        "block.feed_forward.kind": "experts",
    }
    layouts = (
        ATTENTION
        | NORMS
        | OUTSIDE
        | {
            "blocks.{i}.feed_forward.router": Whole(f"{_MOE}.gate"),
            "blocks.{i}.feed_forward.experts_expand": PerExpert(
                (f"{_MOE}.experts.{{e}}.w1.weight", f"{_MOE}.experts.{{e}}.w3.weight")
            ),
            "blocks.{i}.feed_forward.experts_contract": PerExpert(
                (f"{_MOE}.experts.{{e}}.w2.weight",)
            ),
        },
        ATTENTION
        | NORMS
        | OUTSIDE
        | {
            "blocks.{i}.feed_forward.router": Whole("model.layers.{i}.mlp.gate"),
            "blocks.{i}.feed_forward.experts_expand": Stack(
                "model.layers.{i}.mlp.experts.gate_up_proj"
            ),
            "blocks.{i}.feed_forward.experts_contract": Stack(
                "model.layers.{i}.mlp.experts.down_proj"
            ),
        },
    )

    def attention(self, fields: Fields) -> JsonObject:
        return {"qkv_bias": False, "out_bias": False, "window": window(fields, None)}

    def feed_forward(self, fields: Fields) -> JsonObject:
        fields.only_in_training("router_jitter_noise")
        return {
            "kind": "experts",
            "n_experts": fields.whole("num_local_experts", 8),
            "n_active": fields.whole("num_experts_per_tok", 2),
            "d_ff": fields.whole("intermediate_size"),
            "activation": fields.one_of("hidden_act", ACTIVATION_OF, "silu"),
            "normalized": True,
            "balance": fields.number("router_aux_loss_coef", 0.001),
        }

    def also(self, config: ModelConfig, block: Any) -> JsonObject:
        return {
            "sliding_window": block.attention.window,
            "num_local_experts": block.feed_forward.n_experts,
            "num_experts_per_tok": block.feed_forward.n_active,
            "router_aux_loss_coef": block.feed_forward.balance,
            "router_jitter_noise": 0.0,
            "output_router_logits": False,
        }
