"""The learning rate as a curve: which rates to try, and an arm's loss at its own best rate.

An arm is judged where its mean curve over log rate is lowest, read off a parabola; what a
parabola cannot know becomes slack. Nothing here trains: a runner asks `next_rates` until it has
three rates, trains every seed at them, and asks `tuned`. A loss that is None or not finite is
that of a run that diverged; it is never replaced by a number.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from blocklab.errors import BlocklabError
from blocklab.study.statistics import Array

STEP = 3.0
"""Factor between neighbouring rates of the grid; distances below are in such steps."""

DEFAULT_GRID = (1e-3, 3e-3, 9e-3)

EXTENSIONS = 2
"""Steps that the search may go past an edge of its grid, and the reporting rates past the three
they begin with. Those are as many rates more as they are closer together: one noisy seed may have
placed three close ones beside the best."""

HALVINGS = 4
"""How often the spacing may be halved: 3^(1/16), 7 %, is the finest."""

FINEST = 1 << HALVINGS
"""Places of that lattice in one step."""

AT_THE_EDGE = "rate at the grid's edge"

Losses = Mapping[int, float | None]
"""Loss by seed, nats; None or not finite for a run that diverged, no entry where none was made."""


@dataclass(frozen=True)
class Decision:
    """What the search asks for."""

    kind: Literal["try", "report", "undecided"]
    rates: tuple[float, ...]
    """`try`: those to train next with the search seed; `report`: the three for every seed."""
    why: str
    slack: float | None = None
    """Of the curve that the search seed shows at the three rates, nats; None before."""


@dataclass(frozen=True)
class Tuned:
    """An arm read at its own best rate."""

    losses: Losses
    """Each seed's own curve at the tuned rate; None where its run there diverged."""
    learning_rate: float
    """The tuned rate, usually between two that were trained."""
    rates: tuple[float, float, float]
    """Those that the curve is read from; the best in the middle unless `add` is given."""
    weights: tuple[float, float, float]
    """Of the three rates' losses (or of their losses window by window) in the tuned loss."""
    vertex: float
    """Place of the tuned rate, in spacings from the middle rate, within ±½."""
    curvature: float | None
    """f₋ + f₊ - 2·f₀ of the mean curve, nats; None where a neighbour diverged."""
    slack: float
    """How far below the reading the arm's true best loss may lie, nats."""
    add: float | None
    """A rate that every seed must be trained at too, as the best one lies beyond the three."""
    undecided: str | None
    """Why nothing may be claimed of this arm; its losses are then provisional."""


def diverged(loss: float | None) -> bool:
    """Whether a run's final loss says that it diverged."""
    return loss is None or not math.isfinite(loss)


def curvature(lower: ArrayLike, best: ArrayLike, upper: ArrayLike) -> Array:
    """D₂ = f₋ + f₊ - 2·f₀ of the losses (nats) at three equally spaced log rates; broadcasts."""
    bend: Array = np.asarray(lower, float) + np.asarray(upper, float)
    return bend - 2.0 * np.asarray(best, float)


def vertex(lower: ArrayLike, best: ArrayLike, upper: ArrayLike) -> tuple[Array, Array]:
    """Where the parabola through three points is lowest, in spacings from the middle; broadcasts.

    `(f₋ - f₊)/(2·D₂)`, clipped to ±½; and beyond: -1 or 1 where the clipping took something away
    (the next rate on that side is needed), else 0. A curve that is not convex falls towards its
    lower end (towards the lower, stabler rate when both are equal); a flat one has its vertex
    in the middle.
    """
    bend = curvature(lower, best, upper)
    tilt = np.asarray(lower, float) - np.asarray(upper, float)
    downhill = np.where(tilt > 0, np.inf, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.where(bend > 0, tilt / (2.0 * bend), downhill)
    place = np.where((bend == 0) & (tilt == 0), 0.0, place)
    place = np.where(np.isnan(bend), np.nan, place)
    # A tie between the middle and a neighbour is exactly ½ but for rounding.
    beyond = np.where(np.abs(place) > 0.5 + 1e-9, np.sign(place), 0.0)
    return np.clip(place, -0.5, 0.5), beyond


def reading_weights(place: float) -> tuple[float, float, float]:
    """Lagrange's weights of f₋, f₀ and f₊ at a place in spacings from the middle."""
    return place * (place - 1) / 2, 1 - place**2, place * (place + 1) / 2


def slack(lower: float, best: float, upper: float) -> float:
    """How far below a reading the best loss may lie, given the mean losses at three rates (nats).

    D₂/12, its size where the curve is not convex. Where one neighbour diverged: a quarter of
    what the other is above the best, not below zero. Infinite where that is unknown too.
    """
    if not math.isfinite(best):
        return math.inf
    finite = [loss for loss in (lower, upper) if math.isfinite(loss)]
    if len(finite) == 2:
        return abs(float(curvature(lower, best, upper))) / 12
    return max(0.0, finite[0] - best) / 4 if finite else math.inf


def search_grid(rates: Sequence[float]) -> tuple[float, ...]:
    """The rates ×3 apart, to four digits, that a search starts from, lowest first; three or more.

    Built about the middle one of the given rates and as wide as they are: 1e-3, 3e-3 and 1e-2
    become 1e-3, 3e-3 and 9e-3. They are counted from the lowest, as all rates of a search are, so
    that 3e-3, 1e-2 and 3e-2 become 3.333e-3, 9.999e-3 and 3e-2.
    """
    given = sorted(rates)
    if not given or not all(math.isfinite(rate) and rate > 0 for rate in given):
        raise BlocklabError(f"learning rates: expected positive numbers, found {list(rates)}")
    middle = given[len(given) // 2]
    first = min(-1, round(math.log(given[0] / middle, STEP)))
    last = max(1, round(math.log(given[-1] / middle, STEP)))
    origin = _rate(middle, first)
    return tuple(_rate(origin, place) for place in range(last - first + 1))


def next_rates(
    losses_by_rate: Mapping[float, float | None],
    resolution: float,
    grid: Sequence[float] = DEFAULT_GRID,
) -> Decision:
    """What to train next with the search seed, from all that it has shown so far.

    The grid first; past an edge with the best loss at most two further rates; then half-steps
    about the best until the slack of its curve is at most the resolution (for a parabola D₂ of 12
    times that; 6δ at the default of δ/2), four halvings at most: noise alone can bend a curve by
    more than that, and slack then says what the study cannot resolve. The same losses always give
    the same decision, whoever trained them.

    Args:
        losses_by_rate: final loss of the search seed, nats; None or not finite: diverged.
        resolution: the slack to come down to, nats.
        grid: the study's rates; taken ×3 apart by `search_grid`.

    Raises BlocklabError for a rate that the search could not have asked for.
    """
    start = search_grid(grid)
    origin = start[0]
    known = {_place(rate, origin): _number(loss) for rate, loss in losses_by_rate.items()}
    best = _bracketed_best(len(start), known, origin)
    if isinstance(best, Decision):
        return best
    return _refined(best, known, origin, resolution)


def tuned(losses: Mapping[float, Losses], origin: float | None = None) -> Tuned:
    """An arm at its own best rate, from the reporting seeds' losses by rate and seed.

    The best rate is that at which the fewest seeds diverged and then the mean is lowest. Its
    neighbours give the mean parabola, and every seed's own curve is read at the place where that
    is lowest. Where a neighbour diverged for a seed that the best rate did not fail, the arm is
    read at the best rate itself. Only seeds that were trained at every rate are read.

    Args:
        origin: the lowest rate of the search's grid, from which a rate to add is counted: counted
            from another one it could differ in its last digit from one that was tried. None counts
            from the best rate.

    Raises BlocklabError for fewer than three rates, unequal spacing, or no common seed.
    """
    rates = sorted(losses)
    spacing = _spacing(rates)
    seeds = sorted(set.intersection(*(set(losses[rate]) for rate in rates)))
    if not seeds:
        raise BlocklabError("losses: no seed was trained at every one of the rates")
    # (seeds, rates), NaN where diverged
    table = np.array([[_nan(losses[rate][seed]) for rate in rates] for seed in seeds])
    best = _best_rate(table)
    middle = min(max(best, 1), len(rates) - 2)
    three = (rates[middle - 1], rates[middle], rates[middle + 1])
    table = table[:, middle - 1 : middle + 2]
    side = best - middle  # 0, or ±1 where the best has a neighbour on one side only
    add, undecided = None, None
    if side:
        undecided = AT_THE_EDGE
        if (len(rates) - 3) * spacing < EXTENSIONS:
            start = rates[best] if origin is None else origin
            add = _rate(start, _place(rates[best], start) + side * spacing)
            undecided = f"its best rate lies beyond those trained: add {add:g}"
    curve = _mean_curve(table[np.isfinite(table[:, side + 1])], side)
    if undecided is None and math.isinf(curve.slack):
        undecided = "both rates beside the best diverge"
    if np.isnan(table).all():
        undecided = "diverged at every rate"
    weights = reading_weights(curve.place)
    return Tuned(
        losses={seed: _read(row, weights) for seed, row in zip(seeds, table, strict=True)},
        learning_rate=rates[middle] * STEP ** (curve.place * spacing),
        rates=three,
        weights=weights,
        vertex=curve.place,
        curvature=curve.curvature,
        slack=curve.slack,
        add=add,
        undecided=undecided,
    )


@dataclass(frozen=True)
class _Curve:
    place: float
    curvature: float | None
    slack: float


def _mean_curve(table: Array, side: int) -> _Curve:
    """Where and how surely three rates' mean is lowest, over seeds alive at the best of them.

    A mean over the seeds that a neighbour spared would be another curve's: a rate counts as
    diverged as soon as one seed did there.
    """
    if not len(table):
        return _Curve(side, None, math.inf)
    lower, centre, upper = (float(column.mean()) for column in table.T)
    if math.isfinite(lower + centre + upper):
        return _Curve(
            place=float(vertex(lower, centre, upper)[0]),
            curvature=float(curvature(lower, centre, upper)),
            slack=slack(lower, centre, upper),
        )
    return _Curve(side, None, math.inf if side else slack(lower, centre, upper))


def _bracketed_best(
    n_planned: int, known: Mapping[float, float], origin: float
) -> float | Decision:
    """The place with the lowest loss that has a neighbour on both sides, or what it takes."""
    tried = [float(place) for place in range(n_planned)]
    while True:
        if missing := _missing(tried, known, origin):
            return Decision("try", missing, "the grid")
        best = _lowest(tried, known)
        if tried[0] < best < tried[-1]:
            return best
        if len(tried) == n_planned + EXTENSIONS:
            none = all(math.isinf(known[place]) for place in tried)
            return Decision("undecided", (), "diverged at every rate" if none else AT_THE_EDGE)
        # When nothing is finite the lowest rate counts as the best, and a lower one is tried.
        tried = sorted([*tried, best - 1 if best == tried[0] else best + 1])


def _refined(
    best: float, known: Mapping[float, float], origin: float, resolution: float
) -> Decision:
    """Half-steps about the best until its curve's slack is within the resolution."""
    spacing = 1.0
    for halving in range(HALVINGS + 1):
        around = [best - spacing, best, best + spacing]
        if missing := _missing(around, known, origin):
            return Decision("try", missing, f"half-steps about {_rate(origin, best):g}")
        # Half-steps may be lower than the best they were tried about; their outer neighbours
        # are the full steps of the round before.
        best = _lowest(around, known)
        around = [best - spacing, best, best + spacing]
        left_open = slack(*(known[place] for place in around))
        if left_open <= resolution or halving == HALVINGS:
            break
        spacing /= 2
    if math.isinf(left_open):
        return Decision("undecided", (), "both rates beside the best diverge")
    reached = "" if left_open <= resolution else f", above the resolution {resolution:g}"
    rates = tuple(_rate(origin, place) for place in around)
    return Decision("report", rates, f"slack {left_open:.4f}{reached}", left_open)


def _best_rate(table: Array) -> int:
    """Column with the fewest diverged seeds, then the lowest mean over seeds alive in all those."""
    n_diverged = np.isnan(table).sum(axis=0)
    candidates = np.flatnonzero(n_diverged == n_diverged.min())
    alive = np.isfinite(table[:, candidates])
    common = alive.all(axis=1)
    if not common.any():
        return int(candidates[0])
    return int(candidates[np.argmin(table[common][:, candidates].mean(axis=0))])


def _read(curve: Array, weights: tuple[float, float, float]) -> float | None:
    # A rate without weight may have diverged: 0·NaN must not enter.
    terms = [weight * float(loss) for weight, loss in zip(weights, curve, strict=True) if weight]
    total = math.fsum(terms)
    return total if math.isfinite(total) else None


def _spacing(rates: Sequence[float]) -> float:
    """Steps between neighbouring rates, on the lattice of the search."""
    if len(rates) < 3:
        raise BlocklabError(f"rates: expected three or more, found {rates}")
    gaps = np.diff(np.log(rates) / math.log(STEP))
    if np.ptp(gaps) > 0.05 * gaps.mean():
        raise BlocklabError(f"rates: expected equal factors between neighbours, found {rates}")
    return max(1, round(float(gaps.mean()) * FINEST)) / FINEST


def _place(rate: float, origin: float) -> float:
    """Steps from the origin, on the lattice of the finest half-steps."""
    exact = float(math.log(rate / origin, STEP)) * FINEST
    if abs(exact - round(exact)) > 0.05:
        raise BlocklabError(
            f"learning rate {rate:g}: not one that a search from {origin:g} asks for; "
            "give the losses at its own rates only"
        )
    return round(exact) / FINEST


def _rate(origin: float, place: float) -> float:
    """The rate that many steps from the origin, to four digits so that it can be written down."""
    return float(f"{origin * STEP**place:.4g}") if place else origin


def _lowest(places: Sequence[float], known: Mapping[float, float]) -> float:
    """The place with the lowest loss; the lower one of equals."""
    return min(places, key=lambda place: (known[place], place))


def _missing(
    places: Sequence[float], known: Mapping[float, float], origin: float
) -> tuple[float, ...]:
    return tuple(_rate(origin, place) for place in places if place not in known)


def _number(loss: float | None) -> float:
    """The loss, infinite for a run that diverged: worse than every other, never averaged."""
    return math.inf if loss is None or diverged(loss) else loss


def _nan(loss: float | None) -> float:
    return math.nan if loss is None or diverged(loss) else loss
