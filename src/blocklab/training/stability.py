"""How stably a run trained, and a model trains over a curve of learning rates, as plain numbers.

Each measure is a pure function of losses, norms and rates that are already known; nothing here
looks into a model (see `measures`) and nothing folds stability into the loss.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from blocklab.errors import BlocklabError

STALLED_WITHIN = 0.05
"""Nats from the unigram entropy at which a run has learnt how frequent tokens are and no more."""

SPIKE_WINDOW = 201
SPIKE_WINDOW_AT_LEAST = 64
SPIKE_RUN_AT_LEAST = 200
"""Steps of a run below which its spikes are not measured."""

Curve: TypeAlias = Mapping[float, float | None]
"""Final loss in nats by learning rate; None, or not finite, where it diverged."""

Floats: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Spikes:
    """Where a training loss leapt out of its own trend."""

    steps: tuple[int, ...]
    """Every flagged step, 1 for the first of the run."""
    events: int
    """Runs of flagged steps: flagged steps with no other tested step between them are one."""
    tested: int

    @property
    def per_thousand(self) -> float:
        """Events per 1,000 tested steps."""
        return 1000 * self.events / self.tested


class SpikeDetector:
    """Tells of each loss, as it comes, whether it is a spike.

    A loss is one when it lies above the Theil-Sen line (Theil 1950, Sen 1968) of the last
    min(201, t) finite losses before it by more than max(0.1, 7 * 1.4826 * MAD), MAD the median
    absolute residual of those losses; the first 64 finite losses are not tested. The line's slope
    is the median over all pairs, its intercept the median of what the slope leaves. The tested loss
    is never part of its own line, and one that is not finite enters no line and is not tested.

    Of the pairs' slopes only those of the newest loss are made at each step: 0.1 ms a loss.
    """

    def __init__(self) -> None:
        self._step = 0
        self._n_finite = 0
        # A ring: a new loss takes the place of the oldest, and its pairs those of the oldest.
        self._steps = np.zeros(SPIKE_WINDOW)
        self._losses = np.zeros(SPIKE_WINDOW)
        self._slopes = np.zeros(SPIKE_WINDOW * (SPIKE_WINDOW - 1) // 2)
        self._flagged: list[int] = []
        self._events = 0
        self._tested = 0
        self._in_event = False

    def see(self, loss: float | None) -> bool:
        """Take the loss of the next step; whether it is a spike."""
        self._step += 1
        if loss is None or not math.isfinite(loss):
            return False
        spike = False
        if self._n_finite >= SPIKE_WINDOW_AT_LEAST:
            spike = self._is_above_the_line(loss)
            self._tested += 1
            if spike:
                self._flagged.append(self._step)
                self._events += not self._in_event
            self._in_event = spike
        self._remember(loss)
        return spike

    @property
    def found(self) -> Spikes | None:
        """What was found so far; None while nothing could be tested."""
        if not self._tested:
            return None
        return Spikes(tuple(self._flagged), self._events, self._tested)

    def _is_above_the_line(self, loss: float) -> bool:
        n = min(self._n_finite, SPIKE_WINDOW)
        slope = _median(self._slopes[: n * (n - 1) // 2])
        # Counted from the tested step, the line's height there is its intercept.
        untilted = self._losses[:n] - slope * (self._steps[:n] - self._step)
        height = _median(untilted)
        scale = 1.4826 * _median(np.abs(untilted - height))
        return bool(loss - height > max(0.1, 7 * scale))

    def _remember(self, loss: float) -> None:
        n = min(self._n_finite, SPIKE_WINDOW)
        place = self._n_finite % SPIKE_WINDOW
        others = np.arange(n)
        if n == SPIKE_WINDOW:
            others = others[others != place]
        rise = self._losses[others] - loss
        self._slopes[_pairs(place, others)] = rise / (self._steps[others] - self._step)
        self._losses[place], self._steps[place] = loss, self._step
        self._n_finite += 1


def _pairs(place: int, others: Indices) -> Indices:
    """Where the slopes of pairs stand, so that those among the first n places come first."""
    high, low = np.maximum(place, others), np.minimum(place, others)
    index: Indices = high * (high - 1) // 2 + low
    return index


def _median(values: Floats) -> float:
    """As np.median, by one partition at a single place, which numpy does five times as fast."""
    middle = len(values) // 2
    parted = np.partition(values, middle)
    if len(values) % 2:
        return float(parted[middle])
    return float(parted[:middle].max() + parted[middle]) / 2


def find_spikes(losses: Sequence[float | None]) -> Spikes | None:
    """The spikes of a whole run, from the training loss of every step.

    See `SpikeDetector` for what one is. None means not measured: fewer than 200 steps, or too few
    finite losses to test any.
    """
    if len(losses) < SPIKE_RUN_AT_LEAST:
        return None
    detector = SpikeDetector()
    for loss in losses:
        detector.see(loss)
    return detector.found


def ended_high(final_loss: float | None, start_loss: float | None, vocab_size: int) -> bool:
    """Whether a run ended no better than it began, or than guessing evenly (ln V)."""
    if final_loss is None or start_loss is None:
        return True
    return not final_loss < min(start_loss, math.log(vocab_size))


def stalled(final_loss: float, unigram_entropy: float) -> bool:
    """Whether a run ended within 0.05 nats of the entropy of the tokens' frequencies."""
    return abs(final_loss - unigram_entropy) <= STALLED_WITHIN


def learnt(final_loss: float | None, unigram_entropy: float) -> bool:
    """Whether a run ended below anything that the tokens' frequencies alone can give."""
    if final_loss is None:
        return False
    return final_loss < unigram_entropy - STALLED_WITHIN


def learning_rate_sensitivity(
    curve: Curve, grid: Iterable[float], *, vocab_size: int, unigram_entropy: float
) -> float | None:
    """Mean over the grid of min(final loss, ln V) - best, in nats (after Wortsman et al. 2023).

    `grid` is the one the study began with, the same for every arm; `curve` may reach further, and
    its lowest loss is the best. What diverged counts as ln V. None when the model learnt at no
    rate: it would be the least sensitive of all. Raises BlocklabError for a rate not on the curve.
    """
    rates = sorted(set(grid))
    for rate in rates:
        if rate not in curve:
            raise BlocklabError(f"learning rate {rate:g}: no run on the curve {sorted(curve)}")
    best = best_rate(curve, unigram_entropy)
    if best is None or not rates:
        return None
    ceiling = math.log(vocab_size)
    lost = [min(_or(curve[rate], ceiling), ceiling) - _or(curve[best]) for rate in rates]
    return math.fsum(lost) / len(lost)


def best_rate(curve: Curve, unigram_entropy: float) -> float | None:
    """The rate with the lowest final loss; None when the model learnt at none."""
    losses = {rate: loss for rate, loss in curve.items() if loss is not None}
    learning = [rate for rate, loss in losses.items() if learnt(loss, unigram_entropy)]
    return min(learning, key=lambda rate: (losses[rate], rate), default=None)


@dataclass(frozen=True)
class WarmupPoint:
    """What warm-up is worth at one learning rate."""

    learning_rate: float
    difference: float | None
    """Loss without warm-up minus loss with it, nats; None where either diverged."""
    diverged_with: bool
    diverged_without: bool


def warmup_dependence(with_warmup: Curve, without: Curve) -> tuple[WarmupPoint, ...]:
    """Loss without warm-up minus loss with it at each rate that both curves have, lowest first.

    The whole curve, not the best against the best: without warm-up the best rate is lower. Where
    one diverged there is no difference, and it says which. Raises BlocklabError without a rate in
    common.
    """
    rates = sorted(with_warmup.keys() & without.keys())
    if not rates:
        raise BlocklabError(
            f"warm-up: no learning rate in common between {sorted(with_warmup)} with it and "
            f"{sorted(without)} without"
        )
    return tuple(_warmup_point(rate, with_warmup[rate], without[rate]) for rate in rates)


def _warmup_point(rate: float, loss: float | None, loss_without: float | None) -> WarmupPoint:
    both = _finite(loss) and _finite(loss_without)
    return WarmupPoint(
        learning_rate=rate,
        difference=_or(loss_without) - _or(loss) if both else None,
        diverged_with=not _finite(loss),
        diverged_without=not _finite(loss_without),
    )


@dataclass(frozen=True)
class GradientNorms:
    """The norms of a run's gradients before clipping, over its finite steps."""

    median: float
    p999: float
    """The 99.9th percentile, interpolated between neighbours."""
    clipped: float | None
    """Share of steps whose norm was above the limit; None without one."""
    not_finite: int
    """Steps left out."""


def summarised_norms(norms: Sequence[float | None], clip: float | None) -> GradientNorms | None:
    """Summary of one norm a step, of the whole gradient or of one block's.

    `clip` is the limit on the whole gradient: give None for a block's. None when no norm is finite.
    """
    finite = np.array([norm for norm in norms if norm is not None and math.isfinite(norm)])
    if not len(finite):
        return None
    return GradientNorms(
        median=float(np.median(finite)),
        p999=float(np.quantile(finite, 0.999)),
        clipped=None if clip is None else float(np.mean(finite > clip)),
        not_finite=len(norms) - len(finite),
    )


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _or(value: float | None, otherwise: float = math.nan) -> float:
    return value if value is not None and math.isfinite(value) else otherwise
