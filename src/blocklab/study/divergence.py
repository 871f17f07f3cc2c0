"""In how many seeds two arms diverged: counted beside the loss, never turned into one."""

from collections.abc import Sequence
from dataclasses import dataclass

from blocklab.study.rates import Losses, diverged
from blocklab.study.statistics import SIGNIFICANT, clopper_pearson, fisher
from blocklab.study.wording import percent


@dataclass(frozen=True)
class Divergence:
    """In how many of the same seeds two arms diverged."""

    count: int
    baseline_count: int
    n: int

    @property
    def p(self) -> float:
        """Fisher's, two-sided."""
        return fisher(self.count, self.n, self.baseline_count, self.n)

    @property
    def in_more_seeds(self) -> bool:
        """Whether an effect over the seeds that are left would hide some of this arm's failures."""
        return self.count > self.baseline_count

    @property
    def less_stable(self) -> bool:
        return self.in_more_seeds and self.p < SIGNIFICANT

    @property
    def counts(self) -> str:
        shares = [
            f"{count} of {self.n} ({percent(low)} to {percent(high)})"
            for count in (self.count, self.baseline_count)
            for low, high in [clopper_pearson(count, self.n)]
        ]
        return f"diverged in {shares[0]} against {shares[1]}"

    @property
    def sentence(self) -> str:
        return f"{self.counts}: less stable (p = {self.p:.2g})" if self.less_stable else self.counts


def divergence_of(baseline: Losses, variant: Losses, seeds: Sequence[int]) -> Divergence:
    """Over the seeds that both arms were trained with."""
    both = [seed for seed in seeds if seed in variant and seed in baseline]
    return Divergence(
        count=sum(diverged(variant[seed]) for seed in both),
        baseline_count=sum(diverged(baseline[seed]) for seed in both),
        n=len(both),
    )
