"""What goes wrong in a part of the user's own, in a line that names its place and its class."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.model.layers import Layer
from blocklab.model.overwritten import overwritten
from blocklab.model.transformer import Transformer
from blocklab.parts.contract import METHODS, in_a_line, is_ours, may_be_reworded
from blocklab.parts.part import PartConfig
from blocklab.parts.positions import Positions
from blocklab.record import Tagged

WRITING = ("attention", "feed_forward", "block")
"""Slots whose parts write to the residual stream."""


def _own_parts(model: nn.Module) -> dict[str, tuple[str, nn.Module]]:
    """The user's own parts by path, each with its slot."""
    slots = {
        kind.module: slot
        for slot in METHODS
        for kind in Tagged._kinds.get(slot, {}).values()
        if issubclass(kind, PartConfig) and not is_ours(kind.module)
    }
    return {
        path: (slots[type(module)], module)
        for path, module in model.named_modules()
        if type(module) in slots
    }


@contextmanager
def faults_named(model: nn.Module) -> Iterator[None]:
    """Inside, what a user's own part raises or puts out wrongly becomes a BlocklabError.

    What our own parts raise stays what it is.
    """
    own = _own_parts(model)
    hooks = [
        module.register_forward_hook(_checking(path))
        for path, (slot, module) in own.items()
        if slot != "positions"
    ]
    try:
        _require_embedding(model, own)
        yield
    except Exception as error:
        found = _raised_in(own, error) if may_be_reworded(error) else None
        if found is None:
            raise
        path, module, method = found
        raise BlocklabError(
            f"{path}: {type(module).__name__}.{method} fails: {in_a_line(error, type(module))}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


def _checking(path: str) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        if inputs:
            _require_like(f"{path}: {type(module).__name__}.forward", output, inputs[0])

    return hook


def _require_like(at: str, output: object, given: Tensor) -> None:
    """Every part that is called gives what has the shape and dtype of its first input."""
    wanted = f"expected a tensor of shape {tuple(given.shape)}, {given.dtype}, as it was given"
    if not isinstance(output, Tensor):
        raise BlocklabError(f"{at} gives a {type(output).__name__}; {wanted}")
    if (output.shape, output.dtype) != (given.shape, given.dtype):
        raise BlocklabError(f"{at} gives shape {tuple(output.shape)}, {output.dtype}; {wanted}")


def _require_embedding(model: nn.Module, own: Mapping[str, tuple[str, nn.Module]]) -> None:
    """What own positions add to the embedding must be of its width, if anything is added."""
    positions = own.get("positions", ("", None))[1]
    if not (isinstance(model, Transformer) and isinstance(positions, Positions)):
        return
    length, d_model = min(2, model.config.context_length), model.config.d_model
    with torch.no_grad():
        added: object = positions.embed(torch.arange(length))
    if added is None or (isinstance(added, Tensor) and _spreads(added.shape, (length, d_model))):
        return
    found = f"shape {tuple(added.shape)}" if isinstance(added, Tensor) else type(added).__name__
    raise BlocklabError(
        f"positions: {type(positions).__name__}.embed gives {found} for {length} positions; "
        f"expected None or a tensor of shape ({length}, {d_model}): (..., T) -> (..., T, d_model)"
    )


def _spreads(shape: torch.Size, over: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape can be added to one of the other without making it larger."""
    pairs = zip(reversed(shape), reversed(over), strict=False)
    return len(shape) <= len(over) and all(one in (1, other) for one, other in pairs)


def _raised_in(
    own: Mapping[str, tuple[str, nn.Module]], error: Exception
) -> tuple[str, nn.Module, str] | None:
    """The innermost own part that was at work when the error was raised, and its method."""
    places = {id(module): (path, slot, module) for path, (slot, module) in own.items()}
    found = None
    trace = error.__traceback__
    while trace is not None:
        place = places.get(id(trace.tb_frame.f_locals.get("self")))
        if place is not None:
            path, slot, module = place
            name = trace.tb_frame.f_code.co_name
            found = path, module, name if name in METHODS[slot] else "forward"
        trace = trace.tb_next
    return found


def overwritten_values(config: ModelConfig) -> Iterator[str]:
    """Own parts whose constructor sets values that the initialization draws over; a sentence each.

    Raises BlocklabError where a constructor fails.
    """
    for place, record, names in overwritten(config):
        yield (
            f"{place} '{record.kind}': {record.module.__name__} sets {', '.join(names)} in its "
            f"constructor, and initialization '{config.initialization.kind}' draws other values "
            f"over them; to keep them, name them in the class, as in keeps_values = {names!r}"
        )


def unnamed_writers(config: ModelConfig) -> Iterator[str]:
    """Own parts that do not say which of their matrices write to the residual stream, where the
    initialization draws those otherwise; a sentence each.
    """
    initialization = config.initialization
    if initialization.writers() == "plain":
        return
    layers = [config.layer(i) for i in range(config.n_layers)]
    seen: list[PartConfig] = []  # not a set: a record may hold lists
    for slot, record in (pair for layer in layers for pair in _writing(layer)):
        if record in seen:
            continue
        seen.append(record)
        module = record.module
        says = hasattr(module, "residual_writers")
        specs = record.parameters(config.d_model).values()
        if is_ours(module) or says or any(spec.role == "writer" for spec in specs):
            continue
        yield (
            f"{slot} '{record.kind}': {module.__name__} names no matrix that writes to the "
            f"residual stream, so initialization '{initialization.kind}' draws all of its matrices "
            "alike and those of other parts not; name it in the class, as in residual_writers = "
            "('down.weight',), or () for none"
        )


def _writing(layer: Layer) -> Iterator[tuple[str, PartConfig]]:
    yield "block", layer.block
    for slot in WRITING:
        record = getattr(layer.block, slot, None)
        if isinstance(record, PartConfig):
            yield slot, record
