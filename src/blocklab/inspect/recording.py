"""Watching parts of a model at work: hooks by address, on for one forward pass and off again.

Whatever looks inside a model here goes through `watched`, so that one place keeps the promise that
looking changes nothing: outputs, mode, gradients and random numbers stay as they were to the bit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from blocklab.errors import BlocklabError, nearest
from blocklab.expected import require
from blocklab.model.evaluation import evaluating
from blocklab.model.transformer import Transformer, require_ids

Before: TypeAlias = Callable[[tuple[Any, ...]], None]
"""Told a module's inputs before it runs."""
After: TypeAlias = Callable[[tuple[Any, ...], Tensor], None]
"""Told a module's inputs and its output."""


@dataclass(frozen=True)
class Recorded:
    """What went into a part and what came out of it in one forward pass."""

    inputs: tuple[Tensor, ...]
    output: Tensor


def record(model: Transformer, tokens: Tensor, *addresses: str) -> dict[str, Recorded]:
    """Inputs and outputs of the parts at `addresses`, on one pass over `tokens` (B, T).

    An address is a path of the config tree: `blocks.3.attention` names one part,
    `block.attention` that part in every block, `final_norm` and `head` those of the model. Tensors
    are detached, not copied. Raises BlocklabError for an address that names no module, or one that
    the pass does not run through.
    """
    require_batch(model, tokens)
    found: dict[str, Recorded] = {}
    paths = [path for address in addresses for path in expanded(model, address)]

    def keep(path: str) -> After:
        def after(inputs: tuple[Any, ...], output: Tensor) -> None:
            tensors = tuple(x.detach() for x in inputs if isinstance(x, Tensor))
            found[path] = Recorded(tensors, output.detach())

        return after

    with watched(model, after={path: keep(path) for path in paths}):
        model(tokens)
    for path in paths:
        if path not in found:
            raise BlocklabError(f"{path}: the forward pass does not run through this module")
    return {path: found[path] for path in paths}


def require_batch(model: Transformer, tokens: Tensor) -> None:
    """Raise BlocklabError unless a model of ours and ids (B, T) were given."""
    require(Transformer, model, "model")
    require_ids(tokens)
    if not len(tokens):
        raise BlocklabError("tokens hold no sequence: give at least one")


def expanded(model: Transformer, address: str) -> list[str]:
    """The module paths that an address of the config tree stands for."""
    first, _, rest = address.partition(".")
    paths = [address]
    if first == "block":
        paths = [".".join(filter(None, (f"blocks.{i}", rest))) for i in range(len(model.blocks))]
    modules = dict(model.named_modules())
    for path in paths:
        if path not in modules or not path:
            raise BlocklabError(f"no part at '{path}'; {nearest(path, filter(None, modules))}")
    return paths


@contextmanager
def watched(
    model: Transformer,
    *,
    before: Mapping[str, Before] | None = None,
    after: Mapping[str, After] | None = None,
) -> Iterator[None]:
    """Evaluation without gradients, the modules at these paths watched; all undone at the end."""
    handles = [
        model.get_submodule(path).register_forward_pre_hook(_entering(told))
        for path, told in (before or {}).items()
    ]
    handles += [
        model.get_submodule(path).register_forward_hook(_leaving(told))
        for path, told in (after or {}).items()
    ]
    try:
        with torch.no_grad(), evaluating(model), torch.random.fork_rng(_devices(model)):
            yield
    finally:
        for handle in handles:
            handle.remove()


def wide(x: Tensor) -> Tensor:
    """At least float32, in which every measure is taken."""
    return x if x.dtype == torch.float64 else x.float()


def rms(x: Tensor) -> float:
    """Root mean square over everything."""
    return float(wide(x).square().mean().sqrt())


def _devices(model: Transformer) -> Sequence[torch.device]:
    device = model.embedding.weight.device
    return [device] if device.type == "cuda" else []


def _entering(told: Before) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    return lambda _, inputs: told(inputs)


def _leaving(told: After) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
    return lambda _, inputs, output: told(inputs, output)
