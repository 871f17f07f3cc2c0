"""How a model knows where a token stands: learned, sinusoidal, rotary, alibi, none.

A positions part may act in three places, each a method that by default does nothing: it may add to
the embeddings, rotate queries and keys, or bias the attention scores.
"""

import inspect
import math
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, SerializeAsAny
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from blocklab.errors import BlocklabError
from blocklab.parts.linear import is_plain_torch
from blocklab.parts.part import PartConfig, Spec, part, slot
from blocklab.parts.rotary_scaling import NoScaling, RotaryScaling

Tables = tuple[Tensor, Tensor]
"""Cosines and sines of the rotation, each (..., T, rotated // 2)."""


@slot(n_sizes=2)
class PositionsConfig(PartConfig):
    """The positions of a model with `context_length` places in a stream `d_model` wide."""

    slot = "positions"
    default_kind = "learned"


class Positions(nn.Module):
    """Base of positions parts. Positions count from 0 at a sequence's first real token.

    An `embed` or `score_bias` that computes what it gives, instead of looking it up, may take the
    keyword `dtype`: the precision to compute in, that of the stream and at least float32.
    """

    bounded: ClassVar[bool] = False
    """Whether places past context_length mean nothing to a trained model."""

    told_dtype: ClassVar[tuple[str, ...]] = ()
    """Which of `embed` and `score_bias` take `dtype`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.told_dtype = tuple(name for name in ("embed", "score_bias") if _takes_dtype(cls, name))

    def __init__(
        self, d_model: int = 0, context_length: int = 0, config: PositionsConfig | None = None
    ) -> None:
        # Nothing of them is kept: parts of a user's own need not hand them on.
        super().__init__()

    def embed(self, positions: Tensor) -> Tensor | None:
        """What is added to the token embeddings: (..., T) -> (..., T, d_model)."""
        return None

    def tables(self, positions: Tensor, head_dim: int, dtype: torch.dtype) -> Tables | None:
        """What rotates queries and keys at these positions."""
        return None

    def rotate(self, x: Tensor, tables: Tables) -> Tensor:
        """Queries or keys (B, T, heads, head_dim), rotated."""
        return x

    def score_bias(self, distance: Tensor, n_heads: int) -> Tensor | None:
        """What is added to the scores for queries `distance` places after their keys.

        (..., T, S) -> (..., n_heads, T, S).
        """
        return None

    def keys_stay(self, start: int, end: int) -> bool:
        """Whether keys cached while there were `start` tokens still serve when there are `end`."""
        return True


PositionsConfig.contract = Positions


def _takes_dtype(cls: type[Positions], method: str) -> bool:
    function = inspect.getattr_static(cls, method)
    return inspect.isfunction(function) and "dtype" in inspect.signature(function).parameters


def embedding_at(part: Positions, places: Tensor, dtype: torch.dtype) -> Tensor | None:
    """What a part adds to embeddings of this dtype: (..., T) -> (..., T, d_model)."""
    if "embed" not in part.told_dtype:
        return part.embed(places)
    wide = torch.promote_types(dtype, torch.float32)
    return part.embed(places, dtype=wide)  # type: ignore[call-arg]


def bias_at(part: Positions, distance: Tensor, n_heads: int, dtype: torch.dtype) -> Tensor | None:
    """What a part adds to scores that are computed in this dtype, in float32 or more."""
    if "score_bias" not in part.told_dtype:
        return part.score_bias(distance, n_heads)
    return part.score_bias(distance, n_heads, dtype=dtype)  # type: ignore[call-arg]


@part("positions", "none")
class NoPositions(Positions):
    """Nothing but the causal mask tells places apart (Haviv et al. 2022)."""

    class Config(PositionsConfig):
        """Nothing to set."""

        kind: Literal["none"] = "none"

        def parameters(self, d_model: int, context_length: int) -> dict[str, Spec]:  # type: ignore[override]
            return {}


@part("positions", "learned")
class LearnedPositions(Positions):
    """A table with one learned vector a place, added to the embeddings (GPT-2)."""

    bounded = True

    class Config(PositionsConfig):
        """Nothing to set: the table is (context_length, d_model)."""

        kind: Literal["learned"] = "learned"

        def parameters(self, d_model: int, context_length: int) -> dict[str, Spec]:  # type: ignore[override]
            return {"weight": Spec((context_length, d_model), "position")}

    def __init__(self, d_model: int, context_length: int, config: PositionsConfig) -> None:
        super().__init__(d_model, context_length, config)
        # Constructed by nn.Embedding so that it takes the same random numbers as a plain GPT-2.
        self.weight = nn.Embedding(context_length, d_model).weight

    def embed(self, positions: Tensor) -> Tensor:
        """The table's rows: (..., T) -> (..., T, d_model)."""
        return nn.functional.embedding(positions, self.weight)


@part("positions", "sinusoidal")
class SinusoidalPositions(Positions):
    """Fixed sines and cosines of falling frequency, added (Vaswani et al. 2017, section 3.5)."""

    class Config(PositionsConfig):
        """`base`: wavelengths reach from 2 pi to almost base * 2 pi places."""

        kind: Literal["sinusoidal"] = "sinusoidal"
        base: float = Field(10_000.0, gt=1)

        def parameters(self, d_model: int, context_length: int) -> dict[str, Spec]:  # type: ignore[override]
            return {}

    def __init__(self, d_model: int, context_length: int, config: Config) -> None:
        super().__init__(d_model, context_length, config)
        if d_model % 2:
            raise BlocklabError(f"positions.kind: sinusoidal needs an even d_model, not {d_model}")
        self.d_model, self.base = d_model, config.base

    def embed(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Sine and cosine in turn, in `dtype`: (..., T) -> (..., T, d_model)."""
        steps = torch.arange(0, self.d_model, 2, device=positions.device, dtype=dtype)
        angles = positions[..., None] * self.base ** -(steps / self.d_model)  # (..., T, d_model/2)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


@part("positions", "rotary")
class Rotary(Positions):
    """Rotate pairs of query and key dimensions by an angle that grows with the place.

    Su et al. 2021 (RoFormer). Pairs are (i, i + rotated/2) as in Llama, or neighbours (2i, 2i + 1)
    as in GPT-J with `interleaved`. `fraction` rotates the first part of each head only (GPT-NeoX).
    Angles are computed in at least float32.
    """

    bounded = True

    class Config(PositionsConfig):
        """`base`: wavelengths reach from 2 pi to almost base * 2 pi places.

        `fraction`: the share of each head that turns. `interleaved`: pairs are neighbours.
        `scaling`: how frequencies are stretched for long contexts.
        """

        kind: Literal["rotary"] = "rotary"
        base: float = Field(10_000.0, gt=1)
        fraction: float = Field(1.0, gt=0, le=1)
        interleaved: bool = False
        scaling: SerializeAsAny[RotaryScaling] = Field(default_factory=NoScaling)
        """How frequencies are stretched for long contexts: none, linear, dynamic, llama3, …"""

        def parameters(self, d_model: int, context_length: int) -> dict[str, Spec]:  # type: ignore[override]
            return {}

        def rotated(self, head_dim: int) -> int:
            """How many of a head's dimensions turn."""
            rotated = int(head_dim * self.fraction)
            if rotated < 2 or rotated % 2:
                raise BlocklabError(
                    f"positions.fraction: {self.fraction} of head_dim {head_dim} is {rotated} "
                    "dimensions; rotation needs an even number of at least 2"
                )
            self.scaling.check(rotated)
            return rotated

    def __init__(self, d_model: int, context_length: int, config: Config) -> None:
        super().__init__(d_model, context_length, config)
        self.config = config

    def tables(self, positions: Tensor, head_dim: int, dtype: torch.dtype) -> Tables:
        """Cosines and sines of the angles at these places: (..., T) -> (..., T, rotated / 2) each.

        In float32, or float64 where that is the dtype.
        """
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        rotated = self.config.rotated(head_dim)
        exponents = torch.arange(0, rotated, 2, device=positions.device, dtype=wide) / rotated
        base, scaling = self.config.base, self.config.scaling
        lengths = positions.amax(-1, keepdim=True) + 1  # (..., 1)
        frequencies = scaling.frequencies(base**-exponents, base, lengths)
        angles = positions.to(wide)[..., None] * frequencies  # (..., T, rotated/2)
        size = scaling.size()
        if size == 1.0:
            return angles.cos(), angles.sin()
        return angles.cos() * size, angles.sin() * size

    def keys_stay(self, start: int, end: int) -> bool:
        """Whether keys turned among `start` tokens are still right among `end`: see `scaling`."""
        return self.config.scaling.keys_stay(start, end)

    def rotate(self, x: Tensor, tables: Tables) -> Tensor:
        """Queries or keys (B, T, heads, head_dim) turned pair by pair, in their own dtype."""
        cos, sin = (table.unsqueeze(-2) for table in tables)  # (..., T, 1, rotated/2)
        learns = torch.is_grad_enabled() and x.requires_grad
        if is_plain_torch() or not learns or cos.requires_grad or sin.requires_grad:
            return _turned(x, cos, sin, self.config.interleaved)
        return _Turned.apply(x, cos, sin, self.config.interleaved)  # type: ignore[no-any-return, no-untyped-call]


class _Turned(torch.autograd.Function):
    """The gradient of a rotation is the rotation back: one pass instead of a dozen."""

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        return _turned(x, cos, sin, interleaved)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, cos, sin, ctx.interleaved = inputs
        ctx.save_for_backward(cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(gradient, cos, -sin, ctx.interleaved), None, None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """x (..., head_dim) with its first dimensions turned, in the tables' precision."""
    rotated = 2 * cos.shape[-1]
    whole = rotated == x.shape[-1]
    turning = (x if whole else x[..., :rotated]).to(cos.dtype)
    if interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = turning.chunk(2, dim=-1)
        turned = torch.cat(
            (torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)), dim=-1
        )
    turned = turned.to(x.dtype)
    return turned if whole else torch.cat((turned, x[..., rotated:]), dim=-1)


@part("positions", "alibi")
class Alibi(Positions):
    """Scores fall linearly with distance, each head at a slope of its own (Press et al. 2021)."""

    class Config(PositionsConfig):
        """Nothing to set: the slopes follow the number of heads."""

        kind: Literal["alibi"] = "alibi"

        def parameters(self, d_model: int, context_length: int) -> dict[str, Spec]:  # type: ignore[override]
            return {}

    def score_bias(
        self, distance: Tensor, n_heads: int, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Minus a head's slope times the distance: (..., T, S) -> (..., n_heads, T, S)."""
        slopes = torch.tensor(alibi_slopes(n_heads), device=distance.device, dtype=dtype)
        return -slopes.view(-1, 1, 1) * distance.unsqueeze(-3)


def alibi_slopes(n_heads: int) -> list[float]:
    """2^(-8 i / n) for n heads, i = 1..n; other than powers of two take every second of 2n more."""
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    extra = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * (n_heads - power), 2)]
    return slopes + extra
