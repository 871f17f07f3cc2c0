"""Which layers have a sliding window: `layer_types`, and the rules from before there was a list."""

from collections.abc import Callable

from blocklab.exchange.family import JsonObject, exceptions
from blocklab.exchange.fields import Fields
from blocklab.model.config import ModelConfig

FULL, SLIDING = "full_attention", "sliding_attention"


def sliding_layers(fields: Fields, n_layers: int, rule: Callable[[int], bool]) -> list[bool]:
    """For each layer whether it has the window; `rule` where the fields list no types."""
    types = fields.items("layer_types")
    if types is None:
        return [rule(i) for i in range(n_layers)]
    if len(types) != n_layers or any(t not in (FULL, SLIDING) for t in types):
        raise fields.refused("layer_types", types, f"{n_layers} of '{FULL}' or '{SLIDING}'")
    return [t == SLIDING for t in types]


def windows(fields: Fields, sliding: list[bool], size: int | None) -> list[JsonObject]:
    """Layer exceptions that give the sliding layers a window of `size`."""
    if any(sliding) and size is None:
        raise fields.refused("sliding_window", None, "a size, since layer_types has sliding layers")
    values = [size if slides else None for slides in sliding]
    return exceptions("block.attention.window", values, None)


def described_windows(config: ModelConfig) -> tuple[int | None, list[str]]:
    """The one window of the sliding layers, and `layer_types`."""
    found = [getattr(_attention(config, i), "window", None) for i in range(config.n_layers)]
    size = next((w for w in found if w is not None), None)
    return size, [FULL if w is None else SLIDING for w in found]


def _attention(config: ModelConfig, index: int) -> object:
    return getattr(config.layer(index).block, "attention", None)
