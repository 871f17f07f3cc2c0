"""GPT-2: learned positions, LayerNorm, biases everywhere, matrices stored transposed
(Radford et al. 2019)."""

from typing import Any

from blocklab.exchange.family import (
    ACTIVATION_OF,
    Family,
    JsonObject,
    drawn_std,
    exceptions,
    shared_dropout,
    width,
)
from blocklab.exchange.fields import Fields
from blocklab.exchange.names import Whole
from blocklab.model.config import ModelConfig

_NAME_OF = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "silu": "silu"}

_REQUIRES = {
    "block.kind": "standard",
    "block.placement": "pre",
    "block.parallel": "off",
    "block.norm.kind": "layer",
    "block.attention.kind": "causal",
    "block.feed_forward.kind": "mlp",
    "block.residual.kind": "add",
    "positions.kind": "learned",
}


class GPT2(Family):
    model_type = "gpt2"
    architecture = "GPT2LMHeadModel"
    prefix = "transformer."
    unused = (r"(^|\.)h\.\d+\.attn\.(bias|masked_bias)$",)
    requires = _REQUIRES
    layouts = (
        {
            "embedding": Whole("transformer.wte"),
            "positions": Whole("transformer.wpe"),
            "blocks.{i}.norm.attention": Whole("transformer.h.{i}.ln_1"),
            "blocks.{i}.attention.qkv": Whole("transformer.h.{i}.attn.c_attn", transposed=True),
            "blocks.{i}.attention.output": Whole("transformer.h.{i}.attn.c_proj", transposed=True),
            "blocks.{i}.norm.feed_forward": Whole("transformer.h.{i}.ln_2"),
            "blocks.{i}.feed_forward.expand": Whole("transformer.h.{i}.mlp.c_fc", transposed=True),
            "blocks.{i}.feed_forward.contract": Whole(
                "transformer.h.{i}.mlp.c_proj", transposed=True
            ),
            "final_norm": Whole("transformer.ln_f"),
            "head": Whole("lm_head"),
        },
    )

    def config(self, fields: Fields) -> ModelConfig:
        d_model, n_layers = fields.whole("n_embd"), fields.n_layers("n_layer")
        context_length = fields.whole("n_positions")
        n_heads = fields.whole("n_head")
        fields.expect("n_ctx", context_length)
        fields.expect("add_cross_attention", False)
        # Only the precision of the scores, which is never below float32 here.
        fields.ignore("reorder_and_upcast_attn")
        scaled = fields.flag("scale_attn_weights", True)
        scale = (d_model // n_heads) ** -0.5 if scaled else 1.0
        by_layer = fields.flag("scale_attn_by_inverse_layer_idx", False)
        scales = [scale / (i + 1) if by_layer else scale for i in range(n_layers)]
        data = {
            "vocab_size": fields.whole("vocab_size"),
            "context_length": context_length,
            "d_model": d_model,
            "n_layers": n_layers,
            "tie_embeddings": fields.flag("tie_word_embeddings", True),
            "dropout": shared_dropout(
                fields, "resid_pdrop", "embd_pdrop", "attn_pdrop", default=0.1
            ),
            "embedding": {"scale": 1.0},
            "positions": {"kind": "learned"},
            "block": {
                "norm": {"kind": "layer", "eps": fields.number("layer_norm_epsilon", 1e-5)},
                "attention": {"n_heads": n_heads, "scale": None if scaled else 1.0},
                "feed_forward": {
                    "kind": "mlp",
                    "d_ff": fields.optional_whole("n_inner"),
                    "activation": fields.one_of("activation_function", ACTIVATION_OF, "gelu_new"),
                },
            },
            "layers": exceptions("block.attention.scale", scales, scale),
            "initialization": {"std": fields.number("initializer_range", 0.02) or 0.02},
        }
        return ModelConfig.parse(data, at=fields.at)

    def describe(self, config: ModelConfig) -> JsonObject:
        block: Any = config.block
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "vocab_size": config.rows,
            "n_positions": config.context_length,
            "n_embd": config.d_model,
            "n_layer": config.n_layers,
            "n_head": block.attention.n_heads,
            "n_inner": width(block.feed_forward, config.d_model),
            "activation_function": _NAME_OF.get(block.feed_forward.activation),
            "layer_norm_epsilon": block.norm.eps,
            "scale_attn_weights": _scale(config, 0) != 1.0,
            "scale_attn_by_inverse_layer_idx": _falls(config),
            "reorder_and_upcast_attn": False,
            "tie_word_embeddings": config.tie_embeddings,
            "resid_pdrop": config.dropout,
            "embd_pdrop": config.dropout,
            "attn_pdrop": config.dropout,
            "initializer_range": drawn_std(config),
            "use_cache": True,
        }


def _scale(config: ModelConfig, layer: int) -> float:
    attention: Any = getattr(config.layer(layer).block, "attention", None)
    return float(getattr(attention, "scale", None) or 0.0)


def _falls(config: ModelConfig) -> bool:
    """Whether the scale of the scores is divided by the layer's number."""
    return config.n_layers > 1 and _scale(config, 1) not in (0.0, _scale(config, 0))
