"""How far each optimiser step moves each parameter, as a share of its size."""

from collections.abc import Callable

import torch
from torch import Tensor

from blocklab.expected import require
from blocklab.model.transformer import Transformer


def update_ratios(
    model: Transformer, step: Callable[[], object], steps: int = 3
) -> dict[str, float]:
    """Mean over `steps` of the norm of a parameter's change over its norm before, by path.

    `step` makes one optimiser step on `model`, which is trained by it: give a copy, or a trainer's
    own model and its `step`. About 1e-3 is a common rule of thumb for matrices; a parameter that
    starts at zero has ratio infinity while it moves, 0 while it stays.
    """
    require(Transformer, model, "model")
    sums = {name: 0.0 for name, _ in model.named_parameters()}
    for _ in range(steps):
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        step()
        for name, parameter in model.named_parameters():
            sums[name] += _ratio(before[name], parameter.detach())
    return {name: total / steps for name, total in sums.items()}


def _ratio(before: Tensor, after: Tensor) -> float:
    moved = torch.linalg.vector_norm(after - before)
    size = torch.linalg.vector_norm(before)
    return 0.0 if moved == 0 else float(moved / size)
