"""First values of every weight, by role.

| role      | normal, depth                | fan_in             |
|-----------|------------------------------|--------------------|
| embedding | embedding_std, or std        | embedding_std, or 1 |
| position  | as the embedding             | as the embedding   |
| matrix    | std                          | gain / sqrt(fan in) |
| writer    | as a matrix; divided by sqrt(2 n_layers), or zero, by `residual_writers` |
| head      | head_std, or std             | head_std, or 0.02  |
| bias      | 0                            | 0                  |

Gains, raw parameters of a user's own part, and what its class names in `keeps_values` keep their
constructor's values. A tied table is drawn at the head's std; its lookup is scaled to reach the
embedding's, unless `embedding.scale` is stated. What that is multiplies what was drawn.
"""

import math
from abc import abstractmethod
from typing import Literal

import torch
from pydantic import Field
from torch import nn

from blocklab.parts.read_off import kept_parameters
from blocklab.parts.spec import Spec
from blocklab.record import Tagged
from blocklab.streams import stream_seed


class InitializationConfig(Tagged):
    """How weights are drawn: each std is that of a normal distribution with mean 0."""

    slot = "initialization"
    default_kind = "normal"

    embedding_std: float | None = Field(None, gt=0)
    """Of the token embedding and of learned positions. A tied table reaches it by its lookup's
    scale; it is refused where `embedding.scale` is stated and the table is tied."""
    head_std: float | None = Field(None, gt=0)
    residual_writers: Literal["plain", "depth", "zero"] | None = None
    """Matrices that write to the stream: as others, divided by sqrt(2 n_layers), or zero. Null
    means `depth` under kind depth, else `plain`."""

    @abstractmethod
    def matrix_std(self, fan_in: int) -> float:
        """Std of a matrix that reads vectors of size `fan_in`."""

    @abstractmethod
    def table_std(self) -> float:
        """Std of embeddings, of tokens and positions, before a stated `embedding.scale`."""

    @abstractmethod
    def output_std(self) -> float:
        """Std of the head."""

    def std_of(self, spec: Spec, n_layers: int) -> float | None:
        """Std of a parameter's first values; None keeps what its constructor gave."""
        if spec.role in ("embedding", "position"):
            return self.table_std()
        if spec.role == "head":
            return self.output_std()
        if spec.role == "bias":
            return 0.0
        if spec.role not in ("matrix", "writer"):
            return None
        std = self.matrix_std(spec.shape[-1])
        if spec.role == "matrix" or self.writers() == "plain":
            return std
        return std / math.sqrt(2 * n_layers) if self.writers() == "depth" else 0.0

    def writers(self) -> Literal["plain", "depth", "zero"]:
        """`residual_writers` after resolution."""
        return self.residual_writers or "plain"


class Normal(InitializationConfig):
    """One std for every weight, whatever its size (GPT-2's 0.02)."""

    kind: Literal["normal"] = "normal"
    std: float = Field(0.02, gt=0)

    def matrix_std(self, fan_in: int) -> float:
        return self.std

    def table_std(self) -> float:
        return self.embedding_std or self.std

    def output_std(self) -> float:
        return self.head_std or self.std


class Depth(Normal):
    """Normal, with residual writers divided by sqrt(2 n_layers) (Radford et al. 2019, 2.3)."""

    kind: Literal["depth"] = "depth"  # type: ignore[assignment]

    def writers(self) -> Literal["plain", "depth", "zero"]:
        return self.residual_writers or "depth"


class FanIn(InitializationConfig):
    """Matrices keep the variance of what they read: std gain / sqrt(fan in) (LeCun et al. 1998)."""

    kind: Literal["fan_in"] = "fan_in"
    gain: float = Field(1.0, gt=0)

    def matrix_std(self, fan_in: int) -> float:
        return self.gain / math.sqrt(fan_in)

    def table_std(self) -> float:
        return self.embedding_std or 1.0

    def output_std(self) -> float:
        return self.head_std or 0.02


for _kind in (Normal, Depth, FanIn):
    _kind.register(_kind.model_fields["kind"].default)


def draw_weights(
    model: nn.Module,
    specs: dict[str, Spec],
    initialization: InitializationConfig,
    n_layers: int,
    seed: int | None,
) -> None:
    """Draw every weight of `model` by its role, in module order.

    With a seed each parameter has a generator of its own, so that parameters two models share
    start equal; without one all draw from torch's global generator, as a plain script would.
    Raises BlocklabError where a class keeps the values of a parameter that it has not.
    """
    kept = kept_parameters(model)
    for path, parameter in model.named_parameters():
        std = initialization.std_of(specs[path], n_layers)
        if std is None or parameter in kept:
            continue
        generator = None
        if seed is not None:
            generator = torch.Generator(parameter.device)
            generator.manual_seed(stream_seed(seed, "initialization", path))
        with torch.no_grad():
            if std == 0.0:
                parameter.zero_()
            else:
                parameter.normal_(0.0, std, generator=generator)
