"""What happens to the residual stream on its way through the blocks."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blocklab.errors import BlocklabError
from blocklab.model.evaluation import evaluating
from blocklab.model.transformer import Transformer


def position_similarity(model: Transformer, tokens: Tensor) -> list[Tensor]:
    """For each block, how alike the vectors it puts out at different positions are.

    The mean cosine similarity over all pairs of different positions of `tokens` (B, T), for each
    sequence: a (B,) tensor a block, 1 where all positions have become the same. Without dropout;
    the model's mode stays as it was.

    Raises BlocklabError for sequences of one token, which have no pair.
    """
    if tokens.ndim != 2 or tokens.shape[1] < 2:
        raise BlocklabError(
            f"tokens have shape {tuple(tokens.shape)}: expected (B, T) with at least two positions"
        )
    similarities: list[Tensor] = []

    def measure(_: nn.Module, __: tuple[object, ...], stream: Tensor) -> None:
        similarities.append(mean_cosine(stream))

    hooks = [block.register_forward_hook(measure) for block in model.blocks]
    try:
        with torch.no_grad(), evaluating(model):
            model.features(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return similarities


def mean_cosine(stream: Tensor) -> Tensor:
    """Mean over pairs of different positions, (B, T, d) -> (B,)."""
    wide = stream if stream.dtype == torch.float64 else stream.float()
    units = F.normalize(wide, dim=-1)
    n = units.shape[1]
    # |sum of all|^2 holds every ordered pair, those of a position with itself included.
    pairs = units.sum(1).square().sum(-1) - units.square().sum((1, 2))
    return pairs / (n * (n - 1))
