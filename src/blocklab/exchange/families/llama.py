"""Llama 2, 3 and 3.1, and what Llama's many descendants share with it."""

from collections.abc import Mapping
from typing import Any, ClassVar

from blocklab.exchange.family import (
    ACTIVATION_OF,
    NAME_OF_ACTIVATION,
    Family,
    JsonObject,
    drawn_std,
    width,
)
from blocklab.exchange.fields import Fields
from blocklab.exchange.names import Names, Rows, Whole
from blocklab.exchange.rope import described, rotary, stated_context, stretched_context
from blocklab.model.config import ModelConfig
from blocklab.parts.positions import Rotary
from blocklab.record import Value

ATTENTION: Names = {
    "blocks.{i}.attention.qkv": Rows(
        (
            "model.layers.{i}.self_attn.q_proj",
            "model.layers.{i}.self_attn.k_proj",
            "model.layers.{i}.self_attn.v_proj",
        ),
        cut="heads",
    ),
    "blocks.{i}.attention.query_norm": Whole("model.layers.{i}.self_attn.q_norm"),
    "blocks.{i}.attention.key_norm": Whole("model.layers.{i}.self_attn.k_norm"),
    "blocks.{i}.attention.output": Whole("model.layers.{i}.self_attn.o_proj"),
}
FEED_FORWARD: Names = {
    "blocks.{i}.feed_forward.expand": Rows(
        ("model.layers.{i}.mlp.gate_proj", "model.layers.{i}.mlp.up_proj")
    ),
    "blocks.{i}.feed_forward.contract": Whole("model.layers.{i}.mlp.down_proj"),
}
NORMS: Names = {
    "blocks.{i}.norm.attention": Whole("model.layers.{i}.input_layernorm"),
    "blocks.{i}.norm.feed_forward": Whole("model.layers.{i}.post_attention_layernorm"),
}
OUTSIDE: Names = {
    "embedding": Whole("model.embed_tokens"),
    "final_norm": Whole("model.norm"),
    "head": Whole("lm_head"),
}

GATED_ROTARY: dict[str, Value] = {
    "block.kind": "standard",
    "block.parallel": "off",
    "block.norm.kind": "rms",
    "block.attention.kind": "causal",
    "block.feed_forward.kind": "gated",
    "block.residual.kind": "add",
}


class LlamaLike(Family):
    """Gated feed-forwards, RMSNorm and rotary positions; descendants state where they differ."""

    layouts: ClassVar[tuple[Names, ...]] = (ATTENTION | FEED_FORWARD | NORMS | OUTSIDE,)
    requires: ClassVar[Mapping[str, Value]] = GATED_ROTARY | {
        "block.placement": "pre",
        "positions.kind": "rotary",
    }
    activation_field: ClassVar[str] = "hidden_act"
    activation: ClassVar[str] = "silu"
    eps: ClassVar[float] = 1e-6
    theta: ClassVar[float] = 10_000.0
    fraction: ClassVar[float | None] = None
    """The usual share of rotated dimensions, None where all are."""
    tied: ClassVar[bool] = False
    """What a missing `tie_word_embeddings` means."""
    n_kv_heads: ClassVar[int | None] = None
    """What a missing `num_key_value_heads` means; None, and null in the file: as many as heads."""
    head_dim: ClassVar[int | None] = None

    def config(self, fields: Fields) -> ModelConfig:
        stated = fields.whole("max_position_embeddings")
        positions = self.positions(fields, stated)
        fields.only_in_training("attention_dropout")
        d_model = fields.whole("hidden_size")
        data = {
            "vocab_size": fields.whole("vocab_size"),
            "context_length": stretched_context(stated, positions),
            "d_model": d_model,
            "n_layers": fields.n_layers("num_hidden_layers"),
            "tie_embeddings": fields.flag("tie_word_embeddings", self.tied),
            "embedding": {"scale": self.embedding_scale(d_model)},
            "positions": positions,
            "block": {
                "placement": self.requires["block.placement"],
                "norm": self.norm(fields),
                "attention": self.sizes(fields) | self.attention(fields),
                "feed_forward": self.feed_forward(fields),
            },
            "final_norm": "same",
            "head": self.head(fields),
            "layers": self.layers(fields),
            "initialization": {"std": fields.number("initializer_range", 0.02) or 0.02},
        }
        return ModelConfig.parse(data, at=fields.at)

    def positions(self, fields: Fields, stated: int) -> Rotary.Config:
        return rotary(fields, stated, theta=self.theta, fraction=self.fraction)

    def norm(self, fields: Fields) -> JsonObject:
        return {"kind": "rms", "eps": fields.number("rms_norm_eps", self.eps)}

    def sizes(self, fields: Fields) -> JsonObject:
        n_heads = fields.whole("num_attention_heads")
        head_dim = self.head_dim
        if fields.has("head_dim") or head_dim is None:
            head_dim = fields.optional_whole("head_dim")
        stated = fields.states("num_key_value_heads")
        n_kv_heads = n_heads if stated or self.n_kv_heads is None else self.n_kv_heads
        return {
            "kind": "causal",
            "n_heads": n_heads,
            "n_kv_heads": fields.whole("num_key_value_heads", n_kv_heads),
            "head_dim": head_dim,
        }

    def attention(self, fields: Fields) -> JsonObject:
        bias = fields.flag("attention_bias", False)
        return {"qkv_bias": bias, "out_bias": bias}

    def feed_forward(self, fields: Fields) -> JsonObject:
        return self.gated(fields) | {"bias": fields.flag("mlp_bias", False)}

    def gated(self, fields: Fields) -> JsonObject:
        activation = fields.one_of(self.activation_field, ACTIVATION_OF, self.activation)
        d_ff = fields.whole("intermediate_size")
        return {"kind": "gated", "d_ff": d_ff, "activation": activation, "bias": False}

    def layers(self, fields: Fields) -> list[JsonObject]:
        return []

    def head(self, fields: Fields) -> JsonObject:
        return {}

    def embedding_scale(self, d_model: int) -> float:
        return 1.0

    def describe(self, config: ModelConfig) -> JsonObject:
        block: Any = config.block
        n_heads, n_kv_heads, head_dim = block.attention.heads(config.d_model)
        positions = self.rotary_of(config)
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "vocab_size": config.rows,
            "hidden_size": config.d_model,
            "intermediate_size": width(block.feed_forward, config.d_model),
            "num_hidden_layers": config.n_layers,
            "num_attention_heads": n_heads,
            "num_key_value_heads": n_kv_heads,
            "head_dim": head_dim,
            self.activation_field: NAME_OF_ACTIVATION.get(block.feed_forward.activation),
            "max_position_embeddings": stated_context(config.context_length, positions),
            "rms_norm_eps": block.norm.eps,
            "attention_dropout": 0.0,
            "initializer_range": drawn_std(config),
            "tie_word_embeddings": config.tie_embeddings,
            "use_cache": True,
            **described(positions),
            **self.also(config, block),
        }

    def rotary_of(self, config: ModelConfig) -> Rotary.Config:
        assert isinstance(config.positions, Rotary.Config)
        return config.positions

    def also(self, config: ModelConfig, block: Any) -> JsonObject:
        """Fields beyond those that all share."""
        return {
            "attention_bias": block.attention.qkv_bias,
            "mlp_bias": getattr(block.feed_forward, "bias", False),
        }


def undivided(config: ModelConfig, block: Any) -> list[str]:
    """Transformers wants as many heads as divide d_model in some families, whatever their width."""
    n_heads = block.attention.n_heads
    odd = config.d_model % n_heads
    return [f"block.attention.n_heads ({n_heads} for d_model {config.d_model})"] if odd else []


class Llama(LlamaLike):
    """Touvron et al. 2023; Grattafiori et al. 2024."""

    model_type = "llama"
    architecture = "LlamaForCausalLM"

    def unloadable(self, config: ModelConfig) -> list[str]:
        return undivided(config, config.block)

    def attention(self, fields: Fields) -> JsonObject:
        # What some releases add: that they are plain Llamas, and a length that no one reads.
        fields.expect("rope_interleaved", False)
        fields.expect("is_llama_config", True)
        fields.ignore("max_sequence_length")
        return super().attention(fields)
