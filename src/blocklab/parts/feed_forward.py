"""Position-wise feed-forward parts: mlp (two matrices) and gated (SwiGLU, GeGLU, ReGLU)."""

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from blocklab.errors import BlocklabError
from blocklab.parts.activation import ACTIVATIONS, ActivationName
from blocklab.parts.linear import Linear
from blocklab.parts.part import PartConfig, Spec, linear, part, slot


@slot(n_sizes=1)
class FeedForwardConfig(PartConfig):
    """A map of each position by itself, (..., d_model) -> (..., d_model)."""

    slot = "feed_forward"
    default_kind = "mlp"

    def width(self, d_model: int) -> int | None:
        """The inner width d_ff after resolution; None where the part has none."""
        return None


@part("feed_forward", "mlp")
class MLP(nn.Module):
    """Expand, activate, contract (Vaswani et al. 2017, section 3.3).

    Shapes: (..., d_model) -> (..., d_model), through (..., d_ff).
    """

    class Config(FeedForwardConfig):
        """`d_ff`: the inner width; null means 4 * d_model. `activation`: what acts there, by name.
        `bias`: on both matrices.
        """

        kind: Literal["mlp"] = "mlp"
        d_ff: int | None = Field(None, gt=0)
        """Inner width; null means 4 * d_model."""
        activation: ActivationName = "gelu_tanh"
        bias: bool = True

        def width(self, d_model: int) -> int:
            return self.d_ff or 4 * d_model

        def parameters(self, d_model: int) -> dict[str, Spec]:  # type: ignore[override]
            d_ff = self.width(d_model)
            return linear("expand", d_model, d_ff, bias=self.bias) | linear(
                "contract", d_ff, d_model, bias=self.bias, role="writer"
            )

    def __init__(self, d_model: int, config: Config) -> None:
        super().__init__()
        d_ff = config.width(d_model)
        self.activation = ACTIVATIONS[config.activation]
        self.expand = Linear(d_model, d_ff, bias=config.bias)
        self.contract = Linear(d_ff, d_model, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(self.activation(self.expand(x)))  # type: ignore[no-any-return]


@part("feed_forward", "gated")
class Gated(nn.Module):
    """One half of the expansion gates the other (Shazeer 2020, "GLU Variants").

    SwiGLU with silu, GeGLU with gelu, ReGLU with relu. `expand` holds both matrices, the gate's
    rows first. Shapes: (..., d_model) -> (..., d_model), through (..., 2 * d_ff).
    """

    class Config(FeedForwardConfig):
        """`d_ff`: the inner width; null means int(8 * d_model / 3 / 64) * 64. `activation`: what
        acts on the gate, by name. `bias`: on all three matrices.
        """

        kind: Literal["gated"] = "gated"
        d_ff: int | None = Field(None, gt=0)
        """Inner width; null means int(8 * d_model / 3 / 64) * 64: the parameters of a 4x mlp."""
        activation: ActivationName = "silu"
        bias: bool = False

        def width(self, d_model: int) -> int:
            d_ff = self.d_ff or int(8 * d_model / 3 / 64) * 64
            if not d_ff:
                raise BlocklabError(
                    f"block.feed_forward.d_ff: d_model {d_model} is too small for the rule "
                    "int(8 * d_model / 3 / 64) * 64; give d_ff"
                )
            return d_ff

        def parameters(self, d_model: int) -> dict[str, Spec]:  # type: ignore[override]
            d_ff = self.width(d_model)
            return linear("expand", d_model, 2 * d_ff, bias=self.bias) | linear(
                "contract", d_ff, d_model, bias=self.bias, role="writer"
            )

    def __init__(self, d_model: int, config: Config) -> None:
        super().__init__()
        d_ff = config.width(d_model)
        self.activation = ACTIVATIONS[config.activation]
        self.expand = Linear(d_model, 2 * d_ff, bias=config.bias)
        self.contract = Linear(d_ff, d_model, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.expand(x).chunk(2, dim=-1)  # each (..., d_ff)
        return self.contract(self.activation(gate) * value)  # type: ignore[no-any-return]
