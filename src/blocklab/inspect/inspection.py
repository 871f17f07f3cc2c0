"""Every measurement of a model on one batch, together."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from blocklab.inspect.attention_maps import HeadMeasures, attention_maps, head_measures
from blocklab.inspect.feed_forward import HiddenUnits, hidden_units
from blocklab.inspect.gradients import loss_and_gradient_norms, require_one_target_each
from blocklab.inspect.logit_lens import LensReading, logit_lens, read_positions
from blocklab.inspect.norms import NormMeasures, norm_measures
from blocklab.inspect.stream import StreamSizes, position_similarity, stream_sizes
from blocklab.model.transformer import Transformer

MAP_TOKENS = 16
"""How much of the first sequence an inspection keeps attention maps of."""


@dataclass(frozen=True, repr=False)
class Inspection:
    """What `inspect_model` found; lists have one entry a block unless they say otherwise."""

    parameters: int
    tokens: tuple[int, int]
    """Sequences and their length."""
    loss: float
    """Mean cross-entropy over all positions, nats."""
    gradients: dict[str, float]
    """Gradient norm of every parameter, by path."""
    stream: StreamSizes
    similarity: list[float]
    """Mean cosine similarity between different positions, over the sequences."""
    norms: list[NormMeasures]
    """In the order of the pass."""
    hidden: list[HiddenUnits | None]
    heads: list[HeadMeasures | None]
    lens: list[LensReading]
    """As the stream enters the first block, then after each block; at `lens_positions` of them."""
    lens_positions: int
    maps: list[Tensor | None]
    """Attention weights (n_heads, T, T) of the first tokens of the first sequence."""
    updates: dict[str, float] | None = None
    """Update-to-weight ratio of every parameter, where steps were taken."""

    def __repr__(self) -> str:
        sequences, length = self.tokens
        return (
            f"Inspection({self.parameters:,} parameters on {sequences} × {length} tokens, "
            f"loss {self.loss:.4f})"
        )

    def plain(self) -> dict[str, Any]:
        """As plain JSON values, the maps left out."""
        numbers = ("parameters", "tokens", "loss", "lens_positions")
        found = {name: getattr(self, name) for name in numbers}
        found["stream"] = {"rms": self.stream.rms, "growth": self.stream.growth}
        for name in ("norms", "hidden", "heads", "lens"):
            found[name] = [item and asdict(item) for item in getattr(self, name)]
        for name in ("similarity", "gradients", "updates"):
            found[name] = getattr(self, name)
        return found


def inspect_model(model: Transformer, tokens: Tensor, targets: Tensor) -> Inspection:
    """Measure `model` on `tokens` (B, T) and their next tokens `targets` (B, T).

    Without dropout. The model's outputs, gradients, mode and random numbers stay as they were.
    Raises BlocklabError when the shapes differ or a sequence is a single token.
    """
    require_one_target_each(model, tokens, targets)
    maps = attention_maps(model, tokens[:1, :MAP_TOKENS])
    similarity = position_similarity(model, tokens)
    loss, gradients = loss_and_gradient_norms(model, tokens, targets)
    return Inspection(
        parameters=sum(p.numel() for p in model.parameters()),
        tokens=(tokens.shape[0], tokens.shape[1]),
        loss=loss,
        gradients=gradients,
        stream=stream_sizes(model, tokens),
        similarity=[float(values.mean()) for values in similarity],
        norms=norm_measures(model, tokens),
        hidden=hidden_units(model, tokens),
        heads=head_measures(model, tokens),
        lens=logit_lens(model, tokens, targets),
        lens_positions=len(read_positions(tokens.numel())),
        maps=[None if weights is None else weights[0] for weights in maps],
    )


def by_block(values: Mapping[str, float]) -> dict[str, dict[int, float]]:
    """Numbers by parameter path, regrouped: path inside a block -> block -> number.

    Parameters outside the blocks are left out.
    """
    grouped: dict[str, dict[int, float]] = defaultdict(dict)
    for path, value in values.items():
        first, _, rest = path.partition(".")
        index, _, inner = rest.partition(".")
        if first == "blocks":
            grouped[inner][int(index)] = value
    return dict(grouped)
