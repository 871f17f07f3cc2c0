"""How shares, seeds and intervals read in every sentence of a study."""

from blocklab.study.statistics import Estimate


def percent(share: float, decimals: int = 0, signed: bool = False) -> str:
    """A share of one: 0.95 is `95 %`."""
    return f"{100 * share:{'+' if signed else ''}.{decimals}f} %"


def n_seeds(n: int) -> str:
    """A number of seeds: `1 seed`, `5 seeds`."""
    return f"{n} seed" if n == 1 else f"{n} seeds"


def interval_text(estimate: Estimate) -> str:
    """An interval with its level: `95 %: -0.0308 to -0.0117`."""
    return f"{percent(estimate.level)}: {estimate.low:+.4f} to {estimate.high:+.4f}"
