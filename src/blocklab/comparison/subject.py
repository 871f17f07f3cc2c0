"""What is compared: a record's part as a function, with an input to try it on and its mistakes."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blocklab.comparison.attention import (
    ATTENTION_CUTS,
    attend,
    attention_mistakes,
    attention_wiring,
)
from blocklab.comparison.feed_forward import (
    FEED_FORWARD_CUTS,
    FEED_FORWARD_MISTAKES,
    feed,
    feed_forward_wiring,
)
from blocklab.comparison.layouts import (
    Layout,
    attention_layouts,
    gated_layouts,
    mlp_layouts,
    norm_layouts,
)
from blocklab.comparison.learner import Learner
from blocklab.comparison.model_layouts import model_layouts
from blocklab.comparison.norm import NORM_CUTS, NORM_MISTAKES, norm_wiring, normalise
from blocklab.comparison.sheets import gathered
from blocklab.comparison.transformer import (
    transform,
    transformer_cuts,
    transformer_mistakes,
    transformer_wiring,
)
from blocklab.comparison.wiring import Compute, Mistake, cuts
from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.parts.attention import CausalAttention
from blocklab.parts.feed_forward import MLP, FeedForwardConfig, Gated
from blocklab.parts.norm import NormConfig
from blocklab.parts.part import PartConfig
from blocklab.parts.positions import PositionsConfig

BATCH, LENGTH = 2, 6
MOST_POSITIONS = 128
"""Of a probe that is made longer, so that a window shows."""
ANY_WIDTH = 48
"""The width of the probe for a module that takes every width."""

_OF_A_PART = re.compile(r"blocks\.\d+\.(attention|feed_forward)\.")


@dataclass(frozen=True)
class Subject:
    """One part, ready to be tried."""

    name: str
    probe: Tensor
    width: int
    """Size of the output's last dimension."""
    wiring: Any
    compute: Compute
    mistakes: tuple[Mistake, ...]
    cuts: tuple[Mistake, ...]
    """Mistakes that leave the outputs as they are and change gradients."""
    layouts: tuple[Layout, ...]
    expected: Mapping[str, tuple[int, ...]]
    """Our parameters and their shapes."""
    notes: tuple[str, ...] = ()
    """Differences in shape that were taken over from the learner's."""


def subject_of(
    learner: Learner,
    config: PartConfig | ModelConfig,
    d_model: int | None,
    positions: PositionsConfig | None,
) -> Subject:
    """The subject for a learner's module. Raises BlocklabError when no shape fits."""
    if isinstance(config, ModelConfig):
        return _model(learner, config)
    width = d_model or _width(learner)
    if isinstance(config, NormConfig):
        return _norm(learner, config, width)
    if isinstance(config, FeedForwardConfig):
        return _feed_forward(learner, config, width)
    if isinstance(config, CausalAttention.Config):
        return _attention(learner, config, width, positions)
    raise BlocklabError(
        f"{type(config).__qualname__} cannot be compared: expected the record of a norm, a "
        "feed-forward, causal attention, or a ModelConfig"
    )


def _width(learner: Learner) -> int:
    """The one input width that the module accepts and gives back."""
    sizes = learner.sizes
    for size in [*(size for size in sizes if size > 1), ANY_WIDTH]:
        x = torch.zeros(1, 2, size, dtype=torch.float64)
        try:
            with torch.no_grad():
                if learner(x).shape == x.shape:
                    return size
        except BlocklabError:
            continue
    raise BlocklabError(
        f"{learner.name}: no input (B, T, d) gives back (B, T, d) for any d of its parameters "
        f"({', '.join(map(str, sorted(sizes))) or 'it has none'}){learner.no_parameter()}; "
        "give d_model to see why"
    )


def _norm(learner: Learner, config: NormConfig, d: int) -> Subject:
    wiring = norm_wiring(config)
    if wiring is None:
        raise BlocklabError("norm kind 'none' computes nothing to compare")
    probe = _random(BATCH, LENGTH, d)
    # Sizes from a hundredth to ten, so that eps and the root show; a mean, so that it shows.
    sizes = torch.logspace(-2, 1, BATCH * LENGTH, dtype=torch.float64).view(BATCH, LENGTH, 1)
    return Subject(
        f"norm {config.kind}",
        (probe + 0.5) * sizes,
        d,
        wiring,
        normalise,
        NORM_MISTAKES,
        cuts("", NORM_CUTS),
        tuple(norm_layouts(gathered(learner.module).vectors)),
        {name: spec.shape for name, spec in config.parameters(d).items()},
    )


def _feed_forward(learner: Learner, config: FeedForwardConfig, d: int) -> Subject:
    wiring = feed_forward_wiring(config)
    assert isinstance(config, MLP.Config | Gated.Config)
    ways = gathered(learner.module).ways
    make = mlp_layouts if isinstance(config, MLP.Config) else gated_layouts
    own = _own_width(config, d)
    layouts, d_ff = [], own
    for d_ff in _widths(learner, own, {d}):
        layouts = make(ways, d, d_ff)
        if layouts:
            break
    if not layouts:
        raise BlocklabError(_nothing_fits(learner, f"feed_forward {config.kind}", d))
    return Subject(
        f"feed_forward {config.kind}",
        _random(BATCH, LENGTH, d),
        d,
        wiring,
        feed,
        FEED_FORWARD_MISTAKES,
        cuts("", FEED_FORWARD_CUTS),
        tuple(layouts),
        _expected_feed_forward(config, d, d_ff or 0),
        _other_width(d_ff, own),
    )


def _widths(learner: Learner, own: int | None, others: set[int]) -> list[int]:
    """Hidden widths to try: ours first, then every size that the learner's matrices have."""
    sizes = {size for p in learner.parameters.values() if p.ndim >= 2 for size in p.shape}
    halves = {size // 2 for size in sizes if size % 2 == 0}
    found = sorted(sizes - others, reverse=True) + sorted(halves - sizes, reverse=True)
    found += sorted(others & sizes)
    return found if own is None else [own, *(size for size in found if size != own)]


def _other_width(d_ff: int | None, own: int | None) -> tuple[str, ...]:
    """A note where the learner chose another hidden width than ours, whose rule may give none."""
    same = own is None or d_ff == own
    return () if same else (f"has hidden width {d_ff}; ours {own}",)


def _own_width(config: FeedForwardConfig, d: int) -> int | None:
    try:
        return config.width(d)
    except BlocklabError:
        return None


def _expected_feed_forward(
    config: FeedForwardConfig, d: int, d_ff: int
) -> dict[str, tuple[int, ...]]:
    """At the hidden width that the learner chose."""
    assert isinstance(config, MLP.Config | Gated.Config)
    expanding = ["expand"] if isinstance(config, MLP.Config) else ["gate", "up"]
    shapes = dict.fromkeys(expanding, (d_ff, d)) | {"contract": (d, d_ff)}
    return _of_linears(shapes, shapes if config.bias else ())


def _of_linears(
    shapes: Mapping[str, tuple[int, int]], biased: Collection[str]
) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        found[f"{name}.weight"] = shape
        if name in biased:
            found[f"{name}.bias"] = shape[:1]
    return found


def _attention(
    learner: Learner, config: CausalAttention.Config, d: int, positions: PositionsConfig | None
) -> Subject:
    wiring = attention_wiring(config, d, positions)
    layouts = attention_layouts(gathered(learner.module, wiring.n_heads).ways, d, wiring)
    if not layouts:
        raise BlocklabError(_nothing_fits(learner, "attention", d))
    return Subject(
        "attention causal",
        _random(BATCH, _length(config.window), d),
        d,
        wiring,
        attend,
        attention_mistakes(wiring, d),
        cuts("", ATTENTION_CUTS),
        tuple(layouts),
        _expected_attention(config, d),
    )


def _length(window: int | None) -> int:
    """Positions of a probe: some that a window hides, and one that a wider one would not."""
    if window is None:
        return LENGTH
    if window > MOST_POSITIONS - 2:
        raise BlocklabError(
            f"block.attention.window: {window} is more than the {MOST_POSITIONS} positions that a "
            "comparison tries; make it smaller in both"
        )
    return max(LENGTH, window + 2)


def _expected_attention(config: CausalAttention.Config, d: int) -> dict[str, tuple[int, ...]]:
    n_heads, n_kv_heads, head_dim = config.heads(d)
    wide, narrow = (n_heads * head_dim, d), (n_kv_heads * head_dim, d)
    shapes = {"query": wide, "key": narrow, "value": narrow, "output": wide[::-1]}
    biased = {"query", "key", "value"} if config.qkv_bias else set()
    return _of_linears(shapes, biased | ({"output"} if config.out_bias else set()))


def _model(learner: Learner, config: ModelConfig) -> Subject:
    wiring = transformer_wiring(config)
    d, sizes = config.d_model, (config.rows, config.context_length)
    own = _own_width(config.block.feed_forward, d)  # type: ignore[attr-defined]
    layouts, d_ff, refused = [], own, None
    for d_ff in _widths(learner, own, {d, *sizes}):
        try:
            layouts = model_layouts(learner.module, wiring, d, d_ff, sizes)
            break
        except BlocklabError as error:
            refused = refused or error
    if not layouts:
        raise refused or BlocklabError(_nothing_fits(learner, "model", d))
    window = wiring.attention.window
    seen = None if window is None or window >= config.context_length else window
    length = min(config.context_length - 1, _length(seen)) or 1
    generator = torch.Generator().manual_seed(1)
    return Subject(
        "model",
        torch.randint(0, config.rows, (BATCH, length), generator=generator),
        config.rows,
        wiring,
        transform,
        transformer_mistakes(wiring, config.d_model),
        transformer_cuts(wiring),
        tuple(layouts),
        _expected_model(config, d_ff or 0),
        _other_width(d_ff, own),
    )


def _expected_model(config: ModelConfig, d_ff: int) -> dict[str, tuple[int, ...]]:
    """Our parameters, with fused matrices apart, as they are compared."""
    block: Any = config.block
    parts = {
        "attention": _expected_attention(block.attention, config.d_model),
        "feed_forward": _expected_feed_forward(block.feed_forward, config.d_model, d_ff),
    }
    found = {name: spec.shape for name, spec in config.parameters().items()}
    found = {name: shape for name, shape in found.items() if not _OF_A_PART.match(name)}
    for i in range(config.n_layers):
        for part, shapes in parts.items():
            found |= {f"blocks.{i}.{part}.{name}": shape for name, shape in shapes.items()}
    return found


def _nothing_fits(learner: Learner, part: str, d: int) -> str:
    shapes = ", ".join(f"{n} {tuple(p.shape)}" for n, p in learner.parameters.items()) or "none"
    return (
        f"{learner.name}: none of its parameters fit our {part} at d_model {d}; it has {shapes}"
        f"{learner.no_parameter()}"
    )


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
