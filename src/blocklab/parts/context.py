"""What attention is told beside the stream: who may see whom, where tokens stand, the cache.

One context is made per forward pass and layer; what layers can share (masks, rotary tables) is
computed once and kept in `shared`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from blocklab.parts.positions import Positions, Tables, bias_at

Shared = TypeVar("Shared")


class LayerCache(Protocol):
    """Keys and values of the tokens before, for one layer."""

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, n_kv_heads, T, head_dim) and return all kept so far, (B, n_kv_heads, S, …).

        In the order of the text, the new ones last; for T = 1 slot s may lie at s % S instead.
        """
        ...


@dataclass(frozen=True)
class AttentionContext:
    """Everything attention needs to know about T queries that see S keys.

    A *slot* is a token's index in the sequence, padding included; a *position* counts from the
    first real token. Masks go by slot, rotation by position.
    """

    positions: Positions
    """The positions part of this layer."""
    places: Tensor
    """Position of each query: (T,), or (B, T) where padding shifts them."""
    start: int | Tensor = 0
    """Slot of the first query: how many tokens the cache held before. (1,) in compiled code."""
    real: Tensor | None = None
    """(B, S) true for real tokens; None when nothing is padding."""
    dropout: float = 0.0
    """Probability of dropping attention weights; already 0 in evaluation."""
    cache: LayerCache | None = None
    shared: dict[object, object] = field(default_factory=dict)

    def once(self, key: object, compute: Callable[[], Shared]) -> Shared:
        """`compute()`, once in this forward pass."""
        if key not in self.shared:
            self.shared[key] = compute()
        return self.shared[key]  # type: ignore[return-value]

    def drop(self, x: Tensor) -> Tensor:
        """Some of `x`, of any shape, set to zero and the rest scaled up, while training drops."""
        return F.dropout(x, self.dropout) if self.dropout else x

    def tables(self, head_dim: int, dtype: torch.dtype) -> Tables | None:
        """What turns queries and keys of this width by their positions, if anything does."""
        key = ("rotary", self.positions, head_dim, dtype)
        return self.once(key, lambda: self.positions.tables(self.places, head_dim, dtype))

    def rotate(self, x: Tensor) -> Tensor:
        """Queries or keys (B, T, heads, head_dim) turned by their positions, if the part does."""
        tables = self.tables(x.shape[-1], x.dtype)
        return x if tables is None else self.positions.rotate(x, tables)

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values the queries may look at, the cached ones first."""
        return (keys, values) if self.cache is None else self.cache.extend(keys, values)

    def mask(self, queries: Tensor, n_keys: int, window: int | None) -> Tensor | None:
        """The mask of these queries (B, n_heads, T, head_dim), broadcastable to (B, n_heads, T, S).

        Boolean (true may be seen), or additive in at least float32 when positions bias the scores;
        None when the mask is exactly the causal triangle of T queries on T keys, or when a single
        query sees all.
        A query sees itself and the `window - 1` keys before it.
        """
        n_heads, n_queries = queries.shape[1], queries.shape[2]
        narrow = window is not None and window < n_keys
        distance = self._distance(n_queries, n_keys, queries.device)
        # Half precision has no room for distances of a few hundred.
        wide = torch.promote_types(queries.dtype, torch.float32)
        bias = self.once(
            ("bias", self.positions, n_heads, n_keys, wide),
            lambda: bias_at(self.positions, distance, n_heads, wide),
        )
        square = n_queries == n_keys or n_queries == 1
        if square and not narrow and self.real is None and bias is None:
            return None
        visible = self.once(
            ("visible", window if narrow else None, n_keys),
            lambda: self._visible(distance, window if narrow else None),
        )
        if bias is None:
            return visible
        return self.once(
            ("biased", self.positions, n_heads, n_keys, window, wide),
            lambda: bias.to(wide).masked_fill(~visible, float("-inf")),
        )

    def _distance(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """How many slots each query stands after each key: (T, S).

        The keys are the last S up to the last query, in the order of the text; those of a single
        query may lie as a ring instead, slot s at place s % S.
        """

        def compute() -> Tensor:
            keys = torch.arange(n_keys, device=device)
            if n_queries == 1:
                return (self.start - keys)[None] % n_keys
            queries = torch.arange(n_keys - n_queries, n_keys, device=device)
            return queries[:, None] - keys

        return self.once(("distance", n_queries, n_keys), compute)

    def _visible(self, distance: Tensor, window: int | None) -> Tensor:
        visible = distance >= 0
        if window is not None:
            visible = visible & (distance < window)
        if self.real is None:
            return visible
        # A padding token sees itself: a row with nothing to see would turn into NaN.
        slots = self.start + len(distance) - 1 - distance[-1]  # of the keys, (S,)
        padded = visible & self.real[:, None, None, slots]  # (B, 1, T, S)
        return padded | (distance == 0)


@dataclass(frozen=True)
class ContextOfOneLayer(AttentionContext):
    """For a layer whose code is compiled by itself: it shares nothing but what it is given."""

    given: Tables | None = None
    """The tables of queries and keys; within the code each use would compute them anew."""

    def tables(self, head_dim: int, dtype: torch.dtype) -> Tables | None:
        return super().tables(head_dim, dtype) if self.given is None else self.given

    def once(self, key: object, compute: Callable[[], Shared]) -> Shared:
        return compute()  # what is shared would be compiled in, and so would a length in the key
