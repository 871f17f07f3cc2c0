"""Configurations by name: GPT-2, the modern block, and the shapes of Llama and Mistral.

A preset is a function of a few sizes; every other field is set with `with_changes`.
"""

from collections.abc import Callable
from typing import Any, Protocol

from blocklab.errors import BlocklabError, nearest
from blocklab.model.config import ModelConfig


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


def _gpt2(d_model: int, n_layers: int) -> dict[str, Any]:
    return {
        "vocab_size": 50257,
        "context_length": 1024,
        "d_model": d_model,
        "n_layers": n_layers,
        "tie_embeddings": True,
        "dropout": 0.1,
        "positions": {"kind": "learned"},
        "block": {
            "placement": "pre",
            "norm": {"kind": "layer", "eps": 1e-5},
            "attention": {"kind": "causal", "n_heads": d_model // 64},
            "feed_forward": {"kind": "mlp", "activation": "gelu_tanh", "bias": True},
        },
        "initialization": {"kind": "normal", "std": 0.02},
    }


def _modern(
    d_model: int,
    n_layers: int,
    *,
    head_dim: int,
    n_kv_heads: int | None = None,
    d_ff: int | None = None,
    vocab_size: int | None = None,
    context_length: int,
    eps: float,
    base: float = 10_000.0,
    window: int | None = None,
    initialization: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Pre-norm, RMSNorm, SwiGLU, rotary positions, no biases."""
    return {
        "vocab_size": vocab_size,
        "context_length": context_length,
        "d_model": d_model,
        "n_layers": n_layers,
        "tie_embeddings": False,
        "dropout": 0.0,
        "positions": {"kind": "rotary", "base": base},
        "block": {
            "placement": "pre",
            "norm": {"kind": "rms", "eps": eps},
            "attention": {
                "kind": "causal",
                "n_heads": d_model // head_dim,
                "n_kv_heads": n_kv_heads,
                "qkv_bias": False,
                "out_bias": False,
                "window": window,
            },
            "feed_forward": {"kind": "gated", "d_ff": d_ff, "activation": "silu", "bias": False},
        },
        "initialization": initialization or {"kind": "normal", "std": 0.02},
    }


_TABLE: dict[str, Callable[[], dict[str, Any]]] = {
    "gpt2": lambda: _gpt2(768, 12),
    "gpt2-medium": lambda: _gpt2(1024, 24),
    "gpt2-large": lambda: _gpt2(1280, 36),
    "gpt2-xl": lambda: _gpt2(1600, 48),
    "modern": lambda: _modern(
        256, 4, head_dim=64, context_length=128, eps=1e-6, initialization={"kind": "fan_in"}
    ),
    "llama-2-7b": lambda: _modern(
        4096, 32, head_dim=128, d_ff=11008, vocab_size=32000, context_length=4096, eps=1e-5
    ),
    "llama-2-13b": lambda: _modern(
        5120, 40, head_dim=128, d_ff=13824, vocab_size=32000, context_length=4096, eps=1e-5
    ),
    "llama-2-70b": lambda: _modern(
        8192,
        80,
        head_dim=128,
        n_kv_heads=8,
        d_ff=28672,
        vocab_size=32000,
        context_length=4096,
        eps=1e-5,
    ),
    "llama-3-8b": lambda: _modern(
        4096,
        32,
        head_dim=128,
        n_kv_heads=8,
        d_ff=14336,
        vocab_size=128256,
        context_length=8192,
        eps=1e-5,
        base=500_000.0,
    ),
    "llama-3-70b": lambda: _modern(
        8192,
        80,
        head_dim=128,
        n_kv_heads=8,
        d_ff=28672,
        vocab_size=128256,
        context_length=8192,
        eps=1e-5,
        base=500_000.0,
    ),
    "mistral-7b": lambda: _modern(
        4096,
        32,
        head_dim=128,
        n_kv_heads=8,
        d_ff=14336,
        vocab_size=32000,
        context_length=8192,
        eps=1e-5,
        window=4096,
    ),
}
_TABLE["llama"] = _TABLE["llama-2-7b"]
_TABLE["mistral"] = _TABLE["mistral-7b"]


def preset(name: str) -> Preset:
    """The preset called `name`; underscores are dashes. Raises BlocklabError for another name."""
    key = name.replace("_", "-")
    if key not in _TABLE:
        raise BlocklabError(f"unknown preset '{name}'; {nearest(key, _TABLE)}")

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
        data = _TABLE[key]()
        attention = data["block"]["attention"]
        if d_model is not None and d_model != data["d_model"]:
            # Sizes that belonged to the preset's own width follow the new one.
            head_dim = data["d_model"] // attention["n_heads"]
            attention["n_heads"] = max(1, d_model // head_dim)
            attention["n_kv_heads"] = None
            data["block"]["feed_forward"]["d_ff"] = None
        if n_heads is not None and n_heads != attention["n_heads"]:
            attention["n_heads"], attention["n_kv_heads"] = n_heads, None
        if n_kv_heads is not None:
            attention["n_kv_heads"] = n_kv_heads
        given = {
            "d_model": d_model,
            "n_layers": n_layers,
            "vocab_size": vocab_size,
            "context_length": context_length,
            "dropout": dropout,
            "tie_embeddings": tie_embeddings,
        }
        data |= {field: value for field, value in given.items() if value is not None}
        return ModelConfig.parse(data)

    return make


def names() -> list[str]:
    """Every preset's name."""
    return sorted(_TABLE)


def __getattr__(name: str) -> Preset:
    if name.startswith("_") or name.replace("_", "-") not in _TABLE:
        raise AttributeError(f"no preset '{name}'; there are {', '.join(names())}")
    return preset(name)
