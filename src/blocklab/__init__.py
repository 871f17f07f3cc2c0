"""blocklab: a laboratory for the transformer block.

Public names load when first used, so that importing the package stays instant.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blocklab import inspect as inspect
    from blocklab import parts as parts
    from blocklab.comparison.compare import compare as compare
    from blocklab.data.tokenizer import load_tokenizer as load_tokenizer
    from blocklab.errors import BlocklabError as BlocklabError
    from blocklab.exchange.export import export_huggingface as export_huggingface
    from blocklab.exchange.load import load as load
    from blocklab.experiment import run_study as run_study
    from blocklab.generation.sampler import generate as generate
    from blocklab.model import presets as presets
    from blocklab.model.config import ModelConfig as ModelConfig
    from blocklab.model.count import count as count
    from blocklab.model.transformer import Transformer as Transformer
    from blocklab.parts.part import part as part
    from blocklab.study.study import Study as Study
    from blocklab.training.config import TrainingConfig as TrainingConfig
    from blocklab.training.trainer import Trainer as Trainer

__version__ = "0.1.0"

_PUBLIC = {
    "BlocklabError": "blocklab.errors:BlocklabError",
    "ModelConfig": "blocklab.model.config:ModelConfig",
    "Study": "blocklab.study.study:Study",
    "Trainer": "blocklab.training.trainer:Trainer",
    "TrainingConfig": "blocklab.training.config:TrainingConfig",
    "Transformer": "blocklab.model.transformer:Transformer",
    "compare": "blocklab.comparison.compare:compare",
    "count": "blocklab.model.count:count",
    "export_huggingface": "blocklab.exchange.export:export_huggingface",
    "generate": "blocklab.generation.sampler:generate",
    "inspect": "blocklab.inspect",
    "load": "blocklab.exchange.load:load",
    "load_tokenizer": "blocklab.data.tokenizer:load_tokenizer",
    "part": "blocklab.parts.part:part",
    "parts": "blocklab.parts",
    "presets": "blocklab.model.presets",
    "run_study": "blocklab.experiment:run_study",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'blocklab' has no attribute '{name}'")
    module, _, attribute = _PUBLIC[name].partition(":")
    loaded = importlib.import_module(module)
    value = getattr(loaded, attribute) if attribute else loaded
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
