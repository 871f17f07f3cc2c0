"""Values that a user's own part sets in its constructor, and that first values are drawn over.

Nothing is changed here: whoever plans a study can say what would be lost.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from blocklab.model.config import ModelConfig
from blocklab.parts.contract import SIZES, is_ours
from blocklab.parts.part import PartConfig, seeded_construction
from blocklab.parts.read_off import kept_parameters


class Overwritten(NamedTuple):
    """A user's own part, where it stands (`block.feed_forward`), and the parameters it sets."""

    place: str
    record: PartConfig
    names: tuple[str, ...]


def overwritten(config: ModelConfig) -> Iterator[Overwritten]:
    """Every own part of a model that sets values which the initialization replaces by others.

    A value is taken to be set where it comes out the same whatever the random numbers: constants,
    an identity matrix, a table by a formula. Raises BlocklabError where a constructor fails.
    """
    seen: list[PartConfig] = []  # not a set: a record may hold lists
    for place, record in _own_parts(config):
        if record not in seen:
            seen.append(record)
            names = tuple(_names(config, record))
            if names:
                yield Overwritten(place, record, names)


def _own_parts(config: ModelConfig) -> Iterator[tuple[str, PartConfig]]:
    for index in range(config.n_layers):
        layer = config.layer(index)
        yield from _own_in("block", layer.block)
        yield from _own_in("positions", layer.positions)
    yield from _own_in("final_norm", config.norm_at_the_end)


def _own_in(place: str, record: PartConfig) -> Iterator[tuple[str, PartConfig]]:
    """The part, or those that one of ours is made of; what an own part builds belongs to it."""
    if not is_ours(record.module):
        yield place, record
        return
    for name, inner in record:
        if isinstance(inner, PartConfig):
            yield from _own_in(f"{place}.{name}", inner)


def _names(config: ModelConfig, record: PartConfig) -> Iterator[str]:
    given = {"context_length": config.context_length}
    sizes = [given.get(size, config.d_model) for size in SIZES[record.slot]]
    specs = record.parameters(*sizes)
    one, other = (_constructed(record, sizes, seed) for seed in (0, 1))
    kept = kept_parameters(one)
    for (name, value), again in zip(one.named_parameters(), other.parameters(), strict=True):
        std = config.initialization.std_of(specs[name], config.n_layers)
        if std is None or value in kept or not torch.equal(value, again):
            continue
        if std or value.any():  # zero that is drawn as zero stays what it is
            yield name


def _constructed(record: PartConfig, sizes: list[int], seed: int) -> nn.Module:
    with seeded_construction(seed, "overwritten"):
        return record.build(*sizes)
