"""Statistics of a study, as pure functions on plain numbers.

Losses and effects are in nats, a negative effect is better. Functions that take a *centre* and
its standard error broadcast over arrays, so that thousands of simulated studies cost one call.
Nothing here knows a run, a rate or a word of a verdict.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blocklab.errors import BlocklabError

SIGNIFICANT = 0.05
"""A p value below it is significant."""

PLACEBO_WARNS_BELOW = 0.01
"""A placebo's p value below it is a reason to distrust the study."""

POWER = 0.8
"""Chance with which an effect of the detectable size is found."""

FIRST_LOOK, SECOND_LOOK = 5.0, 1.25
"""Factors on the p values of two looks: 0.01 of the error is spent at the first, 0.04 after."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Effect:
    """Loss of an arm minus the baseline's, seed by seed; negative is better."""

    differences: Mapping[int, float]
    mean: float
    spread: float | None
    low: float | None
    """Where the interval of the mean begins; None where there is none."""
    high: float | None
    level: float
    """Two-sided, of the interval."""
    no_interval: str = ""
    """Why there is none: one seed, or what the pairs leave open and no figure can say."""


@dataclass(frozen=True)
class Estimate:
    """A mean over pairs, what it leaves open, and how surely it is not zero."""

    mean: float
    standard_error: float
    degrees: float
    """Degrees of freedom of the standard error."""
    n: int
    """Pairs that the mean is over."""
    slack_below: float
    """How far the truth may lie below the mean for reasons that more seeds do not cure, nats."""
    slack_above: float
    level: float
    low: float
    high: float
    p: float
    """Two-sided, against zero."""
    p_positive: float
    """One-sided: small where the truth is above zero."""
    p_negative: float
    """One-sided: small where the truth is below zero."""

    @property
    def slack(self) -> float:
        """The larger of the two slacks, nats."""
        return max(self.slack_below, self.slack_above)

    @property
    def within_slack(self) -> bool:
        """Whether the mean is no larger than the larger slack: nothing is resolved there.

        A parabola may read an arm too low as well as too high, which one-sided slacks do not cover.
        """
        return abs(self.mean) <= self.slack

    def inside(self, bound: float) -> bool:
        """Whether the whole interval lies within ±bound."""
        return -bound < self.low and self.high < bound

    def p_with_sign(self, sign: float) -> float:
        """The one-sided p value for an effect of that sign."""
        return self.p_positive if sign > 0 else self.p_negative


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of at least one number."""
    return math.fsum(values) / len(values)


def spread(values: Sequence[float]) -> float | None:
    """Sample standard deviation (n - 1); None under two numbers."""
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def paired_effect(
    arm: Mapping[int, float], baseline: Mapping[int, float], level: float = 0.95
) -> Effect | None:
    """The arm's losses minus the baseline's over the seeds both have, with the paired t interval.

    `level` is two-sided, n - 1 degrees of freedom (Student 1908). None without a common seed.
    """
    seeds = sorted(arm.keys() & baseline.keys())
    if not seeds:
        return None
    differences = {seed: arm[seed] - baseline[seed] for seed in seeds}
    values = list(differences.values())
    centre, s, n = mean(values), spread(values), len(values)
    if s is None:
        return Effect(differences, centre, None, None, None, level, "one seed")
    low, high = interval(centre, s / math.sqrt(n), n - 1, level=level)
    return Effect(differences, centre, s, float(low), float(high), level)


def paired(
    differences: Sequence[float],
    slack_below: float = 0.0,
    slack_above: float = 0.0,
    level: float = 0.95,
) -> Estimate:
    """Estimate of a mean difference from its pairs (Student 1908), widened by slack.

    Args:
        differences: one a seed, nats, all finite: an incomplete pair is left out, never filled in.
        slack_below, slack_above: nats; for variant minus baseline, the slack of the variant and
            of the baseline, in this order.
        level: two-sided, of the interval.

    Raises BlocklabError under two differences, or when one is not finite.
    """
    values = [float(value) for value in differences]
    if not all(math.isfinite(value) for value in values):
        raise BlocklabError(f"differences: expected finite numbers, found {values}; drop the pair")
    s = spread(values)
    if s is None:
        raise BlocklabError(f"differences: expected two or more, found {len(values)}")
    n = len(values)
    return estimate(mean(values), s / math.sqrt(n), n - 1, n, slack_below, slack_above, level)


def estimate(
    centre: float,
    standard_error: float,
    degrees: float,
    n: int,
    slack_below: float = 0.0,
    slack_above: float = 0.0,
    level: float = 0.95,
) -> Estimate:
    """Estimate of which centre, standard error (nats) and degrees of freedom are known."""
    low, high = interval(centre, standard_error, degrees, slack_below, slack_above, level)
    positive, negative = one_sided(centre, standard_error, degrees, slack_below, slack_above)
    return Estimate(
        mean=centre,
        standard_error=standard_error,
        degrees=degrees,
        n=n,
        slack_below=slack_below,
        slack_above=slack_above,
        level=level,
        low=float(low),
        high=float(high),
        p=float(two_sided(positive, negative)),
        p_positive=float(positive),
        p_negative=float(negative),
    )


def interval(
    centre: ArrayLike,
    standard_error: ArrayLike,
    degrees: ArrayLike,
    slack_below: ArrayLike = 0.0,
    slack_above: ArrayLike = 0.0,
    level: float = 0.95,
) -> tuple[Array, Array]:
    """`[centre - slack_below - t·SE, centre + slack_above + t·SE]`; arguments broadcast."""
    half = _t_quantile((1 + level) / 2, degrees) * np.asarray(standard_error, float)
    centre = np.asarray(centre, float)
    return centre - slack_below - half, centre + slack_above + half


def one_sided(
    centre: ArrayLike,
    standard_error: ArrayLike,
    degrees: ArrayLike,
    slack_below: ArrayLike = 0.0,
    slack_above: ArrayLike = 0.0,
) -> tuple[Array, Array]:
    """`P(T > (centre - slack_below)/SE)` and `P(T > -(centre + slack_above)/SE)`; broadcasts.

    The first is small where the truth is above zero, the second where it is below. Without any
    spread they are 0 or 1, and ½ each for a centre of exactly zero.
    """
    above_zero = np.asarray(centre, float) - np.asarray(slack_below, float)
    below_zero = -np.asarray(centre, float) - np.asarray(slack_above, float)
    return (
        _t_above(above_zero, standard_error, degrees),
        _t_above(below_zero, standard_error, degrees),
    )


def two_sided(positive: ArrayLike, negative: ArrayLike) -> Array:
    """`min(1, 2·min(positive, negative))` of two one-sided p values; broadcasts."""
    return np.minimum(1.0, 2.0 * np.minimum(positive, negative))


def holm(p: ArrayLike) -> Array:
    """Adjusted p values of a family along the last axis (Holm 1979).

    NaN stands for a member that could not be tested: it stays NaN and still counts in the
    family's size, which is fixed before anything is seen.
    """
    raw = np.asarray(p, float)
    order = np.argsort(raw, axis=-1)  # NaN last
    size = raw.shape[-1]
    scaled = np.take_along_axis(raw, order, axis=-1) * (size - np.arange(size))
    stepped = np.minimum(1.0, np.maximum.accumulate(scaled, axis=-1))
    adjusted = np.empty_like(raw)
    np.put_along_axis(adjusted, order, stepped, axis=-1)
    return adjusted


def detectable_effect(
    standard_error: ArrayLike,
    n: int,
    family: int = 1,
    slack_below: ArrayLike = 0.0,
    slack_above: ArrayLike = 0.0,
    level: float = 0.95,
) -> Array:
    """Smallest effect (nats) that a study as noisy as this would have found four times in five.

    `(t(1 - 0.025/k) + t(0.8))·√((n-1)/χ²(0.2))·SE + max(slack)`: the first step of Holm over the
    `family` of k variants, and the upper 80 % bound of the spread that s_d only estimates. The
    sum of two quantiles is a shade short of the noncentral t: of five-seed studies with normal
    noise and one true effect, 79 % (k = 1) to 77 % (k = 4) state one that has this power.

    Args:
        standard_error: s_d/√n, nats; broadcasts.
        n: pairs, two or more.
        level: two-sided, of the study's intervals; 0.025 above is (1 - level)/2.
    """
    from scipy import special

    degrees = n - 1
    # special.chdtri inverts the upper tail: the 0.2 quantile leaves 0.8 above it.
    inflation = math.sqrt(degrees / float(special.chdtri(degrees, 0.8)))
    found = _t_quantile(1 - (1 - level) / 2 / family, degrees)
    missed = _t_quantile(POWER, degrees)
    noise: Array = (found + missed) * inflation * np.asarray(standard_error, float)
    return noise + np.maximum(slack_below, slack_above)


def two_look(first: ArrayLike, second: ArrayLike | None = None) -> Array:
    """p value of a study that may stop at its first look; broadcasts.

    `min(1, 5·p_first, 1.25·p_second)`: Bonferroni over the looks, 0.01 + 0.04 = 0.05.
    """
    p: Array = np.minimum(1.0, FIRST_LOOK * np.asarray(first, float))
    return p if second is None else np.minimum(p, SECOND_LOOK * np.asarray(second, float))


def clopper_pearson(count: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Exact interval of a share from `count` of `n` (Clopper & Pearson 1934); (0, 1) of none."""
    from scipy import special

    tail = (1 - level) / 2
    low = 0.0 if count == 0 else float(special.betaincinv(count, n - count + 1, tail))
    high = 1.0 if count == n else float(special.betaincinv(count + 1, n - count, 1 - tail))
    return low, high


def fisher(count: int, n: int, other_count: int, other_n: int) -> float:
    """Two-sided p value that two shares are equal (Fisher 1922): exact, in whole numbers.

    Sums all tables with the same margins that are no likelier than the one seen. Counts must be
    of independent units: seeds, not runs of one seed at several rates.
    """
    total = count + other_count
    ways = [
        math.comb(n, i) * math.comb(other_n, total - i)
        for i in range(max(0, total - other_n), min(n, total) + 1)
    ]
    seen = math.comb(n, count) * math.comb(other_n, other_count)
    return sum(way for way in ways if way <= seen) / sum(ways)


def placebo_warning(p: float) -> str | None:
    """What to say of a placebo whose effect has this (unadjusted) p value; None if nothing."""
    if not p < PLACEBO_WARNS_BELOW:
        return None
    return (
        f"the placebo, the baseline from another initial draw, differs with p = {p:.2g}: "
        "chance does this once in a hundred studies; distrust the verdicts until it is understood"
    )


def block_bootstrap(
    variant: ArrayLike,
    baseline: ArrayLike,
    tokens: ArrayLike | None = None,
    block: int | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Interval of variant minus baseline that another validation text of this kind could give.

    Circular blocks of neighbouring windows are drawn anew (Politis & Romano 1992), the same for
    both arms and all seeds: it says what the choice of windows leaves open, given these models.
    Percentiles of the resampled mean about the mean seen. As b blocks vary by (b-1)/b too little
    and say little of their own spread, the deviations are widened by √(b/(b-1)) and by the
    quotient of t with b-1 degrees over the normal.

    Args:
        variant, baseline: loss of every validation window in the order of the text, nats, shape
            (windows,) or (seeds, windows); seeds are averaged first.
        tokens: target tokens of each window (windows,), as weights; equal when None.
        block: windows in a block; 3·n^(1/3) of n windows when None, at most n/2.
        seed: of the resampling; equal seeds give equal intervals.

    Raises BlocklabError for unequal shapes, fewer than two windows, or a loss not finite.
    """
    losses, reference = np.asarray(variant, float), np.asarray(baseline, float)
    if losses.shape != reference.shape or losses.ndim not in (1, 2) or losses.shape[-1] < 2:
        raise BlocklabError(
            "window losses: expected two equal shapes (windows,) or (seeds, windows) with two or "
            f"more windows, found {losses.shape} and {reference.shape}"
        )
    difference = np.atleast_2d(losses - reference).mean(axis=0)  # (windows,)
    if not np.isfinite(difference).all():
        raise BlocklabError("window losses: found one that is not finite; leave that pair out")
    n = difference.size
    weight = np.ones(n) if tokens is None else np.asarray(tokens, float)
    length = block or max(1, round(3 * n ** (1 / 3)))
    length = min(length, n // 2)
    centre = float(difference @ weight / weight.sum())
    sums = _circular_sums((difference - centre) * weight, length)  # (windows,), by first window
    weights = _circular_sums(weight, length)
    n_blocks = math.ceil(n / length)
    starts = np.random.default_rng(seed).integers(n, size=(resamples, n_blocks))
    deviations = sums[starts].sum(axis=1) / weights[starts].sum(axis=1)  # (resamples,)
    from scipy import special

    tail = (1 - level) / 2
    few_blocks = float(_t_quantile(tail, n_blocks - 1)) / float(special.ndtri(tail))
    deviations *= math.sqrt(n_blocks / (n_blocks - 1)) * few_blocks
    low, high = np.quantile(deviations, [tail, 1 - tail])
    return centre + float(low), centre + float(high)


def _circular_sums(values: Array, length: int) -> Array:
    """Sum of `length` values from each place on, going round the end."""
    running = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[: length - 1]]))])
    sums: Array = running[length:] - running[:-length]
    return sums


def _t_quantile(probability: float, degrees: ArrayLike) -> Array:
    # scipy takes a while to import; scipy.special a tenth of scipy.stats.
    from scipy import special

    return np.asarray(special.stdtrit(degrees, probability), float)


def _t_above(value: ArrayLike, standard_error: ArrayLike, degrees: ArrayLike) -> Array:
    """P(T > value/SE)."""
    from scipy import special

    top, bottom = np.asarray(value, float), np.asarray(standard_error, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = np.where((top == 0) & (bottom == 0), 0.0, top / bottom)
    return np.asarray(special.stdtr(degrees, -statistic), float)
