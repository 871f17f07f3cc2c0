"""How rotary frequencies are stretched for contexts longer than a model was first trained on.

A scaling changes the frequencies, and with some kinds the size, of a rotation that
`positions.Rotary` then applies. None of them has parameters.
"""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.record import Tagged


class RotaryScaling(Tagged):
    """Maps the plain frequencies base^(-2i/rotated) to those that are used."""

    slot = "rotary_scaling"
    default_kind = "none"

    def check(self, rotated: int) -> None:
        """Raise BlocklabError where the record does not fit `rotated` dimensions."""

    def frequencies(self, plain: Tensor, base: float, lengths: Tensor) -> Tensor:
        """Frequencies (rotated / 2,), or (..., 1, rotated / 2) where they follow the length.

        `plain` is (rotated / 2,); `lengths` (..., 1) counts each sequence's tokens so far.
        """
        return plain

    def size(self) -> float:
        """Factor on cosines and sines."""
        return 1.0

    def keys_stay(self, start: int, end: int) -> bool:
        """Whether keys turned for `start` tokens are still right once there are `end`."""
        return True


class NoScaling(RotaryScaling):
    """The frequencies as they are."""

    kind: Literal["none"] = "none"


class Linear(RotaryScaling):
    """Places divided by `factor` (Chen et al. 2023, position interpolation)."""

    kind: Literal["linear"] = "linear"
    factor: float = Field(2.0, gt=0)

    def frequencies(self, plain: Tensor, base: float, lengths: Tensor) -> Tensor:
        return plain / self.factor


class Dynamic(RotaryScaling):
    """A base that grows with the sequence past `original_context` ("NTK-aware", bloc97 2023).

    The whole sequence turns by the base of its present length, so keys that were cached past the
    original context are wrong one token later: the model refuses to extend such a cache.
    """

    kind: Literal["dynamic"] = "dynamic"
    factor: float = Field(2.0, ge=1)
    original_context: int = Field(2048, gt=0)

    def check(self, rotated: int) -> None:
        if rotated < 4:
            raise BlocklabError(
                f"positions.scaling.kind: dynamic needs 4 or more rotated dimensions, not {rotated}"
            )

    def frequencies(self, plain: Tensor, base: float, lengths: Tensor) -> Tensor:
        rotated = 2 * plain.shape[-1]
        ratio = lengths.to(plain.dtype).clamp(min=self.original_context) / self.original_context
        growth = (self.factor * ratio - (self.factor - 1)) ** (rotated / (rotated - 2))  # (..., 1)
        steps = torch.arange(0, rotated, 2, device=plain.device, dtype=plain.dtype) / rotated
        return plain * growth.unsqueeze(-1) ** -steps  # (..., 1, rotated / 2)

    def keys_stay(self, start: int, end: int) -> bool:
        return end <= self.original_context


class Llama3(RotaryScaling):
    """Slow frequencies divided by `factor`, fast ones kept, a ramp between (Llama 3.1, 2024).

    A frequency is slow when it turns fewer than `low_frequency` times in the original context,
    fast when more than `high_frequency` times.
    """

    kind: Literal["llama3"] = "llama3"
    factor: float = Field(8.0, gt=0)
    low_frequency: float = Field(1.0, gt=0)
    high_frequency: float = Field(4.0, gt=0)
    original_context: int = Field(8192, gt=0)

    def check(self, rotated: int) -> None:
        if self.high_frequency <= self.low_frequency:
            raise BlocklabError(
                f"positions.scaling.high_frequency: {self.high_frequency} must be above "
                f"low_frequency {self.low_frequency}"
            )

    def frequencies(self, plain: Tensor, base: float, lengths: Tensor) -> Tensor:
        turns = self.original_context * plain / (2 * math.pi)
        kept = (turns - self.low_frequency) / (self.high_frequency - self.low_frequency)
        kept = kept.clamp(0, 1)
        return (1 - kept) * plain / self.factor + kept * plain


class Yarn(RotaryScaling):
    """Slow frequencies interpolated, fast ones kept, attention sharpened (Peng et al. 2023).

    Dimensions that turn more than `beta_fast` times in the original context are kept, those under
    `beta_slow` divided by `factor`.
    """

    kind: Literal["yarn"] = "yarn"
    factor: float = Field(4.0, gt=0)
    original_context: int = Field(4096, gt=0)
    beta_fast: float = Field(32.0, gt=0)
    beta_slow: float = Field(1.0, gt=0)
    amplitude: float | None = Field(None, gt=0)
    """Factor on cosines and sines; null means 0.1 ln(factor) + 1, at least 1."""
    truncate: bool = True
    """Round the ends of the ramp to whole dimensions."""

    def check(self, rotated: int) -> None:
        if self.beta_fast <= self.beta_slow:
            raise BlocklabError(
                f"positions.scaling.beta_fast: {self.beta_fast} must be above "
                f"beta_slow {self.beta_slow}"
            )

    def frequencies(self, plain: Tensor, base: float, lengths: Tensor) -> Tensor:
        n = plain.shape[-1]
        low, high = (
            self._dimension(self.beta_fast, base, n),
            self._dimension(self.beta_slow, base, n),
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * n - 1)
        high = high + 0.001 if low == high else high
        steps = torch.arange(n, device=plain.device, dtype=plain.dtype)
        slow = ((steps - low) / (high - low)).clamp(0, 1)
        return plain / self.factor * slow + plain * (1 - slow)

    def _dimension(self, turns: float, base: float, n: int) -> float:
        """Which pair of dimensions turns this often in the original context."""
        return n * math.log(self.original_context / (turns * 2 * math.pi)) / math.log(base)

    def size(self) -> float:
        if self.amplitude is not None:
            return self.amplitude
        return max(1.0, 0.1 * math.log(self.factor) + 1)


class LongRope(RotaryScaling):
    """Each frequency divided by a factor of its own (Ding et al. 2024; Phi-3).

    `short` serves sequences of up to `original_context` tokens, `long` those beyond. A cache that
    was filled on one side cannot be extended to the other.
    """

    kind: Literal["longrope"] = "longrope"
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()
    original_context: int = Field(4096, gt=1)
    factor: float = Field(1.0, gt=0)
    """The longest context over the original one; it decides `amplitude` where that is null."""
    amplitude: float | None = Field(None, gt=0)
    """Factor on cosines and sines; null means sqrt(1 + ln(factor) / ln(original_context))."""

    def check(self, rotated: int) -> None:
        for name, values in (("short", self.short), ("long", self.long)):
            if len(values) != rotated // 2 or min(values) <= 0:
                raise BlocklabError(
                    f"positions.scaling.{name}: expected {rotated // 2} factors above 0, one for "
                    f"each pair of the {rotated} rotated dimensions, found {len(values)}"
                )

    def frequencies(self, plain: Tensor, base: float, lengths: Tensor) -> Tensor:
        beyond = (lengths > self.original_context).unsqueeze(-1)  # (..., 1, 1)
        short, long = plain.new_tensor(self.short), plain.new_tensor(self.long)
        return plain / torch.where(beyond, long, short)

    def size(self) -> float:
        if self.amplitude is not None:
            return self.amplitude
        if self.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_context))

    def keys_stay(self, start: int, end: int) -> bool:
        return (start > self.original_context) == (end > self.original_context)


for _kind in (NoScaling, Linear, Dynamic, Llama3, Yarn, LongRope):
    _kind.register(_kind.model_fields["kind"].default)
