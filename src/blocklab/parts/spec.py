"""What is known of a parameter without building it: its shape and what it is for."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

Role: TypeAlias = Literal[
    "embedding", "position", "matrix", "writer", "head", "gain", "bias", "other"
]
"""What a parameter is for. It decides its first values and whether it decays.

`matrix` reads the residual stream or an inner width; `writer` is the matrix whose product is added
to the stream; `gain` and `other`, of one dimension and of more, keep the values their constructor
gave them.
"""


@dataclass(frozen=True)
class Spec:
    """Shape and role of one parameter, known without building it."""

    shape: tuple[int, ...]
    role: Role

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


def linear(
    name: str, d_in: int, d_out: int, *, bias: bool, role: Role = "matrix"
) -> dict[str, Spec]:
    """The specs of an `nn.Linear(d_in, d_out)` called `name`."""
    specs = {f"{name}.weight": Spec((d_out, d_in), role)}
    if bias:
        specs[f"{name}.bias"] = Spec((d_out,), "bias")
    return specs


def under(prefix: str, specs: dict[str, Spec]) -> dict[str, Spec]:
    """The same specs with their names one level deeper."""
    return {f"{prefix}.{name}": spec for name, spec in specs.items()}
