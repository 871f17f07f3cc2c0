"""Experts balanced over a whole optimiser step, also where it is computed in parts.

The balancing loss is a product of two means over the step: the share of positions that each expert
is sent, which has no gradient, and its probability, which has. Once the shares are known it is a
sum over the parts, so micro-batches and processes come to the gradients of one batch. What the
loss is stands in `parts.experts`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from blocklab.parts.experts import Experts, Routing, weighted_balancing_loss
from blocklab.training.ranks import Alone


def balances(model: nn.Module) -> bool:
    """Whether training adds a loss that keeps experts in balance."""
    return any(isinstance(module, Experts) and module.balance > 0 for module in model.modules())


def chosen_by_all(parts: Sequence[tuple[float, Sequence[Routing]]], ranks: Alone) -> list[Tensor]:
    """For each router the share of the step's positions sent to each expert, (E,).

    `parts` are this process's: how much of the step each is, and what its routers did.
    """
    shares = [
        torch.stack([share * router.chosen.cpu().double() for share, router in one]).sum(0)
        for one in zip(*([(share, r) for r in routing] for share, routing in parts), strict=True)
    ]
    together = ranks.added(torch.cat(shares))
    return list(torch.split(together, [len(share) for share in shares]))


def balance_of_part(
    routing: Sequence[Routing], chosen: Sequence[Tensor] | None = None
) -> Tensor | None:
    """The balancing loss of a part, which its share of the step weighs; None where nothing does.

    `chosen` is from `chosen_by_all`; null means that the part is the whole step.
    """
    if chosen is not None:
        pairs = zip(routing, chosen, strict=True)
        routing = [replace(router, chosen=share.to(router.chosen)) for router, share in pairs]
    return weighted_balancing_loss(routing)


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """A pass through the model inside leaves its buffers as they were."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    yield
    with torch.no_grad():
        for buffer, before in kept:
            buffer.copy_(before)
