"""One sublayer: how a branch, its norms and its residual connection meet on the stream."""

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from torch import Tensor, nn

Placement: TypeAlias = Literal["pre", "post", "output", "sandwich"]

NORM_ROLES: dict[Placement, tuple[str, ...]] = {
    "pre": ("into",),  # x + f(norm(x))
    "post": ("stream",),  # norm(x + f(x))
    "output": ("out",),  # x + norm(f(x))
    "sandwich": ("into", "out"),  # x + norm_out(f(norm_in(x)))
}
"""Where each placement has norms: into the branch, on its output, or on the stream after it."""


def through_sublayer(
    stream: Tensor,
    branch: Callable[[Tensor], Tensor],
    norms: Mapping[str, nn.Module],
    residual: nn.Module,
    drop: Callable[[Tensor], Tensor],
) -> Tensor:
    """The stream after one sublayer, (B, T, d_model) -> (B, T, d_model)."""
    h = norms["into"](stream) if "into" in norms else stream
    h = branch(h)
    if "out" in norms:
        h = norms["out"](h)
    stream = residual(stream, drop(h))
    return norms["stream"](stream) if "stream" in norms else stream
