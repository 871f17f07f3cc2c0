"""The weights that a training starts from, as its model takes them.

A shorter context takes the first rows of a table of places; every other size must be the same.
"""

from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.model.transformer import Transformer
from blocklab.training.state import state_of


def require_fitting(config: ModelConfig, start: Transformer) -> None:
    """Raise BlocklabError, naming the first, where a parameter of `config` has no such weights."""
    given = starting_weights(config, start)
    for path, spec in config.parameters().items():
        shape = tuple(given[path].shape) if path in given else None
        if shape != spec.shape:
            raise BlocklabError(
                f"{path}: the model has shape {spec.shape}, the weights {shape}; "
                "change no sizes, or train from scratch"
            )


def starting_weights(config: ModelConfig, start: Transformer) -> dict[str, Tensor]:
    """What `start` holds, for a model of `config`; nothing is copied."""
    n, there = config.context_length, start.config.context_length
    places = [path for path, spec in config.parameters().items() if spec.role == "position"]
    held = state_of(start)
    shorter = {path: held[path][:n] for path in places if n < there == len(held.get(path, ()))}
    return held | shorter
