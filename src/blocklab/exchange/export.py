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

from blocklab.data.corpora import Say
from blocklab.data.tokenizer import Tokenizer
from blocklab.dtypes import dtype_called, name_of
from blocklab.errors import BlocklabError
from blocklab.exchange.conventions import TextConventions, came_with, conventions_by_ids
from blocklab.exchange.families import FAMILIES
from blocklab.exchange.family import Family, JsonObject
from blocklab.exchange.fields import Fields
from blocklab.exchange.huggingface import CONFIG, read_config
from blocklab.exchange.huggingface_text import TOKENIZER, as_json, config_fields, text_files
from blocklab.exchange.meaning import differences, nearest_layer, told_from
from blocklab.exchange.names import stored_tensors
from blocklab.exchange.weights import INDEX, SINGLE
from blocklab.expected import require
from blocklab.files import new_folder
from blocklab.model.config import ModelConfig
from blocklab.model.transformer import Transformer

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def export_huggingface(
    model: Transformer,
    folder: str | Path,
    tokenizer: Tokenizer | None = None,
    max_shard_size: int | str = "5GB",
    say: Say | None = None,
) -> Path:
    """Write `model` to `folder`: config, weights, generation settings and the tokenizer.

    What a tokenizer was loaded with goes along (without one: the model): special tokens, chat
    templates, ids to stop after, how its authors write. So does the family that the model was,
    where it can still say what the model is. Weights keep their dtype; more than `max_shard_size`
    bytes (or "5GB") are cut into shards with an index. A tied head is left out, as its readers
    expect. `say` is told where transformers would read texts otherwise than `tokenizer`. The folder
    appears whole or not at all. Raises BlocklabError when it exists already,
    when the tokenizer marks texts by ids that are no rows of the model, when its parameters are not
    its config's, or, naming the fields that stand in the way, when no family can say what it is.
    """
    require(Transformer, model, "model")
    if tokenizer is not None:
        require(Tokenizer, tokenizer, "tokenizer")
    folder, limit = Path(folder), _bytes(max_shard_size)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BlocklabError(f"{folder}: is there already; choose a new folder")
    _refuse_what_config_does_not_say(model)
    said = _conventions(model, tokenizer)
    family, described = family_for(model.config, said.model_type)
    described["torch_dtype"] = name_of(dtype_called(model.embedding.weight.dtype))
    described |= config_fields(said, family.model_type)
    texts = text_files(said, tokenizer, family.model_type, model.config.context_length)
    if folder.exists():
        folder.rmdir()
    with new_folder(folder) as partial:
        for name, text in {CONFIG: as_json(described), **texts}.items():
            (partial / name).write_text(text, encoding="utf-8")
        _write_weights(partial, list(_tensors(family, model)), limit)
        if tokenizer is not None:
            tokenizer.save(partial / TOKENIZER)
    by, ours = family.own_tokenizer, said.model_type != family.model_type
    if say is not None and tokenizer is not None and by is not None and ours:
        say(
            f"transformers' AutoTokenizer reads texts for {family.model_type} as {by} does, not as "
            f"this tokenizer: use PreTrainedTokenizerFast.from_pretrained('{folder}') there"
        )
    return folder


def family_for(config: ModelConfig, before: str | None = None) -> tuple[Family, JsonObject]:
    """The first family that says exactly this config, and its config.json.

    `before` is the model_type it had, asked first. Raises BlocklabError naming the fields that
    keep the nearest family from it.
    """
    obstacles: list[tuple[int, str, list[str]]] = []
    for family in sorted(FAMILIES, key=lambda family: family.model_type != before):
        index, blocking = nearest_layer(config, family.requires)
        if blocking:
            # Another kind of part is further away than a value of one.
            obstacles.append((100 * len(blocking), family.model_type, blocking))
            continue
        told = told_from(config, index)
        described = family.describe(told)
        blocking = [*family.unloadable(told), *_lost(family, described, config)]
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


def _refuse_what_config_does_not_say(model: Transformer) -> None:
    """Raise BlocklabError where a model was changed by hand: its config describes another one."""
    there = {path: tuple(parameter.shape) for path, parameter in model.named_parameters()}
    said = {path: spec.shape for path, spec in model.config.parameters().items()}
    for path in {**said, **there}:
        if there.get(path) != said.get(path):
            raise BlocklabError(
                f"{path}: the model has {there.get(path, 'none')}, its config says "
                f"{said.get(path, 'none')}; only what a config describes can be exported"
            )


def _conventions(model: Transformer, tokenizer: Tokenizer | None) -> TextConventions:
    """What is to be said about texts: by the authors, else by the tokenizer alone.

    Raises BlocklabError where an id is no row of the model.
    """
    said = came_with(model if tokenizer is None else tokenizer)
    if said is None:
        end = None if tokenizer is None else tokenizer.end_of_text
        starts = () if tokenizer is None else tokenizer.start_ids()
        # Where nothing marks beginnings, the end of the text before does.
        said = conventions_by_ids(next(iter(starts), end), () if end is None else (end,))
    rows = model.config.rows
    odd = said.beyond(rows)
    if odd:
        raise BlocklabError(
            f"{odd[0]} is none of the model's {rows} rows; give the tokenizer that it learnt with"
        )
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
    (folder / INDEX).write_text(as_json(index), encoding="utf-8")


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


def _bytes(size: int | str) -> int:
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    match = re.fullmatch(r"(\d+)\s*([KMG]?I?B)?", str(size).upper().strip())
    unit = _UNITS.get(match[2] or "") if match else None
    if match is None or unit is None or not int(match[1]):
        raise BlocklabError(f"max_shard_size '{size}': expected bytes, or a size as in 5GB")
    return int(match[1]) * unit
