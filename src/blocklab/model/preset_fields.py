"""The fields of every preset, as plain values: what `presets` makes configurations of, and what a
model's file may begin with.

The modern preset draws its weights by fan-in because that was measured best: at 4 x 64 and 600,000
tokens, each at its own best rate, it ends 0.09 nats below one std of 0.02 (two seeds; dividing or
zeroing the residual writers made no difference).
"""

from collections.abc import Mapping
from typing import Any

from blocklab.errors import BlocklabError, nearest

SIZES = (
    "d_model",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "vocab_size",
    "context_length",
    "dropout",
    "tie_embeddings",
)
"""What every preset takes."""


def names() -> list[str]:
    """Every preset's name."""
    return sorted({*_GPT2_SHAPES, *_SHAPES, *_SHORT})


def is_preset(name: str) -> bool:
    """Whether a preset is called so; underscores are dashes."""
    return name.replace("_", "-") in names()


def canonical(name: str) -> str:
    """The name of a preset, with dashes for underscores. Raises BlocklabError for another name."""
    found = name.replace("_", "-")
    if not is_preset(name):
        raise BlocklabError(f"unknown preset '{name}'; {nearest(found, names())}")
    return found


def source(name: str) -> str:
    """Which model a preset is, and where it was published. Raises BlocklabError as `canonical`."""
    name = canonical(name)
    name = _SHORT.get(name, name)
    return _SOURCES[next(begin for begin in _SOURCES if name.startswith(begin))].format(name)


def preset_fields(name: str, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of the preset called `name` at other sizes.

    A size that is null keeps the preset's own; heads and feed-forward of another width follow it.
    Raises BlocklabError for another name.
    """
    fields = _own_fields(canonical(name))
    given = {size: value for size, value in sizes.items() if value is not None}
    attention = fields["block"]["attention"]
    d_model = given.get("d_model", fields["d_model"])
    if type(d_model) is not int:
        raise BlocklabError(f"d_model: {d_model!r} does not fit: expected a whole number")
    if d_model != fields["d_model"]:
        head_dim = fields["d_model"] // attention["n_heads"]
        attention["n_heads"] = max(1, d_model // head_dim)
        attention["n_kv_heads"] = None
        fields["block"]["feed_forward"]["d_ff"] = None
    n_heads = given.pop("n_heads", attention["n_heads"])
    if n_heads != attention["n_heads"]:
        attention["n_heads"], attention["n_kv_heads"] = n_heads, None
    if "n_kv_heads" in given:
        attention["n_kv_heads"] = given.pop("n_kv_heads")
    return fields | given


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
    drawn: str = "normal",
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
        "initialization": {"kind": drawn},
    }


_LLAMA = {"head_dim": 128, "eps": 1e-5, "vocab_size": 32000, "context_length": 4096}
_LLAMA_3 = _LLAMA | {"vocab_size": 128256, "context_length": 8192, "base": 500_000.0}
_GROUPED = {"n_kv_heads": 8}

_SHAPES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "modern": (256, 4, {"head_dim": 64, "context_length": 128, "eps": 1e-6, "drawn": "fan_in"}),
    "llama-2-7b": (4096, 32, _LLAMA | {"d_ff": 11008}),
    "llama-2-13b": (5120, 40, _LLAMA | {"d_ff": 13824}),
    "llama-2-70b": (8192, 80, _LLAMA | _GROUPED | {"d_ff": 28672}),
    "llama-3-8b": (4096, 32, _LLAMA_3 | _GROUPED | {"d_ff": 14336}),
    "llama-3-70b": (8192, 80, _LLAMA_3 | _GROUPED | {"d_ff": 28672}),
    "mistral-7b": (
        4096,
        32,
        _LLAMA | _GROUPED | {"d_ff": 14336, "context_length": 8192, "window": 4096},
    ),
}
"""Width, depth and what else differs, of each preset of the modern kind."""

_GPT2_SHAPES = {
    "gpt2": (768, 12),
    "gpt2-medium": (1024, 24),
    "gpt2-large": (1280, 36),
    "gpt2-xl": (1600, 48),
}

_SOURCES = {
    "gpt2": "{} of the GPT-2 family (Radford et al. 2019, Language Models are Unsupervised "
    "Multitask Learners)",
    "modern": "The modern block at a small size: pre-norm, RMSNorm, SwiGLU, rotary positions, no "
    "biases (as Llama, Touvron et al. 2023), drawn by fan-in because that was measured best",
    "llama-2": "{} (Touvron et al. 2023, Llama 2: Open Foundation and Fine-Tuned Chat Models)",
    "llama-3": "{} (Grattafiori et al. 2024, The Llama 3 Herd of Models)",
    "mistral": "{} (Jiang et al. 2023, Mistral 7B)",
}
"""By how a preset's name begins."""

_SHORT = {"llama": "llama-2-7b", "mistral": "mistral-7b"}


def _own_fields(name: str) -> dict[str, Any]:
    """Fresh ones. `name` has dashes."""
    name = _SHORT.get(name, name)
    if name in _GPT2_SHAPES:
        return _gpt2(*_GPT2_SHAPES[name])
    d_model, n_layers, rest = _SHAPES[name]
    return _modern(d_model, n_layers, **rest)
