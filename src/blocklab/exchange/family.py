"""What a family of checkpoints is: how its configuration reads, and what it calls each tensor.

A family is chosen by `model_type` in config.json and nothing else; everything about a model comes
from the fields. `exchange/families` holds one small file for each.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from blocklab.exchange.fields import Fields
from blocklab.exchange.names import Names
from blocklab.model.config import ModelConfig
from blocklab.parts.feed_forward import FeedForwardConfig
from blocklab.record import Value

JsonObject: TypeAlias = dict[str, Any]

ACTIVATION_OF: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
    "linear": "identity",
}
"""Transformers' names of activations -> ours."""

NAME_OF_ACTIVATION: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "identity": "linear",
}


class Family(ABC):
    """One `model_type`."""

    model_type: ClassVar[str]
    architecture: ClassVar[str]
    """The class for language modelling, as `architectures` names it."""
    prefix: ClassVar[str] = "model."
    """What stands before the tensors' names, except in files saved without a head."""
    head_name: ClassVar[str] = "lm_head"
    """What the map to logits is called, stored or not."""
    layouts: ClassVar[tuple[Names, ...]]
    """Tables of names; the first is the one that is written."""
    unused: ClassVar[tuple[str, ...]] = (r"\.rotary_emb\.inv_freq$",)
    """Patterns of tensors in old files that are computed, not learnt."""
    requires: ClassVar[Mapping[str, Value]]
    """What every model of the family has, by path in our config."""

    @abstractmethod
    def config(self, fields: Fields) -> ModelConfig:
        """Our config of what the fields describe. Raises BlocklabError naming a field."""

    @abstractmethod
    def describe(self, config: ModelConfig) -> JsonObject:
        """The content of config.json for a config whose stated layer has what the family requires.

        It may lose what the family cannot say: whoever writes it reads it back and compares.
        """

    own_tokenizer: ClassVar[str | None] = None
    """The class by which transformers reads texts for this family, whatever tokenizer.json says."""

    def unloadable(self, config: ModelConfig) -> list[str]:
        """What transformers refuses to load of a config that the family can say."""
        return []

    def names(self, config: ModelConfig) -> Names:
        """The table by which `config` is written."""
        return self.layouts[0]


def exceptions(path: str, values: Sequence[Value], usual: Value) -> list[JsonObject]:
    """Layer exceptions that set `path` where a layer's value is not the usual one."""
    found: dict[str, list[int]] = {}
    by_text: dict[str, Value] = {}
    for index, value in enumerate(values):
        if value != usual:
            found.setdefault(repr(value), []).append(index)
            by_text[repr(value)] = value
    return [{"at": ",".join(map(str, at)), path: by_text[text]} for text, at in found.items()]


def shared_dropout(fields: Fields, *names: str, default: float) -> float:
    """The rate that all of `names` have; where they differ, 0 and a note: they act in training."""
    rates = [fields.number(name, default) for name in names]
    if len(set(rates)) == 1:
        return rates[0]
    said = ", ".join(f"{name} {rate:g}" for name, rate in zip(names, rates, strict=True))
    fields.notes.append(f"dropout is set to 0: the checkpoint has several rates ({said})")
    return 0.0


def width(feed_forward: Any, d_model: int) -> int:
    """d_ff after resolution."""
    assert isinstance(feed_forward, FeedForwardConfig)
    return feed_forward.width(d_model) or 4 * d_model


def drawn_std(config: ModelConfig) -> float:
    """The std that `initializer_range` records; above 1 transformers refuses to load it."""
    return min(1.0, float(getattr(config.initialization, "std", 0.02)))
