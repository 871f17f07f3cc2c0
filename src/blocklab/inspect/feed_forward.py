"""The hidden units of the feed-forward parts: which never fire, which fire far out of line."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from blocklab.inspect.recording import require_batch, rms, watched, wide
from blocklab.model.transformer import Transformer

DEAD = 1e-3
"""A unit is dead when no position lifts it above this share of the layer's rms."""
OUTLIER = 6.0
"""An activation is an outlier beyond this many times the layer's rms (Dettmers et al. 2022 take
magnitudes from 6 on)."""


@dataclass(frozen=True)
class HiddenUnits:
    """What the matrix that writes to the stream reads, over all positions of a batch."""

    units: int
    rms: float
    dead: int
    """Units that stay within `DEAD` times the rms at every position."""
    largest: float
    """Largest magnitude, in units of the rms."""
    outliers: float
    """Share of activations beyond `OUTLIER` times the rms."""
    kurtosis: float
    """Fourth moment over the squared second: 3 for a normal distribution, more with heavy tails."""


def hidden_units(model: Transformer, tokens: Tensor) -> list[HiddenUnits | None]:
    """Each block's hidden units on `tokens` (B, T), without dropout.

    None where a feed-forward has no single matrix that writes to the stream.
    """
    require_batch(model, tokens)
    found: list[HiddenUnits | None] = [None] * len(model.blocks)

    def measure(block: int) -> Callable[[tuple[Any, ...]], None]:
        def before(inputs: tuple[Any, ...]) -> None:
            found[block] = _measured(inputs[0])

        return before

    paths = {i: path for i in range(len(model.blocks)) if (path := writer_path(model, i))}
    with watched(model, before={path: measure(block) for block, path in paths.items()}):
        model.features(tokens)
    return found


def writer_path(model: Transformer, block: int) -> str | None:
    """Path of the linear map through which a block's feed-forward writes to the stream."""
    specs = model.config.layer(block).block.parameters(model.config.d_model)
    writers = [
        f"blocks.{block}.{name.removesuffix('.weight')}"
        for name, spec in specs.items()
        if spec.role == "writer" and name.startswith("feed_forward.")
    ]
    if len(writers) != 1:
        return None
    # Stacks of experts are no linear map: a parameter has no module of its own.
    (path,) = writers
    return path if isinstance(dict(model.named_modules()).get(path), nn.Linear) else None


def _measured(hidden: Tensor) -> HiddenUnits:
    """Measures of activations (B, T, d_ff)."""
    h = wide(hidden).flatten(0, -2)  # (positions, d_ff)
    size = rms(h)
    if size == 0:
        return HiddenUnits(h.shape[1], 0.0, h.shape[1], 0.0, 0.0, math.nan)
    magnitude = h.abs() / size
    return HiddenUnits(
        units=h.shape[1],
        rms=size,
        dead=int((magnitude.amax(0) <= DEAD).sum()),
        largest=float(magnitude.max()),
        outliers=float((magnitude > OUTLIER).float().mean()),
        kurtosis=float(magnitude.pow(4).mean()),
    )
