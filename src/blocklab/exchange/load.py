"""One word for every checkpoint: a Hugging Face folder, a .gguf file, or a run of our own."""

from pathlib import Path
from typing import Literal

import torch

from blocklab.dtypes import dtype_called
from blocklab.errors import BlocklabError
from blocklab.exchange.huggingface import CONFIG, huggingface_config, load_huggingface
from blocklab.exchange.loaded import Loaded
from blocklab.exchange.runs import load_run
from blocklab.expected import require_place
from blocklab.model.config import ModelConfig
from blocklab.training.trained import is_run, trained_config


def load(source: str | Path, dtype: str | torch.dtype | None = None) -> Loaded:
    """The model at `source`, in evaluation mode, with its tokenizer where there is one.

    `source` is a folder in Hugging Face's layout, a .gguf file, or the folder of a finished run.
    `dtype` converts the weights: float32, bf16, float16 or float64, by any usual name; None keeps
    the one they are stored in (a .gguf file: float32).
    No code and no pickle that comes with a checkpoint is ever run. Raises BlocklabError where the
    files are damaged, or where they describe anything that is not implemented here.
    """
    require_place(source, "load")
    path, chosen = Path(source), None if dtype is None else dtype_called(dtype)
    match _kind(path):
        case "gguf":
            from blocklab.exchange.gguf_model import load_gguf

            return load_gguf(path, chosen or torch.float32)
        case "run":
            return load_run(path, chosen)
        case "huggingface":
            return load_huggingface(path, chosen)


def load_config(source: str | Path) -> ModelConfig:
    """The configuration of the model at `source`, as `load` would build it; no weight is read.

    Of a folder in Hugging Face's layout config.json is enough. Raises BlocklabError as `load`.
    """
    path = Path(source)
    match _kind(path):
        case "gguf":
            from blocklab.exchange.gguf_model import gguf_config

            return gguf_config(path)
        case "run":
            return trained_config(path)
        case "huggingface":
            return huggingface_config(path)


def _kind(path: Path) -> Literal["gguf", "run", "huggingface"]:
    """What stands at `path`. Raises BlocklabError where it is nothing of the three."""
    if path.suffix == ".gguf":
        return "gguf"
    if not path.is_dir():
        found = "is no folder" if path.exists() else "does not exist"
        raise BlocklabError(
            f"{path}: {found}; expected a Hugging Face folder, a .gguf file or a run's folder"
        )
    if is_run(path):
        return "run"
    if (path / CONFIG).is_file():
        return "huggingface"
    hint = "; it is a study: give one of its runs/…" if (path / "study.yaml").is_file() else ""
    raise BlocklabError(f"{path}: holds neither {CONFIG} nor run.json{hint}")
