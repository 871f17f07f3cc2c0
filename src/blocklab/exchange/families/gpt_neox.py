"""GPT-NeoX and Pythia: both branches read the stream at once, part of each head rotates
(Black et al. 2022; Biderman et al. 2023)."""

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
from blocklab.exchange.names import HeadByHead, Whole
from blocklab.exchange.rope import described, rotary, stated_context, stretched_context
from blocklab.model.config import ModelConfig
from blocklab.parts.positions import Rotary

_LAYER = "gpt_neox.layers.{i}"

_REQUIRES = {
    "block.kind": "standard",
    "block.placement": "pre",
    "block.norm.kind": "layer",
    "block.attention.kind": "causal",
    "block.feed_forward.kind": "mlp",
    "block.residual.kind": "add",
    "positions.kind": "rotary",
}


class GPTNeoX(Family):
    model_type = "gpt_neox"
    architecture = "GPTNeoXForCausalLM"
    prefix = "gpt_neox."
    head_name = "embed_out"
    unused = (r"\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)$",)
    requires = _REQUIRES
    layouts = (
        {
            "embedding": Whole("gpt_neox.embed_in"),
            "blocks.{i}.norm.attention": Whole(f"{_LAYER}.input_layernorm"),
            "blocks.{i}.norm.feed_forward": Whole(f"{_LAYER}.post_attention_layernorm"),
            "blocks.{i}.attention.qkv": HeadByHead(f"{_LAYER}.attention.query_key_value"),
            "blocks.{i}.attention.output": Whole(f"{_LAYER}.attention.dense"),
            "blocks.{i}.feed_forward.expand": Whole(f"{_LAYER}.mlp.dense_h_to_4h"),
            "blocks.{i}.feed_forward.contract": Whole(f"{_LAYER}.mlp.dense_4h_to_h"),
            "final_norm": Whole("gpt_neox.final_layer_norm"),
            "head": Whole(head_name),
        },
    )

    def config(self, fields: Fields) -> ModelConfig:
        stated = fields.whole("max_position_embeddings")
        positions = self._positions(fields, stated)
        bias = fields.flag("attention_bias", True)
        parallel = fields.flag("use_parallel_residual", True)
        data = {
            "vocab_size": fields.whole("vocab_size"),
            "context_length": stretched_context(stated, positions),
            "d_model": fields.whole("hidden_size"),
            "n_layers": fields.n_layers("num_hidden_layers"),
            "tie_embeddings": fields.flag("tie_word_embeddings", False),
            "dropout": shared_dropout(fields, "attention_dropout", "hidden_dropout", default=0.0),
            "embedding": {"scale": 1.0},
            "positions": positions,
            "block": {
                "parallel": "two_norms" if parallel else "off",
                "norm": {"kind": "layer", "eps": fields.number("layer_norm_eps", 1e-5)},
                "attention": {
                    "n_heads": fields.whole("num_attention_heads"),
                    "qkv_bias": bias,
                    "out_bias": bias,
                },
                "feed_forward": {
                    "kind": "mlp",
                    "d_ff": fields.whole("intermediate_size"),
                    "activation": fields.one_of("hidden_act", ACTIVATION_OF, "gelu"),
                },
            },
            "initialization": {"std": fields.number("initializer_range", 0.02) or 0.02},
        }
        return ModelConfig.parse(data, at=fields.at)

    def _positions(self, fields: Fields, stated: int) -> Rotary.Config:
        """Older files call the base and the share of rotated dimensions otherwise."""
        theta = fields.number("rotary_emb_base", 10_000.0)
        share = fields.number("rotary_pct", 0.25)
        positions = rotary(fields, stated, theta=theta, fraction=share)
        inner = fields.nested("rope_parameters") or fields.nested("rope_scaling")
        for name, newer, old, new in (
            ("rotary_emb_base", "rope_theta", theta, positions.base),
            ("rotary_pct", "partial_rotary_factor", share, positions.fraction),
        ):
            if old == new:
                continue
            if fields.has(name):
                raise fields.refused(name, old, f"{new:g}, as the rotation says elsewhere")
            if inner is None or not inner.has(newer):
                # Beside the rotation's own object only the older name is ever read.
                raise fields.refused(newer, new, f"{old:g}, or {name} in its place")
        return positions

    def describe(self, config: ModelConfig) -> JsonObject:
        block: Any = config.block
        assert isinstance(config.positions, Rotary.Config)
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "vocab_size": config.rows,
            "hidden_size": config.d_model,
            "intermediate_size": width(block.feed_forward, config.d_model),
            "num_hidden_layers": config.n_layers,
            "num_attention_heads": block.attention.n_heads,
            "attention_bias": block.attention.qkv_bias,
            "hidden_act": NAME_OF_ACTIVATION.get(block.feed_forward.activation),
            "max_position_embeddings": stated_context(config.context_length, config.positions),
            "rotary_pct": config.positions.fraction,
            "partial_rotary_factor": config.positions.fraction,
            "rotary_emb_base": config.positions.base,
            "layer_norm_eps": block.norm.eps,
            "use_parallel_residual": block.parallel == "two_norms",
            "attention_dropout": config.dropout,
            "hidden_dropout": config.dropout,
            "initializer_range": drawn_std(config),
            "tie_word_embeddings": config.tie_embeddings,
            "use_cache": True,
            **described(config.positions),
        }
