"""Runs of our own, as models to write with, judge or export."""

import json
from pathlib import Path

import torch

from blocklab.data.cache import default_cache, read_json
from blocklab.data.prepared import Dataset
from blocklab.data.tokenizer import Tokenizer, bpe_size, load_tokenizer
from blocklab.errors import BlocklabError
from blocklab.exchange.loaded import Loaded
from blocklab.exchange.names import Stored
from blocklab.exchange.tensor_file import SafetensorsFile
from blocklab.exchange.weights import check_tensors, filled, stored_dtype
from blocklab.model.config import ModelConfig
from blocklab.training.checkpoint import NEWEST

RECORD, WEIGHTS = "run.json", "model.safetensors"


def is_run(folder: Path) -> bool:
    return (folder / RECORD).is_file() or (folder / NEWEST).is_file()


def load_run(folder: Path, dtype: torch.dtype | None) -> Loaded:
    """The model of a finished run. Raises BlocklabError for one that is not finished or damaged."""
    record = folder / RECORD
    if not record.is_file():
        raise BlocklabError(
            f"{folder}: this run is not finished (no {RECORD}); resume it, then load it"
        )
    content = read_json(record)
    spec = content.get("spec") if content is not None else None
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise BlocklabError(f"{record}: not a run's record; expected 'spec' with a 'model'")
    stated = ModelConfig.parse(spec["model"], at=f"{record}: spec.model")
    source = SafetensorsFile(folder / WEIGHTS)
    config = _with_rows(stated, source)
    wanted = {
        path: [Stored(path, part.shape, lambda parameter: parameter)]
        for path, part in config.parameters().items()
    }
    check_tensors(wanted, source, folder, ())
    model = filled(config, wanted, source, dtype or stored_dtype(wanted, source))
    tokenizer, notes = _tokenizer(spec)
    stops = () if tokenizer is None or tokenizer.end_of_text is None else (tokenizer.end_of_text,)
    return Loaded(model, tokenizer, f"{folder} (run)", stop_ids=stops, notes=tuple(notes))


def _with_rows(config: ModelConfig, source: SafetensorsFile) -> ModelConfig:
    """A vocabulary that the tokenizer decided is read off the table."""
    if config.vocab_size is not None or "embedding.weight" not in source.names():
        return config
    return config.with_changes({"vocab_size": source.shape("embedding.weight")[0]})


def _tokenizer(spec: dict[str, object]) -> tuple[Tokenizer | None, list[str]]:
    """The run's tokenizer, from the prepared corpus if it is still there, else by its name."""
    prepared = default_cache() / "datasets" / str(spec.get("data_fingerprint"))
    if (prepared / "dataset.json").is_file():
        return Dataset.open(prepared).tokenizer, []
    data = spec.get("data")
    name = data.get("tokenizer") if isinstance(data, dict) else None
    if isinstance(name, str) and not bpe_size(name):
        return load_tokenizer(name), []
    return None, [f"the tokenizer {json.dumps(name)} was learnt from a corpus that is not here now"]
