"""Configurations by name: GPT-2, the modern block, and the shapes of Llama and Mistral.

A preset is a function of a few sizes; every other field is set with `with_changes`.
"""

from typing import Protocol

from blocklab.model.config import ModelConfig
from blocklab.model.preset_fields import canonical, is_preset, preset_fields
from blocklab.model.preset_fields import names as names


class Preset(Protocol):
    """What every preset takes; null keeps the preset's own size."""

    def __call__(
        self,
        *,
        d_model: int | None = None,
        n_layers: int | None = None,
        n_heads: int | None = None,
        n_kv_heads: int | None = None,
        vocab_size: int | None = None,
        context_length: int | None = None,
        dropout: float | None = None,
        tie_embeddings: bool | None = None,
    ) -> ModelConfig: ...


def preset(name: str) -> Preset:
    """The preset called `name`; underscores are dashes. Raises BlocklabError for another name."""
    key = canonical(name)

    def make(
        *,
        d_model: int | None = None,
        n_layers: int | None = None,
        n_heads: int | None = None,
        n_kv_heads: int | None = None,
        vocab_size: int | None = None,
        context_length: int | None = None,
        dropout: float | None = None,
        tie_embeddings: bool | None = None,
    ) -> ModelConfig:
        sizes = {
            "d_model": d_model,
            "n_layers": n_layers,
            "n_heads": n_heads,
            "n_kv_heads": n_kv_heads,
            "vocab_size": vocab_size,
            "context_length": context_length,
            "dropout": dropout,
            "tie_embeddings": tie_embeddings,
        }
        return ModelConfig.parse(preset_fields(key, sizes))

    return make


def __getattr__(name: str) -> Preset:
    if name.startswith("_") or not is_preset(name):
        raise AttributeError(f"no preset '{name}'; there are {', '.join(names())}")
    return preset(name)
