"""What happens to the residual stream on its way through the blocks."""

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.inspect.recording import require_batch, rms, watched, wide
from blocklab.model.transformer import Transformer


@dataclass(frozen=True)
class StreamSizes:
    """Root mean square of the stream over all positions of a batch."""

    rms: tuple[float, ...]
    """As the stream enters the first block, then after each block."""

    @property
    def growth(self) -> float:
        """Geometric mean over the blocks of the factor by which each one's rms grows."""
        first, last = self.rms[0], self.rms[-1]
        return (last / first) ** (1 / (len(self.rms) - 1)) if first > 0 else math.nan


def stream_sizes(model: Transformer, tokens: Tensor) -> StreamSizes:
    """How large the residual stream of `tokens` (B, T) is along the blocks, without dropout."""
    return StreamSizes(tuple(rms(stream) for stream in streams(model, tokens)))


def streams(model: Transformer, tokens: Tensor) -> list[Tensor]:
    """The stream (B, T, d_model) as it enters the first block, then after each block."""
    require_batch(model, tokens)
    entering: list[Tensor] = []
    leaving: list[Tensor] = []
    paths = [f"blocks.{i}" for i in range(len(model.blocks))]
    with watched(
        model,
        before={paths[0]: lambda inputs: entering.append(inputs[0])},
        after={path: lambda _, stream: leaving.append(stream) for path in paths},
    ):
        model.features(tokens)
    return entering + leaving


def position_similarity(model: Transformer, tokens: Tensor) -> list[Tensor]:
    """For each block, how alike the vectors it puts out at different positions are.

    The mean cosine similarity over all pairs of different positions of `tokens` (B, T), for each
    sequence: a (B,) tensor a block, 1 where all positions have become the same. Without dropout;
    the model's mode stays as it was.

    Raises BlocklabError for sequences of one token, which have no pair.
    """
    require_batch(model, tokens)
    if tokens.shape[1] < 2:
        raise BlocklabError(
            f"tokens have shape {tuple(tokens.shape)}: expected (B, T) with at least two positions"
        )
    similarities: list[Tensor] = []
    paths = [f"blocks.{i}" for i in range(len(model.blocks))]
    with watched(
        model,
        after={path: lambda _, stream: similarities.append(mean_cosine(stream)) for path in paths},
    ):
        model.features(tokens)
    return similarities


def mean_cosine(stream: Tensor) -> Tensor:
    """Mean over pairs of different positions, (B, T, d) -> (B,)."""
    units = F.normalize(wide(stream), dim=-1)
    n = units.shape[1]
    # |sum of all|^2 holds every ordered pair, those of a position with itself included.
    pairs = units.sum(1).square().sum(-1) - units.square().sum((1, 2))
    return pairs / (n * (n - 1))
