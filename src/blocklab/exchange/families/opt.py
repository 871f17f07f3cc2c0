"""OPT: GPT-2's shape with ReLU, learned positions that start at row 2, and in one size norms after
the branches (Zhang et al. 2022)."""

from typing import Any

from blocklab.exchange.family import (
    ACTIVATION_OF,
    NAME_OF_ACTIVATION,
    Family,
    JsonObject,
    drawn_std,
    shared_dropout,
    width,
)
from blocklab.exchange.fields import Fields
from blocklab.exchange.names import Rows, Whole
from blocklab.model.config import ModelConfig

_LAYER = "model.decoder.layers.{i}"
_RESERVED = 2
"""Rows at the start of the position table that no real token reaches."""

_REQUIRES = {
    "block.kind": "standard",
    "block.parallel": "off",
    "block.norm.kind": "layer",
    "block.attention.kind": "causal",
    "block.feed_forward.kind": "mlp",
    "block.residual.kind": "add",
    "positions.kind": "learned",
}


class OPT(Family):
    model_type = "opt"
    architecture = "OPTForCausalLM"
    unused = ()
    requires = _REQUIRES
    layouts = (
        {
            "embedding": Whole("model.decoder.embed_tokens"),
            "positions": Whole("model.decoder.embed_positions", skipped=_RESERVED),
            "blocks.{i}.norm.attention": Whole(f"{_LAYER}.self_attn_layer_norm"),
            "blocks.{i}.norm.feed_forward": Whole(f"{_LAYER}.final_layer_norm"),
            "blocks.{i}.attention.qkv": Rows(
                (
                    f"{_LAYER}.self_attn.q_proj",
                    f"{_LAYER}.self_attn.k_proj",
                    f"{_LAYER}.self_attn.v_proj",
                ),
                cut="heads",
            ),
            "blocks.{i}.attention.output": Whole(f"{_LAYER}.self_attn.out_proj"),
            "blocks.{i}.feed_forward.expand": Whole(f"{_LAYER}.fc1"),
            "blocks.{i}.feed_forward.contract": Whole(f"{_LAYER}.fc2"),
            "final_norm": Whole("model.decoder.final_layer_norm"),
            "head": Whole("lm_head"),
        },
    )

    def config(self, fields: Fields) -> ModelConfig:
        d_model = fields.whole("hidden_size")
        fields.expect("word_embed_proj_dim", d_model)
        fields.expect("layer_norm_elementwise_affine", True)
        fields.only_in_training("layerdrop")
        fields.only_in_training("activation_dropout")
        before = fields.flag("do_layer_norm_before", True)
        removed = fields.flag("_remove_final_layer_norm", False)
        bias = fields.flag("enable_bias", True)
        data = {
            "vocab_size": fields.whole("vocab_size"),
            "context_length": fields.whole("max_position_embeddings"),
            "d_model": d_model,
            "n_layers": fields.n_layers("num_hidden_layers"),
            "tie_embeddings": fields.flag("tie_word_embeddings", True),
            "dropout": shared_dropout(fields, "dropout", "attention_dropout", default=0.0),
            "embedding": {"scale": 1.0},
            "positions": {"kind": "learned"},
            "block": {
                "placement": "pre" if before else "post",
                "norm": {"kind": "layer", "eps": 1e-5},
                "attention": {
                    "n_heads": fields.whole("num_attention_heads"),
                    "qkv_bias": bias,
                    "out_bias": bias,
                },
                "feed_forward": {
                    "kind": "mlp",
                    "d_ff": fields.whole("ffn_dim"),
                    "activation": fields.one_of("activation_function", ACTIVATION_OF, "relu"),
                    "bias": bias,
                },
            },
            "final_norm": "same" if before and not removed else "none",
            "initialization": {"std": fields.number("init_std", 0.02) or 0.02},
        }
        return ModelConfig.parse(data, at=fields.at)

    def describe(self, config: ModelConfig) -> JsonObject:
        block: Any = config.block
        before = block.placement == "pre"
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "vocab_size": config.rows,
            "hidden_size": config.d_model,
            "word_embed_proj_dim": config.d_model,
            "ffn_dim": width(block.feed_forward, config.d_model),
            "num_hidden_layers": config.n_layers,
            "num_attention_heads": block.attention.n_heads,
            "activation_function": NAME_OF_ACTIVATION.get(block.feed_forward.activation),
            "max_position_embeddings": config.context_length,
            "do_layer_norm_before": before,
            "_remove_final_layer_norm": before and config.norm_at_the_end.kind == "none",
            "enable_bias": block.attention.qkv_bias,
            "layer_norm_elementwise_affine": True,
            "dropout": config.dropout,
            "attention_dropout": config.dropout,
            "layerdrop": 0.0,
            "init_std": drawn_std(config),
            "tie_word_embeddings": config.tie_embeddings,
            "use_cache": True,
        }
