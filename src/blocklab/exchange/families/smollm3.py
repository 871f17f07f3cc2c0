"""SmolLM3: Llama with no positions at all in every fourth layer (Bakouch et al. 2025)."""

from typing import Any

from blocklab.exchange.families.layer_types import described_windows, sliding_layers, windows
from blocklab.exchange.families.llama import GATED_ROTARY, LlamaLike
from blocklab.exchange.family import JsonObject, exceptions
from blocklab.exchange.fields import Fields
from blocklab.model.config import ModelConfig
from blocklab.parts.positions import NoPositions, Rotary


class SmolLM3(LlamaLike):
    model_type = "smollm3"
    architecture = "SmolLM3ForCausalLM"
    theta = 2e6
    tied = True
    n_kv_heads = 4
    requires = GATED_ROTARY | {"block.placement": "pre"}

    def layers(self, fields: Fields) -> list[JsonObject]:
        n_layers = fields.n_layers("num_hidden_layers")
        turning = self.turning(fields, n_layers)
        fields.ignore("max_window_layers")  # layer_types says it
        still = exceptions("positions.kind", [None if t else "none" for t in turning], None)
        uses = fields.flag("use_sliding_window", False)
        size = fields.optional_whole("sliding_window")
        sliding = sliding_layers(
            fields, n_layers, lambda i: uses and size is not None and not turning[i]
        )
        if any(sliding) and not uses:
            # Whether the window then acts depends on how attention is computed.
            raise fields.refused("use_sliding_window", False, "true, as layer_types says")
        return still + windows(fields, sliding, size)

    def turning(self, fields: Fields, n_layers: int) -> list[bool]:
        """Which layers rotate: `no_rope_layers` lists 1 for those that do."""
        every = fields.whole("no_rope_layer_interval", 4)
        listed = fields.items("no_rope_layers")
        if listed is None:
            return [(i + 1) % every != 0 for i in range(n_layers)]
        if len(listed) != n_layers or any(flag not in (0, 1) for flag in listed):
            raise fields.refused("no_rope_layers", listed, f"{n_layers} of 0 or 1")
        return [bool(flag) for flag in listed]

    def rotary_of(self, config: ModelConfig) -> Rotary.Config:
        found = (config.layer(i).positions for i in range(config.n_layers))
        return next((p for p in found if isinstance(p, Rotary.Config)), Rotary.Config())

    def also(self, config: ModelConfig, block: Any) -> JsonObject:
        size, types = described_windows(config)
        places = [config.layer(i).positions for i in range(config.n_layers)]
        return super().also(config, block) | {
            "no_rope_layers": [int(not isinstance(p, NoPositions.Config)) for p in places],
            "use_sliding_window": size is not None,
            "sliding_window": size,
            "layer_types": types,
        }
