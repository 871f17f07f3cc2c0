"""Norms as functions whose decisions can be taken wrongly."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from blocklab.comparison.wiring import Mistake, Tensors, cut
from blocklab.errors import BlocklabError
from blocklab.parts.contract import is_ours
from blocklab.parts.norm import LayerNorm, NoNorm, NormConfig, RMSNorm


@dataclass(frozen=True)
class NormWiring:
    """How a vector is normalised."""

    centred: bool
    eps: float
    eps_place: Literal["inside", "outside", "none"] = "inside"
    unbiased: bool = False
    measure: Literal["root", "square", "total", "none"] = "root"
    """Divide by the root of the mean square, the mean square, the root of the sum, or nothing."""
    gain: Literal["plain", "one_more", "none"] = "plain"
    shift: bool = True
    over: Literal["vector", "positions"] = "vector"
    subtracts: bool = True
    """Whether a centred norm takes the mean away from what it divides, too."""
    cut: str = "nothing"
    """One of NORM_CUTS, where the graph is cut."""


def norm_wiring(config: NormConfig) -> NormWiring | None:
    """The wiring of a norm; None for kind none. Raises BlocklabError for kinds it cannot say."""
    if isinstance(config, NoNorm.Config):
        return None
    if not (isinstance(config, LayerNorm.Config | RMSNorm.Config) and is_ours(config.module)):
        raise BlocklabError(f"norm kind '{config.kind}' cannot be compared; layer and rms can")
    return NormWiring(
        centred=isinstance(config, LayerNorm.Config),
        eps=config.eps,
        gain="one_more" if config.unit_offset else "plain",
    )


def normalise(x: Tensor, tensors: Tensors, wiring: NormWiring) -> Tensor:
    """(..., d) -> (..., d)."""
    axis = -1 if wiring.over == "vector" else -2
    mean = x.mean(axis, keepdim=True) if wiring.centred else x.new_zeros(())
    mean = cut(mean, "both_statistics", wiring)
    centre = x - cut(mean, "mean", wiring)
    total = centre.square().sum(axis, keepdim=True)
    n = x.shape[axis]
    square = total if wiring.measure == "total" else total / (n - 1 if wiring.unbiased else n)
    eps = wiring.eps
    if wiring.measure == "none":
        size = torch.ones_like(square)
    elif wiring.measure == "square":
        size = square + eps
    elif wiring.eps_place == "inside":
        size = (square + eps).sqrt()
    else:
        size = square.sqrt() + (eps if wiring.eps_place == "outside" else 0.0)
    size = cut(cut(size, "statistic", wiring), "both_statistics", wiring)
    y = cut((centre if wiring.subtracts else x) / size, "normalised", wiring)
    if "weight" in tensors and wiring.gain != "none":
        y = y * (tensors["weight"] + (1 if wiring.gain == "one_more" else 0))
    if "bias" in tensors and wiring.shift:
        y = y + tensors["bias"]
    return y


NORM_MISTAKES = (
    Mistake("unbiased-variance", "divides the variance by n − 1, not by n", {"unbiased": True}),
    Mistake("eps-outside-root", "adds eps outside the root, not inside", {"eps_place": "outside"}),
    Mistake(
        "unbiased-and-eps-outside",
        "divides by torch's std() + eps: that divides the variance by n − 1, and eps stands "
        "outside the root",
        {"unbiased": True, "eps_place": "outside"},
    ),
    Mistake("no-eps", "has no eps under the root", {"eps_place": "none"}),
    Mistake("mean-kept", "divides by the right size but keeps the mean", {"subtracts": False}),
    Mistake("no-mean-subtraction", "subtracts no mean: it is an RMSNorm", {"centred": False}),
    Mistake("mean-subtracted", "subtracts the mean: it is a LayerNorm", {"centred": True}),
    Mistake("no-root", "divides by the variance, not by its root", {"measure": "square"}),
    Mistake("sum-not-mean", "takes the sum of squares, not their mean", {"measure": "total"}),
    Mistake("no-division", "does not divide at all", {"measure": "none"}),
    Mistake("no-norm", "normalises nothing", {"measure": "none", "centred": False}),
    Mistake("gain-plus-one", "multiplies by 1 + weight, not by weight", {"gain": "one_more"}),
    Mistake("gain-without-one", "multiplies by weight, not by 1 + weight", {"gain": "plain"}),
    Mistake("gain-unused", "does not multiply by its weight", {"gain": "none"}),
    Mistake("shift-unused", "does not add its bias", {"shift": False}),
    Mistake("wrong-axis", "normalises over positions, not over each vector", {"over": "positions"}),
    *(
        Mistake("other-eps", f"has eps {eps:g}", {"eps": eps})
        for eps in (1e-3, 1e-5, 1e-6, 1e-8, 1e-9, 1e-12)
    ),
)

NORM_CUTS = {
    "statistic": "the statistic that it divides by",
    "mean": "the mean that it subtracts",
    "both_statistics": "both its statistics, the mean and what it divides by,",
    "normalised": "the normalised vector",
}
"""Where a norm's graph may be cut."""
