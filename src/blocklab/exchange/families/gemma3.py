"""Gemma 3's text models: five local layers to one global one, each kind with a rotary base of its
own, queries and keys normalised (Gemma Team 2025)."""

from typing import Any

from blocklab.exchange.families.gemma2 import Gemma2
from blocklab.exchange.families.layer_types import FULL, SLIDING, sliding_layers
from blocklab.exchange.family import JsonObject, exceptions
from blocklab.exchange.fields import Fields
from blocklab.exchange.rope import one_rotary, rotary
from blocklab.model.config import ModelConfig
from blocklab.parts.positions import Rotary

GLOBAL_THETA, LOCAL_THETA = 1e6, 1e4


class Gemma3Text(Gemma2):
    model_type = "gemma3_text"
    architecture = "Gemma3ForCausalLM"
    theta = GLOBAL_THETA

    def attention(self, fields: Fields) -> JsonObject:
        return super().attention(fields) | {"qk_norm": self.norm(fields)}

    def score_cap(self, fields: Fields) -> float | None:
        # Transformers reads the field and never applies it.
        fields.expect("attn_logit_softcapping")
        return None

    def head(self, fields: Fields) -> JsonObject:
        return {"softcap": fields.optional_number("final_logit_softcapping")}

    def positions(self, fields: Fields, stated: int) -> Rotary.Config:
        """Those of the global layers."""
        inner = fields.nested("rope_parameters")
        if inner is None:
            scaling = _truncated(fields.nested("rope_scaling"))
            if scaling is not None and scaling.has("type") and not scaling.has("rope_type"):
                # Newer versions of transformers pass over it here.
                raise scaling.refused("type", scaling.value("type"), "its newer name, rope_type")
            return rotary(fields, stated, theta=GLOBAL_THETA)
        inner.ignore(SLIDING)
        # Of a model with one kind of layers some versions of transformers write these besides.
        inner.expect("rope_type", "default")
        inner.expect("rope_theta")
        said = inner.nested(FULL)
        inner.refuse_unread()
        base = GLOBAL_THETA if said is None else said.number("rope_theta", GLOBAL_THETA)
        return one_rotary(_truncated(said), fields, stated, base)

    def local_positions(self, fields: Fields, stated: int) -> Rotary.Config:
        inner = fields.nested("rope_parameters")
        said = None if inner is None else inner.nested(SLIDING)
        base = fields.number("rope_local_base_freq", LOCAL_THETA)
        if said is not None:
            base = said.number("rope_theta", base)
        return one_rotary(_truncated(said), fields, stated, base)

    def slides(self, fields: Fields, layer: int) -> bool:
        return (layer + 1) % self.pattern(fields) != 0

    def pattern(self, fields: Fields) -> int:
        return fields.whole("sliding_window_pattern", 6)

    def layers(self, fields: Fields) -> list[JsonObject]:
        pattern = self.pattern(fields)
        if fields.has("layer_types"):
            fields.ignore("_sliding_window_pattern")
        else:
            # Transformers writes it, and does not read it again.
            fields.expect("_sliding_window_pattern", pattern)
        n_layers = fields.n_layers("num_hidden_layers")
        stated = fields.whole("max_position_embeddings")
        local = self.local_positions(fields, stated).plain()
        sliding = sliding_layers(fields, n_layers, lambda i: self.slides(fields, i))
        turned = exceptions("positions", [local if s else None for s in sliding], None)
        return super().layers(fields) + turned

    def rotary_of(self, config: ModelConfig) -> Rotary.Config:
        return self._rotary(config, local=False) or super().rotary_of(config)

    def also(self, config: ModelConfig, block: Any) -> JsonObject:
        local = self._rotary(config, local=True)
        said = super().also(config, block)
        said["rope_local_base_freq"] = local.base if local is not None else LOCAL_THETA
        return said | {"use_bidirectional_attention": False}

    def _rotary(self, config: ModelConfig, local: bool) -> Rotary.Config | None:
        for i in range(config.n_layers):
            layer = config.layer(i)
            window = getattr(getattr(layer.block, "attention", None), "window", None)
            if (window is not None) == local and isinstance(layer.positions, Rotary.Config):
                return layer.positions
        return None


def _truncated(scaling: Fields | None) -> Fields | None:
    """Where kinds of layers have their own, transformers computes no ramp that is not truncated."""
    if scaling is not None:
        scaling.expect("truncate", True)
    return scaling
