"""What can be swapped in a block: one file a kind of part, each with its record and its counts."""

from blocklab.parts.activation import ACTIVATIONS, register_activation
from blocklab.parts.attention import AttentionConfig, CausalAttention
from blocklab.parts.context import AttentionContext
from blocklab.parts.experts import Experts
from blocklab.parts.feed_forward import MLP, FeedForwardConfig, Gated
from blocklab.parts.norm import DynamicTanh, LayerNorm, NoNorm, NormConfig, RMSNorm
from blocklab.parts.part import PartConfig, Role, Spec, part
from blocklab.parts.positions import (
    Alibi,
    LearnedPositions,
    NoPositions,
    Positions,
    PositionsConfig,
    Rotary,
    SinusoidalPositions,
)
from blocklab.parts.residual import Add, NoResidual, ResidualConfig, Scaled
from blocklab.parts.rotary_scaling import RotaryScaling

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "Add",
    "Alibi",
    "AttentionConfig",
    "AttentionContext",
    "CausalAttention",
    "DynamicTanh",
    "Experts",
    "FeedForwardConfig",
    "Gated",
    "LayerNorm",
    "LearnedPositions",
    "NoNorm",
    "NoPositions",
    "NoResidual",
    "NormConfig",
    "PartConfig",
    "Positions",
    "PositionsConfig",
    "RMSNorm",
    "ResidualConfig",
    "Role",
    "Rotary",
    "RotaryScaling",
    "Scaled",
    "SinusoidalPositions",
    "Spec",
    "part",
    "register_activation",
]


def __dir__() -> list[str]:
    return sorted(__all__)
