"""Feed-forwards as functions whose decisions can be taken wrongly."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from blocklab.comparison.wiring import Mistake, Tensors, cut
from blocklab.errors import BlocklabError
from blocklab.parts.activation import ACTIVATIONS, Activation
from blocklab.parts.contract import is_ours
from blocklab.parts.feed_forward import MLP, FeedForwardConfig, Gated


@dataclass(frozen=True)
class MLPWiring:
    """Expand, activate, contract."""

    activation: str
    activated: Literal["hidden", "output", "both"] = "hidden"
    biases: bool = True
    adds_input: bool = False
    cut: str = "nothing"
    """One of FEED_FORWARD_CUTS, where the graph is cut."""


@dataclass(frozen=True)
class GatedWiring:
    """activation(gate x) * (up x), contracted."""

    activation: str
    activated: Literal["gate", "up", "both", "product"] = "gate"
    joined: Literal["product", "sum"] = "product"
    biases: bool = True
    adds_input: bool = False
    cut: str = "nothing"


FeedForwardWiring = MLPWiring | GatedWiring


def feed_forward_wiring(config: FeedForwardConfig) -> FeedForwardWiring:
    """The wiring of mlp and gated. Raises BlocklabError for other kinds."""
    if isinstance(config, MLP.Config) and is_ours(config.module):
        return MLPWiring(config.activation)
    if isinstance(config, Gated.Config) and is_ours(config.module):
        return GatedWiring(config.activation)
    raise BlocklabError(f"feed_forward kind '{config.kind}' cannot be compared; mlp and gated can")


def feed(x: Tensor, tensors: Tensors, wiring: FeedForwardWiring) -> Tensor:
    """(..., d_model) -> (..., d_model)."""
    h = cut(x, "input", wiring)
    y = _mlp(h, tensors, wiring) if isinstance(wiring, MLPWiring) else _gated(h, tensors, wiring)
    y = cut(y, "output", wiring)
    return x + y if wiring.adds_input else y


def _mlp(x: Tensor, tensors: Tensors, wiring: MLPWiring) -> Tensor:
    act = activation(wiring.activation)
    h = affine(x, tensors, "expand", wiring.biases)
    h = cut(act(h) if wiring.activated in ("hidden", "both") else h, "hidden", wiring)
    y = affine(h, tensors, "contract", wiring.biases)
    return act(y) if wiring.activated in ("output", "both") else y


def _gated(x: Tensor, tensors: Tensors, wiring: GatedWiring) -> Tensor:
    act = activation(wiring.activation)
    gate = affine(x, tensors, "gate", wiring.biases)
    up = affine(x, tensors, "up", wiring.biases)
    if wiring.activated in ("gate", "both"):
        gate = act(gate)
    if wiring.activated in ("up", "both"):
        up = act(up)
    gate, up = cut(gate, "gate", wiring), cut(up, "up", wiring)
    h = gate * up if wiring.joined == "product" else gate + up
    h = act(h) if wiring.activated == "product" else h
    return affine(cut(h, "hidden", wiring), tensors, "contract", wiring.biases)


def affine(x: Tensor, tensors: Tensors, name: str, biases: bool = True) -> Tensor:
    """x W^T + b, where there is a b."""
    return F.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias") if biases else None)


def activation(name: str) -> Activation:
    """Ours, and a few that are nobody's intention."""
    return _OTHERS.get(name) or ACTIVATIONS[name]


def _gelu_sigmoid(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


_OTHERS: dict[str, Activation] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu_sigmoid": _gelu_sigmoid,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
}

_ACTIVATIONS = {
    "gelu": ("exact-gelu", "uses the exact GELU (erf)"),
    "gelu_tanh": ("tanh-gelu", "uses GELU's tanh approximation"),
    "gelu_sigmoid": ("sigmoid-gelu", "uses GELU's sigmoid approximation x·σ(1.702 x)"),
    "relu": ("relu", "uses ReLU"),
    "silu": ("silu", "uses SiLU"),
    "relu2": ("relu-squared", "uses the square of ReLU"),
    "sigmoid": ("sigmoid", "uses a sigmoid"),
    "tanh": ("tanh", "uses tanh"),
    "leaky_relu": ("leaky-relu", "uses a leaky ReLU"),
    "elu": ("elu", "uses ELU"),
    "identity": ("no-activation", "has no activation between its matrices"),
}

FEED_FORWARD_MISTAKES = (
    *(Mistake(name, words, {"activation": kind}) for kind, (name, words) in _ACTIVATIONS.items()),
    Mistake("activation-at-the-end", "activates the output, not the hidden units",
            {"activated": "output"}),
    Mistake("activated-twice", "activates the hidden units and again the output",
            {"activated": "both"}),
    Mistake("gate-and-up-swapped", "activates the up projection and leaves the gate plain",
            {"activated": "up"}),
    Mistake("activated-after-gating", "activates the product, not the gate",
            {"activated": "product"}),
    Mistake("sum-not-product", "adds gate and up instead of multiplying them", {"joined": "sum"}),
    Mistake("biases-unused", "has biases that it does not add", {"biases": False}),
    Mistake("adds-its-input", "adds its input: the residual connection belongs to the block",
            {"adds_input": True}),
)  # fmt: skip

FEED_FORWARD_CUTS = {
    "input": "its input",
    "hidden": "its hidden units",
    "gate": "its gate",
    "up": "its up projection",
    "output": "its output",
}
"""Where a feed-forward's graph may be cut."""
