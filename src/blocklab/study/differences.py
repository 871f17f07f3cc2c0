"""In what two untrained arms differ, and which of it the declared paths explain.

Records and models are compared as plain values by path. What a path may change beyond its own
place (the final norm follows the blocks', a tied table is drawn as the head) is stated here in one
table. Not for whether a difference does anything: that is `liveness`.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from blocklab.model.transformer import Transformer
from blocklab.record import Record, Value

EVERYTHING = ""

_BEYOND: Mapping[str, tuple[str, ...]] = {
    "vocab_size": ("embedding", "head"),
    "context_length": ("positions", "layer_positions"),
    "d_model": (EVERYTHING,),
    "n_layers": ("block", "layer_positions"),
    "tie_embeddings": ("embedding", "embedding_scale", "head"),
    "embedding": ("embedding_scale",),
    "positions": ("layer_positions",),
    "layers": ("block", "layer_positions"),
    "initialization": (EVERYTHING,),
    "block.placement": ("block.norm", "final_norm"),
    "block.parallel": ("block.norm", "block.residual"),
    "block.norm": ("final_norm",),
}
"""Places in the model that a declared path may change beside the one of its own name. `block`
stands for every block."""


@dataclass(frozen=True)
class Anatomy:
    """An untrained model as plain values, each by the path of the module or parameter."""

    modules: Mapping[str, str]
    """Class and plain settings."""
    shapes: Mapping[str, tuple[int, ...]]
    values: Mapping[str, str]
    """Hash of a parameter's first values."""


def anatomy(model: Transformer) -> Anatomy:
    """The module tree, parameters and first values of a model just built."""
    modules = {path: _described(module) for path, module in model.named_modules() if path}
    # Of the model's own settings all but the lookup's scale stand in its records.
    modules["embedding_scale"] = repr(model.embedding_scale)
    return Anatomy(
        modules,
        {path: tuple(p.shape) for path, p in model.named_parameters()},
        {path: bits(p) for path, p in model.named_parameters()},
    )


def bits(tensor: Tensor) -> str:
    """A hash that two tensors share when they are equal to the last bit."""
    return hashlib.blake2b(tensor.detach().contiguous().numpy().data).hexdigest()


def differing(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Paths whose value differs or stands on one side only, in order."""
    paths = dict.fromkeys([*one, *other])
    missing = object()
    return [path for path in paths if one.get(path, missing) != other.get(path, missing)]


def leaves(record: Record) -> dict[str, Value]:
    """Every value of a record by its dotted path; a list is one value."""
    return dict(_leaves(record.plain(), ""))


def unexplained_leaves(paths: Iterable[str], declared: Iterable[str]) -> list[str]:
    """The record's paths that no declared path reaches."""
    reaches = [reach for path in declared for reach in _reaches_in_record(path)]
    return [path for path in paths if not any(_is_under(path, reach) for reach in reaches)]


def unexplained_places(
    paths: Iterable[str], declared: Iterable[str], n_layers: int, *, standard: bool
) -> list[str]:
    """The modules or parameters that no declared path may change.

    `standard` says that both models have our block, whose parts stand at their records' names.
    """
    reaches = [
        (reach, layer)
        for path in declared
        for reach, layer in _reaches_in_model(path, n_layers, standard)
    ]
    return [path for path in paths if not any(_covers(*reach, path) for reach in reaches)]


def _reaches_in_model(path: str, n_layers: int, standard: bool) -> list[tuple[str, int | None]]:
    """Places a declared path may change, each with the block it is confined to, if any."""
    if path.startswith("blocks."):
        _, index, inner = path.split(".", 2)
        return [(_own_place(f"block.{inner}", standard), range(n_layers)[int(index)])]
    # A whole block brings its norm.
    part = "block.norm" if path == "block" else path
    beyond = [places for key, places in _BEYOND.items() if _is_under(part, key)]
    places = [_own_place(path, standard), *(place for some in beyond for place in some)]
    return [(place, None) for place in places]


def _own_place(path: str, standard: bool) -> str:
    steps = path.split(".")
    if steps[0] != "block":
        return steps[0]
    part = "" if len(steps) == 1 else steps[1]
    return f"block.{part}" if standard and part not in ("", "kind") else "block"


def _covers(place: str, layer: int | None, path: str) -> bool:
    steps = path.split(".")
    if steps[0] == "blocks" and len(steps) > 1:
        if layer is not None and steps[1] != str(layer):
            return False
        # A block's own settings follow from any change inside it.
        if len(steps) == 2:
            return place == EVERYTHING or place.split(".")[0] == "block"
        path = ".".join(["block", *steps[2:]])
    return place == EVERYTHING or _is_under(path, place)


def _reaches_in_record(path: str) -> tuple[str, ...]:
    """A kind brings all fields of its record; an exception for one block stands among `layers`.

    Another kind of block may have no norm to follow: the final norm that stays is then stated.
    """
    if path.startswith("blocks."):
        return ("layers",)
    place = path.removesuffix(".kind")
    return (place, "final_norm") if place == "block" else (place,)


def _is_under(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}.")


def _leaves(value: Value, path: str) -> Iterable[tuple[str, Value]]:
    if not isinstance(value, Mapping) or not value:
        yield path, value
        return
    for name, inner in value.items():
        yield from _leaves(inner, f"{path}.{name}" if path else name)


def _described(module: nn.Module) -> str:
    settings = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str | Record | None)
        and not name.startswith("_")
        and name != "training"
    }
    return f"{type(module).__module__}.{type(module).__qualname__} {settings}"
