"""Parameters, FLOPs and bytes of a model, from its record alone: nothing is built."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from blocklab.model.config import ModelConfig
from blocklab.model.layers import Layer


class Row(NamedTuple):
    """One distinct parameter: a tied head has none of its own."""

    path: str
    shape: tuple[int, ...]
    parameters: int
    share: float
    """Of the whole model's parameters."""


@dataclass(frozen=True)
class Count:
    """The parameter table of a model and what follows from it."""

    config: ModelConfig
    rows: tuple[Row, ...]

    @cached_property
    def total(self) -> int:
        """Distinct parameters: a tied table counts once."""
        return sum(row.parameters for row in self.rows)

    @cached_property
    def matrix_parameters(self) -> int:
        """Parameters in matrix products for one token: the head even when tied, lookups never."""
        blocks = sum(layer.block.matrix_parameters(self.config.d_model) for layer in self._layers)
        return blocks + self.config.rows * self.config.d_model

    @cached_property
    def subtotals(self) -> dict[str, int]:
        """Parameters by part, blocks summed: `block.attention`, `block.norm`, `head`, …"""
        sums: dict[str, int] = defaultdict(int)
        for row in self.rows:
            steps = row.path.split(".")
            inner = ["block", steps[2]] if steps[0] == "blocks" else [steps[0]]
            sums[".".join(inner)] += row.parameters
        return dict(sums)

    def flops_per_token(self, context: int | None = None) -> int:
        """Forward and backward: 6 M + 12 sum over layers of n_heads * head_dim * keys seen.

        M counts parameters in matrix products, `context` tokens a sequence (Kaplan et al. 2020,
        2.1; the score term as in Chowdhery et al. 2022, appendix B). Default: context_length.
        """
        length = context or self.config.context_length
        d = self.config.d_model
        scores = sum(layer.block.score_width(d, length) for layer in self._layers)
        return 6 * self.matrix_parameters + 12 * scores

    def bytes(self, bytes_per_parameter: int = 4) -> int:
        """Size of the weights."""
        return self.total * bytes_per_parameter

    @cached_property
    def _layers(self) -> tuple[Layer, ...]:
        return tuple(self.config.layer(i) for i in range(self.config.n_layers))


def count(config: ModelConfig) -> Count:
    """The parameter table of `config`. Raises BlocklabError while vocab_size is null."""
    specs = config.parameters()
    total = sum(spec.size for spec in specs.values())
    return Count(
        config,
        tuple(Row(path, s.shape, s.size, s.size / total) for path, s in specs.items()),
    )
