"""A model of ours as a folder in Hugging Face's layout, for everything that reads one.

The family is chosen by the config: each writes what it can say, that is read back, and the first
that says exactly this model is taken. So no folder is ever written that means something else.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from blocklab.data.tokenizer import Tokenizer
from blocklab.errors import BlocklabError
from blocklab.exchange.families import FAMILIES
from blocklab.exchange.family import Family, JsonObject
from blocklab.exchange.fields import Fields
from blocklab.exchange.huggingface import CONFIG, GENERATION, TOKENIZER, read_config
from blocklab.exchange.meaning import differences, lacking
from blocklab.exchange.names import stored_tensors
from blocklab.exchange.weights import INDEX, SINGLE
from blocklab.files import new_folder
from blocklab.model.config import ModelConfig
from blocklab.model.transformer import Transformer

NAME_OF_DTYPE = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def export_huggingface(
    model: Transformer,
    folder: str | Path,
    tokenizer: Tokenizer | None = None,
    max_shard_size: int | str = "5GB",
) -> Path:
    """Write `model` to `folder`: config, weights, generation settings and the tokenizer.

    Weights keep their dtype; more than `max_shard_size` bytes (or "5GB") are cut into shards with
    an index. A tied head is left out, as its readers expect. The folder appears whole or not at
    all. Raises BlocklabError when it exists already, or, naming the fields that stand in the way,
    when no family can say what this model is.
    """
    folder, limit = Path(folder), _bytes(max_shard_size)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BlocklabError(f"{folder}: is there already; choose a new folder")
    family, described = family_for(model.config)
    described |= _about(model, tokenizer)
    if folder.exists():
        folder.rmdir()
    with new_folder(folder) as partial:
        _write_json(partial / CONFIG, described)
        _write_json(partial / GENERATION, _generation(tokenizer))
        _write_weights(partial, list(_tensors(family, model)), limit)
        if tokenizer is not None:
            tokenizer.save(partial / TOKENIZER)
            _write_json(partial / "tokenizer_config.json", _tokenizer_config(model, tokenizer))
    return folder


def family_for(config: ModelConfig) -> tuple[Family, JsonObject]:
    """The first family that says exactly this config, and its config.json.

    Raises BlocklabError naming the fields that keep the nearest family from it.
    """
    obstacles: list[tuple[int, str, list[str]]] = []
    for family in FAMILIES:
        blocking = lacking(config, family.requires)
        if blocking:
            # Another kind of part is further away than a value of one.
            obstacles.append((100 * len(blocking), family.model_type, blocking))
            continue
        described = family.describe(config)
        blocking = _lost(family, described, config)
        if not blocking:
            return family, described
        obstacles.append((len(blocking), family.model_type, blocking))
    _, nearest, blocking = min(obstacles, key=lambda obstacle: obstacle[0])
    raise BlocklabError(
        f"no family in Hugging Face's layout is this model; the nearest, {nearest}, cannot say "
        f"{', '.join(blocking[:3])}"
    )


def _lost(family: Family, described: JsonObject, config: ModelConfig) -> list[str]:
    """What of `config` is gone or changed when the description is read back."""
    # As JSON, for that is all the reader will see.
    fields = Fields(json.loads(json.dumps(described)), f"{family.model_type}'s {CONFIG}")
    try:
        _, again = read_config(fields)
    except BlocklabError as error:
        return [str(error)]
    return differences(config, again)


def _about(model: Transformer, tokenizer: Tokenizer | None) -> JsonObject:
    dtype = NAME_OF_DTYPE[model.embedding.weight.dtype]
    ids = _special_ids(tokenizer)
    return {"torch_dtype": dtype, **ids, "pad_token_id": None}


def _special_ids(tokenizer: Tokenizer | None) -> JsonObject:
    """Where a text begins and ends, by the tokenizer; null where there is none to ask."""
    start = None if tokenizer is None else next(iter(tokenizer.start_ids()), None)
    end = None if tokenizer is None else tokenizer.end_of_text
    return {"bos_token_id": end if start is None else start, "eos_token_id": end}


def _generation(tokenizer: Tokenizer | None) -> JsonObject:
    ids = {name: i for name, i in _special_ids(tokenizer).items() if i is not None}
    return {"_from_model_config": True, **ids}


def _tokenizer_config(model: Transformer, tokenizer: Tokenizer) -> JsonObject:
    said: JsonObject = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.config.context_length,
        "clean_up_tokenization_spaces": False,
    }
    for name, i in _special_ids(tokenizer).items():
        token = None if i is None else tokenizer.token(i)
        if token is not None:
            said[name.removesuffix("_id")] = token
    return said


def _tensors(family: Family, model: Transformer) -> Iterator[tuple[str, Tensor]]:
    """Every tensor as the family stores it, one at a time, in the order of our modules."""
    wanted = stored_tensors(family.names(model.config), model.config)
    for path, parameter in model.named_parameters():
        for stored in wanted[path]:
            tensor = stored.view(parameter.detach()).cpu()
            if stored.skipped:
                rows = tensor.new_zeros((stored.skipped, *tensor.shape[1:]))
                tensor = torch.cat((rows, tensor))
            yield stored.name, tensor.reshape(stored.shape)


def _write_weights(folder: Path, tensors: list[tuple[str, Tensor]], limit: int) -> None:
    shards = list(_shards(tensors, limit))
    if len(shards) == 1:
        _write_shard(folder / SINGLE, shards[0])
        return
    placed: dict[str, str] = {}
    for n, shard in enumerate(shards, start=1):
        file = f"model-{n:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(folder / file, shard)
        placed |= {name: file for name, _ in shard}
    total = sum(tensor.nbytes for _, tensor in tensors)
    index = {
        "metadata": {"total_parameters": sum(t.numel() for _, t in tensors), "total_size": total},
        "weight_map": dict(sorted(placed.items())),
    }
    _write_json(folder / INDEX, index)


def _shards(tensors: list[tuple[str, Tensor]], limit: int) -> Iterator[list[tuple[str, Tensor]]]:
    """Tensors in order, as many to a shard as fit; one that is larger has a shard of its own."""
    shard: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in tensors:
        if shard and size + tensor.nbytes > limit:
            yield shard
            shard, size = [], 0
        shard.append((name, tensor))
        size += tensor.nbytes
    yield shard


def _write_shard(path: Path, shard: list[tuple[str, Tensor]]) -> None:
    # Pieces of one fused matrix share its memory; safetensors wants bytes of their own.
    own = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in shard}
    safetensors.torch.save_file(own, path, metadata={"format": "pt"})
    # The library's files are for their writer alone; these are as readable as their config.
    shutil.copymode(path.with_name(CONFIG), path)


def _write_json(path: Path, content: JsonObject) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _bytes(size: int | str) -> int:
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    match = re.fullmatch(r"(\d+)\s*([KMG]?I?B)?", str(size).upper().strip())
    unit = _UNITS.get(match[2] or "") if match else None
    if match is None or unit is None or not int(match[1]):
        raise BlocklabError(f"max_shard_size '{size}': expected bytes, or a size as in 5GB")
    return int(match[1]) * unit
