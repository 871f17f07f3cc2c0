"""Keys and values of the tokens a model has seen, so that each is computed once."""

import torch
from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.model.transformer import Transformer
from blocklab.parts.attention import CausalAttention


class KeyValueCache:
    """Room for `capacity` tokens of `batch_size` sequences in every layer of a model.

    Buffers (B, n_kv_heads, capacity, head_dim) are laid out at once for the layers whose record
    says their sizes; those of a user's own attention follow its first keys and values.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch_size: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.capacity = capacity
        self._length = 0
        self._layers = [LayerBuffers(self) for _ in range(config.n_layers)]
        for index, layer in enumerate(self._layers):
            attention = getattr(config.layer(index).block, "attention", None)
            if isinstance(attention, CausalAttention.Config):
                _, n_kv_heads, head_dim = attention.heads(config.d_model)
                like = torch.empty(batch_size, n_kv_heads, 0, head_dim, dtype=dtype, device=device)
                layer.make_room(like, like)

    @classmethod
    def of(cls, model: Transformer, batch_size: int, capacity: int) -> "KeyValueCache":
        """A cache of the model's own dtype, where the model is."""
        weight = model.embedding.weight
        return cls(model.config, batch_size, capacity, weight.dtype, weight.device)

    @property
    def length(self) -> int:
        """How many tokens it holds, padding included."""
        return self._length

    @property
    def complete(self) -> bool:
        """Whether every layer has kept every token.

        A user's own attention that never calls `context.extend` leaves its layer behind, and the
        model must then see all tokens again at each step.
        """
        return all(layer.length == self._length for layer in self._layers)

    def layer(self, index: int) -> "LayerBuffers":
        return self._layers[index]

    def advance(self, n_tokens: int) -> None:
        """Count the tokens that every layer has just appended."""
        self._length += n_tokens


class LayerBuffers:
    """Keys and values of one layer."""

    def __init__(self, cache: KeyValueCache) -> None:
        self._cache = cache
        self.length = 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def make_room(self, keys: Tensor, values: Tensor) -> None:
        """Buffers for as many tokens as the cache may hold, otherwise shaped like these."""
        self.keys, self.values = (
            like.new_zeros((*like.shape[:2], self._cache.capacity, like.shape[3]))
            for like in (keys, values)
        )

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, n_kv_heads, T, head_dim); all kept so far, (B, n_kv_heads, S, head_dim).

        Raises BlocklabError when they do not fit any more.
        """
        end = self._cache.length + keys.shape[2]
        if end > self._cache.capacity:
            raise BlocklabError(
                f"{end} tokens do not fit a cache with room for {self._cache.capacity}; "
                "make it larger or start a new one"
            )
        if self.keys is None or self.values is None:
            self.make_room(keys, values)
        assert self.keys is not None
        assert self.values is not None
        self.keys[:, :, self._cache.length : end] = keys
        self.values[:, :, self._cache.length : end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]
