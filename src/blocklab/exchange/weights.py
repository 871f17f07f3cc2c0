"""The weights of a checkpoint's folder, whatever files they lie in, and a model filled from them.

Nothing is allocated before every tensor has been found with the right shape. The model is built
without storage, given its memory once, and filled in place: fused matrices from their pieces.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from blocklab.errors import BlocklabError
from blocklab.exchange.json_file import read_json_object
from blocklab.exchange.names import Stored
from blocklab.exchange.pickled import read_pickled
from blocklab.exchange.tensor_file import SafetensorsFile, Shards, TensorSource
from blocklab.model.config import ModelConfig
from blocklab.model.transformer import Transformer

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
OLD_SINGLE, OLD_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def open_weights(folder: Path) -> TensorSource:
    """The tensors in `folder`: one safetensors file, shards by their index, or torch's .bin."""
    if (folder / SINGLE).exists():
        return SafetensorsFile(folder / SINGLE)
    if (folder / INDEX).exists():
        return _sharded(folder / INDEX, ".safetensors", SafetensorsFile)
    if (folder / OLD_SINGLE).exists():
        return read_pickled(folder / OLD_SINGLE)
    if (folder / OLD_INDEX).exists():
        return _sharded(folder / OLD_INDEX, ".bin", read_pickled)
    raise BlocklabError(
        f"{folder}: no weights here; expected {SINGLE}, {INDEX}, {OLD_SINGLE} or {OLD_INDEX}"
    )


def _sharded(index: Path, ending: str, read: Callable[[Path], TensorSource]) -> TensorSource:
    placed = read_json_object(index).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise BlocklabError(f"{index}: expected 'weight_map', an object from tensors to files")
    files: dict[str, TensorSource] = {}
    for file in placed.values():
        # A bare name only: what an index says must not lead out of its folder.
        if not isinstance(file, str) or not re.fullmatch(r"[\w][\w.-]*", file):
            raise BlocklabError(f"{index}: '{str(file)[:80]}' is not the name of a file beside it")
        if not file.endswith(ending):
            raise BlocklabError(f"{index}: '{file[:80]}' does not end in {ending}")
        if file not in files:
            files[file] = read(index.with_name(file))
    shards = Shards(files)
    held = {name: shards.where(name).name for name in shards.names()}
    for name in placed.keys() | held.keys():
        if placed.get(name) != held.get(name):
            raise BlocklabError(
                f"{index}: says that '{name[:80]}' is in {placed.get(name, 'no file')}, "
                f"found in {held.get(name, 'none')}"
            )
    return shards


def check_tensors(
    wanted: Mapping[str, Sequence[Stored]], source: TensorSource, at: Path, unused: Iterable[str]
) -> None:
    """Refuse missing, unexpected and wrongly shaped tensors, each by name.

    `unused` are patterns of names that hold nothing a model computes with.
    """
    tensors = [stored for pieces in wanted.values() for stored in pieces]
    there = set(source.names())
    _refuse_if_any(at, "lacks", [t.name for t in tensors if t.name not in there])
    for t in tensors:
        if source.shape(t.name) != t.shape:
            raise BlocklabError(
                f"{source.where(t.name)}: '{t.name}' has shape {source.shape(t.name)}, "
                f"expected {t.shape} by the configuration"
            )
        if source.dtype(t.name) not in FLOATING:
            raise BlocklabError(
                f"{source.where(t.name)}: '{t.name}' is stored as {source.dtype(t.name)}; "
                "quantised weights are not implemented here"
            )
    extra = there - {t.name for t in tensors}
    ignored = [re.compile(pattern) for pattern in unused]
    extra = {name for name in extra if not any(p.search(name) for p in ignored)}
    _refuse_if_any(at, "holds tensors that this model has no place for:", sorted(extra))


def _refuse_if_any(at: Path, what: str, names: Sequence[str]) -> None:
    if names:
        listed = ", ".join(f"'{name[:80]}'" for name in names[:3])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise BlocklabError(
            f"{at}: {what} {listed}{more}; is its config.json that of another model?"
        )


def stored_dtype(wanted: Mapping[str, Sequence[Stored]], source: TensorSource) -> torch.dtype:
    """The dtype of most of the weights."""
    sizes: dict[torch.dtype, int] = {}
    for pieces in wanted.values():
        for t in pieces:
            dtype = source.dtype(t.name)
            sizes[dtype] = sizes.get(dtype, 0) + torch.Size(t.shape).numel()
    return max(sizes, key=lambda dtype: sizes[dtype])


class _NoFirstValues(TorchFunctionMode):
    """Constructors draw nothing. Without storage there is nothing to draw into, and torch takes
    most of a second to find that out for the first time."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS or getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


_DRAWS = frozenset({torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.zero_})


def filled(
    config: ModelConfig,
    wanted: Mapping[str, Sequence[Stored]],
    source: TensorSource,
    dtype: torch.dtype,
) -> Transformer:
    """The model of `config` in evaluation mode, with every weight from `source`."""
    with torch.device("meta"), _NoFirstValues():
        model = Transformer(config)
    # As `to_empty`, which would import a computer algebra system to find each shape.
    model = model._apply(lambda p: torch.empty(p.shape, dtype=dtype, device="cpu")).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            for t in wanted[path]:
                source.copy_into(t.name, t.view(parameter), t.skipped)
    return model
