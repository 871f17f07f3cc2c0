"""Parameters, FLOPs and bytes of a model, from its record alone: nothing is built."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from blocklab.errors import BlocklabError
from blocklab.expected import require
from blocklab.model.block import BlockConfig
from blocklab.model.config import ModelConfig
from blocklab.model.layers import Layer
from blocklab.parts.attention import AttentionConfig
from blocklab.shown import Shown


class Row(NamedTuple):
    """One distinct parameter: a tied head has none of its own."""

    path: str
    shape: tuple[int, ...]
    parameters: int
    share: float
    """Of the whole model's parameters."""


@dataclass(frozen=True, repr=False)
class Count(Shown):
    """The parameter table of a model and what follows from it. Prints as that table."""

    config: ModelConfig
    rows: tuple[Row, ...]

    def __repr__(self) -> str:
        return f"Count({self.total:,} parameters in {len(self.rows):,} tensors)"

    def __str__(self) -> str:
        return _as_text(self)

    @cached_property
    def total(self) -> int:
        """Distinct parameters: a tied table counts once."""
        return sum(row.parameters for row in self.rows)

    @cached_property
    def matrix_parameters(self) -> int:
        """Parameters in matrix products for one token: the head even when tied, lookups never."""
        config, d = self.config, self.config.d_model
        blocks = sum(layer.block.in_products(d) for layer in self._layers)
        positions = [config.positions, *config.excepted_positions().values()]
        # A raw table of positions is looked up: there only linear maps count.
        of_positions = sum(p.matrix_parameters(d, config.context_length) for p in positions)
        return blocks + of_positions + config.norm_at_the_end.in_products(d) + config.rows * d

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
        Where `untold_scores` names a part it is without that part's scores: a lower bound.
        """
        length = context or self.config.context_length
        d = self.config.d_model
        scores = sum(layer.block.score_width(d, length) or 0 for layer in self._layers)
        return 6 * self.matrix_parameters + 12 * scores

    def known_flops_per_token(self) -> int:
        """`flops_per_token` for whoever decides by it.

        Raises BlocklabError, saying what to define, where a part does not tell its scores.
        """
        if self.untold_scores is not None:
            raise BlocklabError(
                f"{self.untold_scores} does not tell the FLOPs of its scores: give its class a "
                "static method score_width(config, d_model, context_length) that returns "
                "n_heads * head_dim * keys seen, 0 where it has no scores; or set match: parameters"
            )
        return self.flops_per_token()

    @cached_property
    def untold_scores(self) -> str | None:
        """The first part whose scores are not known, such as `block.attention 'mine'`."""
        d, length = self.config.d_model, self.config.context_length
        unknown = (place for place, part in self._scoring if part.score_width(d, length) is None)
        return next(unknown, None)

    @cached_property
    def assumed_scores(self) -> str | None:
        """The first part that does not tell its scores, and is taken to have those of its heads."""
        d, length = self.config.d_model, self.config.context_length
        assumed = (
            place
            for place, part in self._scoring
            if not _tells(part) and part.score_width(d, length) is not None
        )
        return next(assumed, None)

    @cached_property
    def _scoring(self) -> tuple[tuple[str, AttentionConfig | BlockConfig], ...]:
        """The parts whose scores count, with their place and kind in words."""
        parts: list[tuple[str, AttentionConfig | BlockConfig]] = []
        for block in (layer.block for layer in self._layers):
            nested = [(n, inner) for n, inner in block if isinstance(inner, AttentionConfig)]
            if _tells(block) or not nested:
                parts.append((f"block '{block.kind}'", block))
            else:
                parts += [(f"block.{name} '{inner.kind}'", inner) for name, inner in nested]
        return tuple(parts)

    def bytes(self, bytes_per_parameter: int = 4) -> int:
        """Size of the weights."""
        return self.total * bytes_per_parameter

    @cached_property
    def _layers(self) -> tuple[Layer, ...]:
        return tuple(self.config.layer(i) for i in range(self.config.n_layers))


def _tells(part: AttentionConfig | BlockConfig) -> bool:
    """Whether the part's record or class states its scores."""
    ours = (AttentionConfig.score_width, BlockConfig.score_width)
    return hasattr(part.module, "score_width") or type(part).score_width not in ours


def count(config: ModelConfig) -> Count:
    """The parameter table of `config`. Raises BlocklabError while vocab_size is null."""
    require(ModelConfig, config, "count")
    specs = config.parameters()
    total = sum(spec.size for spec in specs.values())
    return Count(
        config,
        tuple(Row(path, s.shape, s.size, s.size / total) for path, s in specs.items()),
    )


HEADINGS = ("part", "parameters", "share")


def _as_text(count: Count) -> str:
    """The whole table, a line a part."""
    title = f"{count.total:,} parameters"
    rows = [HEADINGS, *part_rows(count)]
    parts, numbers, shares = (max(map(len, column)) for column in zip(*rows, strict=True))
    table = (f"  {a:<{parts}}  {b:>{numbers}}  {c:>{shares}}" for a, b, c in rows)
    return "\n".join([title, *table, *(f"  {fact}" for fact in facts(count))])


def part_rows(count: Count) -> list[tuple[str, str, str]]:
    """Under `HEADINGS`, for each part: its name with how many blocks have it, and its size."""
    return [
        (
            part + (f" × {count.config.n_layers}" if part.startswith("block.") else ""),
            f"{parameters:,}",
            f"{100 * parameters / count.total:.1f} %",
        )
        for part, parameters in count.subtotals.items()
    ]


def facts(count: Count) -> tuple[str, str, str]:
    """Whether the head is tied, the bytes of the weights, the FLOPs of training."""
    tied = count.config.tie_embeddings
    return (
        "the head is the embedding" if tied else "the head has its own table",
        f"float32 {count.bytes(4):,} bytes, bf16 {count.bytes(2):,} bytes",
        f"training {_flops(count)} FLOPs a token at context {count.config.context_length}",
    )


def _flops(count: Count) -> str:
    """The FLOPs of training on a token, with what is not known of them."""
    known = f"{count.flops_per_token():,}"
    if count.untold_scores is not None:
        return f"≥ {known} (without the scores of {count.untold_scores}, which does not tell them)"
    if count.assumed_scores is not None:
        return f"{known} (scores of {count.assumed_scores} as its heads would take)"
    return known
