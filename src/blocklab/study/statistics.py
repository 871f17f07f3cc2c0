"""Statistics of a study, as pure functions on plain numbers."""

import math
from collections.abc import Mapping, Sequence

from blocklab.study.results import Effect


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
    centre, s = mean(values), spread(values)
    if s is None:
        return Effect(differences, centre, None, None, None)
    # scipy takes a while to import, and only here is it needed.
    from scipy import stats

    n = len(values)
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * s / math.sqrt(n)
    return Effect(differences, centre, s, centre - half, centre + half)
