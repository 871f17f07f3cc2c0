"""Tensors of which every process holds a part (FSDP2), and plain ones alike.

A spread tensor is torch's DTensor. What is asked of the whole is asked by all processes together,
in the same order. Only how parts lie is known here; who the processes are is `ranks`.
"""

import torch
from torch import Tensor


def is_spread(tensor: Tensor) -> bool:
    """Whether this process holds a part only. Without importing what spreads tensors."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """All of it, on every process; a plain tensor is that already."""
    return tensor.full_tensor() if is_spread(tensor) else tensor  # type: ignore[attr-defined]


def part_here(tensor: Tensor) -> Tensor:
    """The part that this process holds, where it lies in memory."""
    return tensor.to_local() if is_spread(tensor) else tensor  # type: ignore[attr-defined]


def placed_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy of a whole tensor with the type and the device of `like`, spread as that is."""
    moved = tensor.to(like.device, like.dtype, copy=True)
    if not is_spread(like):
        return moved
    from torch.distributed.tensor import distribute_tensor

    # Every process has all of it: nothing is sent.
    return distribute_tensor(
        moved,
        like.device_mesh,  # type: ignore[attr-defined]
        like.placements,  # type: ignore[attr-defined]
        src_data_rank=None,
    )


def total_norm(tensors: list[Tensor]) -> float:
    """Of all of them together, whoever holds their parts."""
    return float(whole(torch.nn.utils.get_total_norm(tensors)))


def all_finite(tensor: Tensor) -> bool:
    return bool(whole(torch.isfinite(tensor.detach()).all()))
