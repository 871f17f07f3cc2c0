"""What a run looked like from inside, as plain numbers: one look, and the summary of a run's looks.

Nothing here looks into a model: that is `measures`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Inspection:
    """One optimiser step seen from inside, block by block.

    The keys of both mappings are `embedding`, `blocks.0`, …, `final_norm`, `head`.
    """

    gradient_norm: dict[str, float]
    """Before clipping."""
    update_ratio: dict[str, float]
    """|weights after - before| / |before|."""
    stream_rms: tuple[float, ...]
    """Root mean square of the residual stream: as it enters, then after each block."""
    position_similarity: tuple[float | None, ...]
    """After each block the mean cosine between its vectors at different positions."""
    largest_attention_logit: tuple[float | None, ...]
    """For each block; None where the attention takes no softmax."""


@dataclass(frozen=True)
class Insides:
    """A run's looks in one line."""

    largest_attention_logit: float | None
    """Over all looks and blocks; None without a softmax."""
    stream_rms: float
    """After the last block, at the last look."""
    stream_growth: float
    """Factor by which each block scales the stream, at the last look."""
    update_ratio: float | None
    """Median over looks and blocks."""
    position_similarity: float | None
    """After the last block, at the last look."""


def summarised_looks(looks: Sequence[Inspection]) -> Insides | None:
    """The summary of a run's looks, first to last; None without any.

    What is not finite stays so where it is the last; medians and maxima leave it out.
    """
    if not looks:
        return None
    logits = _finite([v for look in looks for v in look.largest_attention_logit])
    ratios = _finite([v for look in looks for v in look.update_ratio.values()])
    last = looks[-1]
    return Insides(
        largest_attention_logit=max(logits, default=None),
        stream_rms=last.stream_rms[-1],
        stream_growth=growth_per_block(last.stream_rms),
        update_ratio=float(np.median(ratios)) if ratios else None,
        position_similarity=last.position_similarity[-1],
    )


def growth_per_block(rms: Sequence[float]) -> float:
    """Factor by which each block scales the residual stream: the geometric mean over the blocks.

    Args:
        rms: root mean square of the stream as it enters the first block, then after each one.
    """
    first, last = rms[0], rms[-1]
    return (last / first) ** (1 / (len(rms) - 1)) if first > 0 else math.nan


def _finite(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]
