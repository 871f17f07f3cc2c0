"""The model of a finished run: what its folder holds, as something to write with or train on."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from blocklab.data.cache import default_cache
from blocklab.data.prepared import Dataset
from blocklab.data.tokenizer import Tokenizer, bpe_size, load_tokenizer
from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.model.transformer import Transformer
from blocklab.training.checkpoint import NEWEST
from blocklab.training.run_folder import RECORD
from blocklab.training.run_record import RunSpec
from blocklab.training.state import state_of

WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A finished run's model, in evaluation mode."""

    model: Transformer
    tokenizer: Tokenizer | None
    """From the prepared corpus, the run's folder or its name; None where none has it any more."""
    spec: RunSpec


def is_run(folder: Path) -> bool:
    """Whether `folder` holds a run, finished or not."""
    return any((folder / name).is_file() for name in (RECORD, NEWEST))


def run_spec(folder: Path) -> RunSpec:
    """The record of a finished run. Raises BlocklabError for one that is not finished."""
    path = folder / RECORD
    if not path.is_file():
        raise BlocklabError(f"{folder}: this run is not finished; resume it first")
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))["spec"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BlocklabError(f"{path}: not a run's record ({error})") from None
    return RunSpec.parse(stored, at=f"{path}: spec")


def trained_config(folder: Path) -> ModelConfig:
    """The model of a finished run; a vocabulary that the tokenizer decided is read off the table.

    Raises BlocklabError for one that is not finished, and for a damaged file.
    """
    config, weights = run_spec(folder).model, folder / WEIGHTS
    if config.vocab_size is not None:
        return config
    try:
        with safetensors.safe_open(weights, framework="pt") as file:
            shape = file.get_slice("embedding.weight").get_shape()
    except (OSError, safetensors.SafetensorError) as error:
        raise BlocklabError(f"{weights}: cannot be read ({error})") from None
    if len(shape) != 2:
        raise BlocklabError(f"{weights}: 'embedding.weight' is no table; the file is damaged")
    return config.with_changes({"vocab_size": shape[0]})


def load_trained(folder: Path) -> TrainedModel:
    """Read a finished run's model. Raises BlocklabError where its files are missing or damaged."""
    spec = run_spec(folder)
    weights = folder / WEIGHTS
    try:
        tensors = safetensors.torch.load_file(weights)
    except (OSError, safetensors.SafetensorError) as error:
        raise BlocklabError(f"{weights}: cannot be read ({error})") from None
    model = Transformer(trained_config(folder), seed=0)
    own = state_of(model)
    if own.keys() != tensors.keys():
        odd = sorted(own.keys() ^ tensors.keys())[0]
        raise BlocklabError(f"{weights}: '{odd}' is in the file or in the model, but not in both")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            raise BlocklabError(
                f"{weights}: '{name}' has shape {tuple(tensors[name].shape)}, "
                f"expected {tuple(tensor.shape)}"
            )
        tensor.data.copy_(tensors[name])
    return TrainedModel(model.eval(), run_tokenizer(folder, spec), spec)


def weights_fingerprint(model: Transformer) -> str:
    """Of every name, type, shape and the bits of what a model's file holds."""
    found = hashlib.blake2b(digest_size=16)
    for name, stored in state_of(model).items():
        tensor = stored.detach().cpu().contiguous()
        found.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def run_tokenizer(folder: Path, spec: RunSpec) -> Tokenizer | None:
    """What a run's text was cut by; None where neither cache, folder nor name has it any more."""
    prepared = default_cache() / "datasets" / spec.data_fingerprint
    if (prepared / "dataset.json").is_file():
        return Dataset.open(prepared).tokenizer
    name = spec.data.tokenizer
    if (folder / TOKENIZER).is_file():
        return Tokenizer.load(folder / TOKENIZER, name)
    # One that was learnt from a text cannot be had without it.
    return load_tokenizer(name) if name is not None and bpe_size(name) is None else None
