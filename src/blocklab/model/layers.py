"""Exceptions for single layers: alternating windows, layers without positions, two bases."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import SerializeAsAny, model_serializer, model_validator

from blocklab.errors import BlocklabError
from blocklab.model.block import BlockConfig
from blocklab.parts.positions import Positions, PositionsConfig
from blocklab.record import Record, with_changes


class Layer(Record):
    """What one layer is made of."""

    block: SerializeAsAny[BlockConfig]
    positions: SerializeAsAny[PositionsConfig]


def value_at(layer: Layer, path: str) -> object:
    """What a layer has at a dotted path; None where nothing stands."""
    found: object = layer
    for step in path.split("."):
        found = getattr(found, step, None)
    return found


class LayerException(Record):
    """Changes for the layers that `at` picks: `{at: "::2", block.attention.window: 512}`.

    `at` is an index ("3", "-1"), a slice ("::2", "1:4") or several of them joined by commas.
    Paths begin with `block.` or `positions.`; positions that act on the embedding cannot be
    changed for one layer. An exception wins over what the model states, whichever was set first,
    and over exceptions before it.
    """

    at: str
    changes: dict[str, Any]
    """Path and value of every change."""

    @model_validator(mode="before")
    @classmethod
    def _gather_paths(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        paths = dict(data)
        at = str(paths.pop("at", ""))
        return {"at": at, "changes": paths.pop("changes", {}) | paths}

    # Unknown keys are paths here, gathered before anything else looks at them.
    @model_serializer
    def _flat(self) -> dict[str, Any]:
        return {"at": self.at, **self.changes}

    @model_validator(mode="after")
    def _paths_address_a_layer(self) -> Self:
        if not self.changes:
            raise BlocklabError(f"layers at '{self.at}': no path is changed")
        for path in self.changes:
            if path.split(".")[0] not in ("block", "positions"):
                raise BlocklabError(
                    f"layers at '{self.at}': '{path}' must begin with block. or positions."
                )
        return self

    def indices(self, n_layers: int) -> frozenset[int]:
        """The layers it picks. Raises BlocklabError when `at` is malformed or picks none."""
        picked: set[int] = set()
        try:
            for piece in self.at.split(","):
                bounds = [int(b) if b.strip() else None for b in piece.split(":")]
                if len(bounds) == 1 and bounds[0] is not None:
                    picked.add(range(n_layers)[bounds[0]])
                elif 2 <= len(bounds) <= 3:
                    picked.update(range(n_layers)[slice(*bounds)])
                else:
                    raise ValueError
        except (ValueError, IndexError):
            picked = set()
        if not picked:
            raise BlocklabError(
                f"layers at '{self.at}': picks none of {n_layers} layers; "
                "expected an index or a slice, as in 3, -1, ::2 or 1:4"
            )
        return frozenset(picked)

    def applied_to(self, layer: Layer) -> Layer:
        """The layer with every change made."""
        try:
            new = with_changes(layer, self.changes)
        except BlocklabError as error:
            raise BlocklabError(f"layers at '{self.at}': {error}") from None
        if new.positions != layer.positions:
            for positions in (layer.positions, new.positions):
                self._refuse_if_embedding(positions)
        return new

    def _refuse_if_embedding(self, positions: PositionsConfig) -> None:
        if getattr(positions.module, "embed", None) is not Positions.embed:
            raise BlocklabError(
                f"layers at '{self.at}': positions '{positions.kind}' act on the embedding "
                "and cannot differ from layer to layer"
            )
