"""Qwen 3 with a mixture of experts in some layers, plain gated parts in the others."""

from typing import Any

from blocklab.exchange.families.llama import (
    ATTENTION,
    FEED_FORWARD,
    GATED_ROTARY,
    NORMS,
    OUTSIDE,
    LlamaLike,
)
from blocklab.exchange.families.mistral import USUAL_WINDOW, window
from blocklab.exchange.family import ACTIVATION_OF, JsonObject, exceptions, width
from blocklab.exchange.fields import Fields
from blocklab.exchange.names import Names, PerExpert, Stack, Whole
from blocklab.model.config import ModelConfig

_MLP = "model.layers.{i}.mlp"
_SHARED: Names = (
    ATTENTION
    | FEED_FORWARD
    | NORMS
    | OUTSIDE
    | {"blocks.{i}.feed_forward.router": Whole(f"{_MLP}.gate")}
)


class Qwen3Moe(LlamaLike):
    model_type = "qwen3_moe"
    architecture = "Qwen3MoeForCausalLM"
    n_kv_heads = 4
    requires = GATED_ROTARY | {
        "block.placement": "pre",
        "positions.kind": "rotary",
        "block.feed_forward.kind": "experts",
    }
    layouts = (
        _SHARED
        | {
            "blocks.{i}.feed_forward.experts_expand": PerExpert(
                (f"{_MLP}.experts.{{e}}.gate_proj.weight", f"{_MLP}.experts.{{e}}.up_proj.weight")
            ),
            "blocks.{i}.feed_forward.experts_contract": PerExpert(
                (f"{_MLP}.experts.{{e}}.down_proj.weight",)
            ),
        },
        _SHARED
        | {
            "blocks.{i}.feed_forward.experts_expand": Stack(f"{_MLP}.experts.gate_up_proj"),
            "blocks.{i}.feed_forward.experts_contract": Stack(f"{_MLP}.experts.down_proj"),
        },
    )

    def attention(self, fields: Fields) -> JsonObject:
        bias = fields.flag("attention_bias", False)
        size = window(fields, USUAL_WINDOW)
        return {
            "qkv_bias": bias,
            "out_bias": bias,
            "qk_norm": self.norm(fields),
            "window": size if fields.flag("use_sliding_window", False) else None,
        }

    def feed_forward(self, fields: Fields) -> JsonObject:
        name = "num_experts" if fields.has("num_experts") else "num_local_experts"
        n_experts = fields.whole(name, 128)
        fields.expect("num_local_experts", n_experts)
        return {
            "kind": "experts",
            "n_experts": n_experts,
            "n_active": fields.whole("num_experts_per_tok", 8),
            "d_ff": fields.whole("moe_intermediate_size", 768),
            "activation": fields.one_of("hidden_act", ACTIVATION_OF, "silu"),
            "normalized": fields.flag("norm_topk_prob", False),
            "balance": fields.number("router_aux_loss_coef", 0.001),
        }

    def layers(self, fields: Fields) -> list[JsonObject]:
        step = fields.whole("decoder_sparse_step", 1)
        plain = fields.items("mlp_only_layers") or ()
        n_layers = fields.n_layers("num_hidden_layers")
        gated = self.gated(fields)
        dense = [i in plain or (i + 1) % step != 0 for i in range(n_layers)]
        if all(dense):
            raise fields.refused("mlp_only_layers", list(plain), "at least one layer with experts")
        return exceptions("block.feed_forward", [gated if d else None for d in dense], None)

    def describe(self, config: ModelConfig) -> JsonObject:
        feed_forwards: list[Any] = [
            getattr(config.layer(i).block, "feed_forward", None) for i in range(config.n_layers)
        ]
        dense = [i for i, f in enumerate(feed_forwards) if getattr(f, "kind", "") == "gated"]
        said = super().describe(config)
        if dense:
            said["intermediate_size"] = width(feed_forwards[dense[0]], config.d_model)
        return said | {"mlp_only_layers": dense}

    def also(self, config: ModelConfig, block: Any) -> JsonObject:
        experts = block.feed_forward
        return {
            "attention_bias": block.attention.qkv_bias,
            "use_sliding_window": block.attention.window is not None,
            "sliding_window": block.attention.window,
            "num_experts": experts.n_experts,
            "num_experts_per_tok": experts.n_active,
            "moe_intermediate_size": width(experts, config.d_model),
            "norm_topk_prob": experts.is_normalized,
            "router_aux_loss_coef": experts.balance,
            "decoder_sparse_step": 1,
            "output_router_logits": False,
        }
