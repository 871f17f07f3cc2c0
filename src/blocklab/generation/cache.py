"""Keys and values of the tokens a model has seen, so that each is computed once.

A layer whose attention has a window keeps the last `window` tokens only, in a ring: slot s of the
sequence lies at place s % window, over the one that has just left the window.
"""

import torch
from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.model.transformer import Transformer
from blocklab.parts.attention import CausalAttention
from blocklab.parts.contract import is_ours


class KeyValueCache:
    """Room for `capacity` tokens of `batch_size` sequences in every layer of a model.

    Buffers (B, n_kv_heads, room, head_dim) are laid out at once for the layers of blocklab's own
    parts, with room for `capacity` tokens or for a window if that is less. Those of a user's own
    attention or block follow its first keys and values and keep every token.
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
        self._layers: list[LayerBuffers] = []
        for index in range(config.n_layers):
            block = config.layer(index).block
            attention = getattr(block, "attention", None)
            # A user's own may keep other keys than its record says, or others beside them.
            ours = is_ours(block.module) and is_ours(getattr(attention, "module", object))
            if not (ours and isinstance(attention, CausalAttention.Config)):
                self._layers.append(LayerBuffers(self, capacity))
                continue
            layer = LayerBuffers(self, min(capacity, attention.window or capacity))
            _, n_kv_heads, head_dim = attention.heads(config.d_model)
            like = torch.empty(batch_size, n_kv_heads, 0, head_dim, dtype=dtype, device=device)
            layer.make_room(like, like)
            self._layers.append(layer)

    @classmethod
    def of(cls, model: Transformer, batch_size: int, capacity: int) -> "KeyValueCache":
        """A cache of the model's own dtype, where the model is."""
        weight = model.embedding.weight
        return cls(model.config, batch_size, capacity, weight.dtype, weight.device)

    @property
    def length(self) -> int:
        """How many tokens it has read, padding and those that left a window included."""
        return self._length

    @property
    def complete(self) -> bool:
        """Whether every layer has kept every token it may look at.

        A user's own attention that never calls `context.extend` leaves its layer behind, and the
        model must then see all tokens again at each step.
        """
        return all(layer.length == self._length for layer in self._layers)

    def layer(self, index: int) -> "LayerBuffers":
        """The buffers of a layer, for one pass of some tokens through it."""
        self._layers[index].begin()
        return self._layers[index]

    def advance(self, n_tokens: int) -> None:
        """Count the tokens that every layer has just appended."""
        self._length += n_tokens


class LayerBuffers:
    """Keys and values of one attention: all of them, or the last `room` in a ring.

    A block of the user's own may have several: the second one's lie in buffers `beside` these.
    """

    def __init__(self, cache: KeyValueCache, room: int) -> None:
        self._cache = cache
        self.room = room
        self.length = 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.beside: LayerBuffers | None = None
        self._extended = False

    def begin(self) -> None:
        """Before each pass: its first keys and values go here."""
        self._extended = False
        if self.beside is not None:
            self.beside.begin()

    def make_room(self, keys: Tensor, values: Tensor) -> None:
        """Buffers for `room` tokens, otherwise shaped like these.

        Token by token in memory: strides do not depend on the room, and code compiled for one
        cache serves every other.
        """
        self.keys, self.values = (
            like.new_zeros((self.room, *like.shape[:2], like.shape[3])).permute(1, 2, 0, 3)
            for like in (keys, values)
        )

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, n_kv_heads, T, head_dim); all that may be seen, (B, n_kv_heads, S, head_dim).

        They come in the order of the text and end with the new ones. Only those of a single new
        token may come as the ring lies: slot s at place s % S. Raises BlocklabError when they do
        not fit any more.
        """
        if self._extended:
            self.beside = self.beside or LayerBuffers(self._cache, self._cache.capacity)
            return self.beside.extend(keys, values)
        self._extended = True
        start, _ = self._counted(keys.shape[2])
        if self.keys is None or self.values is None:
            self.make_room(keys, values)
        assert self.keys is not None
        assert self.values is not None
        return (
            self._appended(self.keys, keys, start),
            self._appended(self.values, values, start),
        )

    def slot(self) -> tuple[Tensor, Tensor, int]:
        """Keys and values that one new token of each sequence will see, and its place in them.

        Views (B, n_kv_heads, S, head_dim) into the buffers, where its own are still to be written.
        """
        start, end = self._counted(1)
        assert self.keys is not None
        assert self.values is not None
        if end >= self.room:
            return self.keys, self.values, start % self.room
        return self.keys.narrow(2, 0, end), self.values.narrow(2, 0, end), start

    def _counted(self, n_tokens: int) -> tuple[int, int]:
        """Slots of the first new token and after the last."""
        start, end = self._cache.length, self._cache.length + n_tokens
        if end > self._cache.capacity:
            raise BlocklabError(
                f"{end} tokens do not fit a cache with room for {self._cache.capacity}; "
                "make it larger or start a new one"
            )
        self.length = end
        return start, end

    def _appended(self, buffer: Tensor, new: Tensor, start: int) -> Tensor:
        end = start + new.shape[2]
        if end <= self.room:
            buffer[:, :, start:end] = new
            return buffer[:, :, :end]
        if new.shape[2] == 1:
            buffer[:, :, start % self.room] = new[:, :, 0]
            return buffer
        # The first new token sees the `room - 1` before it, some of which are overwritten below.
        before = torch.arange(max(0, start - self.room + 1), start, device=buffer.device)
        seen = torch.cat((buffer[:, :, before % self.room], new), dim=2)
        kept = torch.arange(max(start, end - self.room), end, device=buffer.device)
        buffer[:, :, kept % self.room] = new[:, :, kept - start]
        return seen
