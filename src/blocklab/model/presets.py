"""Configurations by name: GPT-2, the modern block, and the shapes of Llama and Mistral.

A preset is a function of a few sizes; every other field is set with `with_changes`.
"""

import inspect
import textwrap
from functools import cache
from typing import Any, Protocol, cast

from blocklab.errors import BlocklabError, nearest
from blocklab.model.config import ModelConfig
from blocklab.model.preset_fields import SIZES, canonical, is_preset, preset_fields, source
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
    return _made(canonical(name))


@cache
def _made(key: str) -> Preset:
    name = _identifier(key)

    # Open, so that a size that there is not is answered as everywhere; `Preset` is what it takes.
    def make(*unnamed: object, **sizes: Any) -> ModelConfig:
        if unnamed:
            raise BlocklabError(f"presets.{name}: sizes have names, as in {name}(d_model=128)")
        for size in sizes:
            if size not in SIZES:
                raise BlocklabError(
                    f"presets.{name}: unknown size '{size}'; {nearest(size, SIZES)}; every other "
                    "field is set by with_changes"
                )
        return ModelConfig.parse(preset_fields(key, sizes))

    make.__name__ = make.__qualname__ = name
    make.__doc__ = _told(key)
    taken = list(inspect.signature(Preset.__call__).parameters.values())[1:]
    shown = inspect.Signature(taken, return_annotation=ModelConfig)
    make.__signature__ = shown  # type: ignore[attr-defined]
    return cast(Preset, make)


def _told(key: str) -> str:
    """What a preset is, for whoever asks for help."""
    config = ModelConfig.parse(preset_fields(key, {}))
    block: Any = config.block
    n_heads, n_kv_heads, _ = block.attention.heads(config.d_model)
    shared = f" over {n_kv_heads} of keys and values" if n_kv_heads != n_heads else ""
    window = f" in a window of {block.attention.window}" if block.attention.window else ""
    rows = "from the tokenizer" if config.vocab_size is None else str(config.vocab_size)
    biased = "with biases" if block.feed_forward.bias else "without biases"
    tied = "the embedding" if config.tie_embeddings else "a table of its own"
    sizes = (
        f"{config.n_layers} layers of d_model {config.d_model}, {n_heads} heads{shared}{window}, "
        f"d_ff {block.feed_forward.width(config.d_model)}, context_length "
        f"{config.context_length}, vocab_size {rows}. Sets positions ({config.positions.kind}), "
        f"block.norm ({block.norm.kind}, eps {block.norm.eps:g}), block.placement "
        f"({block.placement}), block.feed_forward ({block.feed_forward.kind}, "
        f"{block.feed_forward.activation}), {biased}; the head is {tied}; dropout "
        f"{config.dropout:g}; weights are drawn by {config.initialization.kind}."
    )
    return "\n\n".join(textwrap.fill(text, 88) for text in (f"{source(key)}.", sizes, _TAKEN))


_TAKEN = (
    "Sizes that are null stay the preset's; at another d_model heads and d_ff follow it. Every "
    "other field is set with `with_changes`. Raises BlocklabError for an unknown size or a bad "
    "value."
)


def _identifier(key: str) -> str:
    return key.replace("-", "_")


def __getattr__(name: str) -> Preset:
    if name.startswith("_") or not is_preset(name):
        raise AttributeError(f"no preset '{name}'; {nearest(name, map(_identifier, names()))}")
    return preset(name)


def __dir__() -> list[str]:
    return sorted([*map(_identifier, names()), "Preset", "names", "preset"])
