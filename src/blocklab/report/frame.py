"""The geometry of a chart: from values to pixels and back, and labels that keep their distance."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Frame:
    """One axis: the value at pixel 0, the value at pixel `length`, and all between and beyond."""

    first: float
    last: float
    length: float
    log: bool = False

    @classmethod
    def around(cls, values: Iterable[float], length: float, log: bool = False) -> "Frame":
        """An axis from left to right that holds the values with a little air on both sides."""
        shown = [math.log(v) if log else v for v in values]
        low, high = min(shown), max(shown)
        air = (high - low) * 0.05 or max(abs(high) * 0.05, 1e-3)
        low, high = low - air, high + air
        return cls(math.exp(low), math.exp(high), length, True) if log else cls(low, high, length)

    def upright(self, headroom: float = 0.0) -> "Frame":
        """The same axis from top to bottom, longer by `headroom` pixels above its values."""
        length = self.length + headroom
        return Frame(self.value(self.length + headroom), self.first, length, self.log)

    @property
    def domain(self) -> list[float]:
        return sorted((self.first, self.last))

    def holds(self, value: float) -> bool:
        return self.domain[0] <= value <= self.domain[1]

    def pixel(self, value: float) -> float:
        if self.log:
            return self.length * math.log(value / self.first) / math.log(self.last / self.first)
        return self.length * (value - self.first) / (self.last - self.first)

    def value(self, pixel: float) -> float:
        share = pixel / self.length
        if self.log:
            return self.first * math.exp(share * math.log(self.last / self.first))
        return self.first + share * (self.last - self.first)


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The places nearest to the wanted ones (least squares) that lie `gap` apart in [low, high].

    Isotonic regression by pooling neighbours (Barlow et al. 1972). Where the room is too small,
    the gap shrinks.
    """
    n = len(wanted)
    gap = min(gap, (high - low) / max(n - 1, 1))
    order = sorted(range(n), key=lambda i: wanted[i])
    pools: list[list[float]] = []
    for rank, i in enumerate(order):
        pools.append([wanted[i] - rank * gap])
        while len(pools) > 1 and _mean(pools[-2]) > _mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    level = [_mean(pool) for pool in pools for _ in pool]
    ceiling = high - (n - 1) * gap
    placed = [0.0] * n
    for rank, i in enumerate(order):
        placed[i] = min(max(level[rank], low), ceiling) + rank * gap
    return placed


def decade_ticks(low: float, high: float) -> list[float]:
    """Round values for a logarithmic axis: decades, with values between where decades are few.

    Two at least, but for a range in which no value of two digits lies twice.
    """
    span = math.log10(high / low)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found: list[float] = []
    for steps in _STEPS[0 if span > 3 else 1 if span > 1.6 else 2 :]:
        values = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        found = [value for value in values if low <= value <= high]
        if len(found) > 1:
            break
    return found


_STEPS: tuple[tuple[float, ...], ...] = (
    (1.0,),
    (1.0, 3.0),
    (1.0, 2.0, 5.0),
    *(tuple(tenths / 10 for tenths in range(10, 100, step)) for step in (10, 5, 2, 1)),
)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
