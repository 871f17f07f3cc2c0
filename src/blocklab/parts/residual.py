"""How a branch's output joins the residual stream: add, none, scaled."""

from typing import Literal

import torch
from torch import Tensor, nn

from blocklab.parts.part import PartConfig, Spec, part, slot


@slot(n_sizes=1)
class ResidualConfig(PartConfig):
    """Joins stream and branch, both (..., d_model)."""

    slot = "residual"
    default_kind = "add"


@part("residual", "add")
class Add(nn.Module):
    """stream + branch (He et al. 2016)."""

    class Config(ResidualConfig):
        """Nothing to set."""

        kind: Literal["add"] = "add"

        def parameters(self, d_model: int) -> dict[str, Spec]:  # type: ignore[override]
            return {}

    def __init__(self, d_model: int, config: Config) -> None:
        super().__init__()

    def forward(self, stream: Tensor, branch: Tensor) -> Tensor:
        return stream + branch


@part("residual", "none")
class NoResidual(nn.Module):
    """The branch alone, in the stream's precision: no path around it."""

    class Config(ResidualConfig):
        """Nothing to set."""

        kind: Literal["none"] = "none"

        def parameters(self, d_model: int) -> dict[str, Spec]:  # type: ignore[override]
            return {}

    def __init__(self, d_model: int, config: Config) -> None:
        super().__init__()

    def forward(self, stream: Tensor, branch: Tensor) -> Tensor:
        return branch.to(stream.dtype)


@part("residual", "scaled")
class Scaled(nn.Module):
    """stream + scale * branch; learned from scale 0 it is ReZero (Bachlechner et al. 2020)."""

    class Config(ResidualConfig):
        """`scale`: the factor on the branch, or where it is `learned` its first value."""

        kind: Literal["scaled"] = "scaled"
        scale: float = 1.0
        """The scale, or its first value when learned."""
        learned: bool = False

        def parameters(self, d_model: int) -> dict[str, Spec]:  # type: ignore[override]
            return {"scale": Spec((1,), "gain")} if self.learned else {}

    def __init__(self, d_model: int, config: Config) -> None:
        super().__init__()
        self.scale: float | nn.Parameter = config.scale
        if config.learned:
            del self.scale
            self.scale = nn.Parameter(torch.full((1,), config.scale))

    def forward(self, stream: Tensor, branch: Tensor) -> Tensor:
        return stream + self.scale * branch
