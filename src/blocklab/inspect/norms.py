"""What each norm is given and what it makes of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from blocklab.inspect.recording import require_batch, rms, watched, wide
from blocklab.model.transformer import Transformer
from blocklab.parts.norm import NoNorm


@dataclass(frozen=True)
class NormMeasures:
    """One norm over all positions of a batch."""

    path: str
    input_rms: float
    smallest_input_rms: float
    """Of the position whose vector is smallest: near the root of eps, eps decides."""
    largest_coordinate: float
    """Largest magnitude of a coordinate that comes in, in units of its own vector's rms."""
    coordinate: int
    """Which coordinate that is."""
    output_rms: float
    gain: tuple[float, float] | None
    """Smallest and largest factor of the learned gain; None where there is none."""


def norm_measures(model: Transformer, tokens: Tensor) -> list[NormMeasures]:
    """Every norm on the stream, in the order in which `tokens` (B, T) pass through them.

    Without dropout. Norms inside attention and norms of kind none are left out.
    """
    require_batch(model, tokens)
    found: list[NormMeasures] = []

    def measure(path: str, norm: nn.Module) -> Callable[[tuple[Any, ...], Tensor], None]:
        return lambda inputs, output: found.append(_measured(path, norm, inputs[0], output))

    norms = norm_modules(model)
    with watched(model, after={path: measure(path, norm) for path, norm in norms.items()}):
        model.features(tokens)
    return found


def norm_modules(model: Transformer) -> dict[str, nn.Module]:
    """The norms on the stream, by path."""
    norms: dict[str, nn.Module] = {}
    for i, block in enumerate(model.blocks):
        inner = getattr(block, "norm", None)
        if isinstance(inner, nn.ModuleDict):
            norms |= {f"blocks.{i}.norm.{name}": norm for name, norm in inner.items()}
    norms["final_norm"] = model.final_norm
    return {path: norm for path, norm in norms.items() if not isinstance(norm, NoNorm)}


def _measured(path: str, norm: nn.Module, x: Tensor, y: Tensor) -> NormMeasures:
    vectors = wide(x).flatten(0, -2)  # (positions, d)
    sizes = vectors.square().mean(-1).sqrt()
    relative = (vectors.abs() / sizes.clamp(min=1e-30)[:, None]).amax(0)  # (d,)
    return NormMeasures(
        path=path,
        input_rms=rms(x),
        smallest_input_rms=float(sizes.min()),
        largest_coordinate=float(relative.max()),
        coordinate=int(relative.argmax()),
        output_rms=rms(y),
        gain=_gain(norm),
    )


def _gain(norm: nn.Module) -> tuple[float, float] | None:
    weight = getattr(norm, "weight", None)
    if not isinstance(weight, Tensor):
        return None
    offset = 1.0 if getattr(norm, "unit_offset", False) else 0.0
    return float(weight.detach().min()) + offset, float(weight.detach().max()) + offset
