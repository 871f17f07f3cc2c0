"""The language model: embedding, positions, blocks, final norm, head."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, Self, TypeAlias

import torch
from torch import Tensor, nn

from blocklab.errors import BlocklabError
from blocklab.expected import require
from blocklab.model.config import HeadConfig, ModelConfig
from blocklab.model.initialization import draw_weights
from blocklab.parts.context import AttentionContext, LayerCache
from blocklab.parts.linear import Linear
from blocklab.parts.part import PartConfig, Spec, seeded_construction
from blocklab.parts.positions import LearnedPositions, Positions, embedding_at


class Cache(Protocol):
    """Keys and values of the tokens a model has seen before, for every layer."""

    @property
    def length(self) -> int:
        """How many tokens it holds, padding included."""
        ...

    def layer(self, index: int) -> LayerCache: ...

    def advance(self, n_tokens: int) -> None:
        """Count the tokens that every layer has just appended."""
        ...


Through: TypeAlias = Callable[[nn.Module, Tensor, AttentionContext], Tensor]


def called(block: nn.Module, x: Tensor, context: AttentionContext) -> Tensor:
    """Through the block as it is."""
    return block(x, context)  # type: ignore[no-any-return]


class Head(Linear):
    """From the stream to logits, (..., d_model) -> (..., vocab_size)."""

    def __init__(self, d_model: int, vocab_size: int, config: HeadConfig, *, tied: bool) -> None:
        # A tied head owns no weight; built without storage it takes no random numbers either.
        super().__init__(d_model, vocab_size, config.bias, device="meta" if tied else None)
        if tied and config.bias:
            self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.scale = config.scale or 1.0
        self.softcap = config.softcap

    def forward(self, h: Tensor) -> Tensor:
        logits = super().forward(h)
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits


class Transformer(nn.Module):
    """A decoder-only language model built from its config.

    Modules are constructed in reading order by PyTorch's own constructors, then every weight is
    drawn again by its role. Without `seed` both take torch's global random numbers, as a plain
    script would after `torch.manual_seed`; with it each parameter has a stream of its own.
    Raises BlocklabError when vocab_size is still null or a part's record miscounts its module.
    """

    def __init__(self, config: ModelConfig, seed: int | None = None) -> None:
        super().__init__()
        require(ModelConfig, config, "config")
        self.config = config
        d = config.d_model
        with _construction("embedding", seed):
            self.embedding = nn.Embedding(config.rows, d)
        self.embedding_scale = config.embedding_scale
        self.positions = _built("positions", seed, config.positions, d, config.context_length)
        self.blocks = nn.ModuleList(
            _built(f"blocks.{i}", seed, config.layer(i).block, d) for i in range(config.n_layers)
        )
        self.layer_positions = nn.ModuleDict(
            {
                str(i): _built(f"layer_positions.{i}", seed, positions, d, config.context_length)
                for i, positions in config.excepted_positions().items()
            }
        )
        self.final_norm = _built("final_norm", seed, config.norm_at_the_end, d)
        with _construction("head", seed):
            self.head = Head(d, config.rows, config.head, tied=config.tie_embeddings)
        self._tie()
        self.register_load_state_dict_pre_hook(_require_one_table)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_tie_again)  # type: ignore[no-untyped-call]
        specs = config.parameters()
        self._hold_to(specs)
        draw_weights(self, specs, config.initialization, config.n_layers, seed)

    def forward(
        self, tokens: Tensor, attention_mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Logits (B, T, vocab_size) of the token after each of `tokens` (B, T).

        `attention_mask` (B, S) is 1 for real tokens and 0 for padding, over the cached tokens and
        these; positions count from the first real one. Raises BlocklabError when tokens are not
        ids in that shape, one of them is no row of the table (on an accelerator that is left to the
        device), or a table of learned positions is too short.
        """
        return self.head(self.features(tokens, attention_mask, cache))  # type: ignore[no-any-return]

    def features(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        through: Through = called,
    ) -> Tensor:
        """What the head reads: the stream (B, T, d_model) after the final norm.

        `through` takes the stream through a block, (B, T, d_model) -> (B, T, d_model).
        """
        require_ids(tokens)
        self._tie()
        start = cache.length if cache is not None else 0
        real, places = self.places(tokens, attention_mask, start)
        dropout = self.config.dropout if self.training else 0.0
        shared: dict[object, object] = {}
        x = self.embedded(tokens, places)
        for i, block in enumerate(self.blocks):
            context = AttentionContext(
                positions=self.positions_of(i),
                places=places,
                start=start,
                real=real,
                dropout=dropout,
                cache=cache.layer(i) if cache is not None else None,
                shared=shared,
            )
            x = context.drop(x) if i == 0 else x
            x = through(block, x, context)  # (B, T, d_model)
        if cache is not None:
            cache.advance(tokens.shape[1])
        return self.final_norm(x)  # type: ignore[no-any-return]

    def embedded(self, tokens: Tensor, places: Tensor) -> Tensor:
        """The stream that enters the first block, (B, T, d_model), of tokens at these places."""
        try:
            x: Tensor = self.embedding(tokens)  # (B, T, d_model)
        except IndexError:
            self._require_rows(tokens)
            raise
        if self.embedding_scale != 1.0:
            # Rounded to the stream's own precision, as Gemma publishes its embedding's scale.
            x = x * torch.tensor(self.embedding_scale, dtype=x.dtype, device="cpu")
        assert isinstance(self.positions, Positions)
        added = embedding_at(self.positions, places, x.dtype)
        return x if added is None else x + added.to(x.dtype)

    def places(
        self, tokens: Tensor, attention_mask: Tensor | None, start: int
    ) -> tuple[Tensor | None, Tensor]:
        """Which keys are real (B, S) or None, and the position of each query, (T,) or (B, T).

        Of tokens (B, T) that stand after `start` cached ones. Raises BlocklabError where they do
        not fit the positions, the mask or the cached keys.
        """
        n_keys = start + tokens.shape[1]
        if isinstance(self.positions, LearnedPositions) and n_keys > self.config.context_length:
            raise BlocklabError(
                f"{n_keys} tokens do not fit context_length {self.config.context_length}: "
                "the table of learned positions ends there"
            )
        if start and not self.keys_stay(start, n_keys, padded=attention_mask is not None):
            raise BlocklabError(
                f"positions.scaling: keys cached for {start} tokens are wrong for {n_keys}: their "
                "rotation follows the sequence's length; read all tokens again without a cache"
            )
        if attention_mask is None:
            return None, torch.arange(start, n_keys, device=tokens.device)
        if attention_mask.shape != (tokens.shape[0], n_keys):
            raise BlocklabError(
                f"attention_mask has shape {tuple(attention_mask.shape)}, expected "
                f"({tokens.shape[0]}, {n_keys}): one entry for each token, cached ones included"
            )
        real = real_tokens(attention_mask)
        places = (real.cumsum(-1) - 1).clamp(min=0)[:, start:]
        return real, places

    def keys_stay(self, start: int, end: int, *, padded: bool = False) -> bool:
        """Whether a cache of `start` tokens may be extended to `end`.

        Some rotary scalings turn every key anew as the sequence grows. Where padding hides how
        long each sequence is, the answer is yes only when no length matters.
        """
        known = 0 if padded else start
        parts = (self.positions, *self.layer_positions.values())
        return all(isinstance(p, Positions) and p.keys_stay(known, end) for p in parts)

    def positions_of(self, index: int) -> Positions:
        """The positions part that a layer's attention turns or biases by."""
        own = str(index)
        part = self.layer_positions[own] if own in self.layer_positions else self.positions
        assert isinstance(part, Positions)
        return part

    def _require_rows(self, tokens: Tensor) -> None:
        wrong = tokens[(tokens < 0) | (tokens >= self.config.rows)]
        if len(wrong):
            raise BlocklabError(
                f"tokens hold {int(wrong[0])}: {len(wrong)} of {tokens.numel()} are no rows of the "
                f"embedding; expected ids from 0 to {self.config.rows - 1} (vocab_size - 1)"
            )

    def _tie(self) -> None:
        """Make a tied head read the embedding's table, where a move of one of them parted them.

        One that somebody has wrapped, so that its weight is computed, is left as it is.
        """
        if not self.config.tie_embeddings:
            return
        own, table = self.head._parameters.get("weight"), self.embedding._parameters.get("weight")
        if own is not None and table is not None and own is not table:
            self.head.weight = table

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        """Every move goes through here; where it makes new parameters the tie is made again."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._tie()
        return self

    def _hold_to(self, specs: Mapping[str, Spec]) -> None:
        """Refuse a part whose record says other parameters than its module has."""
        built = {name: tuple(p.shape) for name, p in self.named_parameters()}
        said = {name: spec.shape for name, spec in specs.items()}
        for name in built.keys() | said.keys():
            if built.get(name) != said.get(name):
                raise BlocklabError(
                    f"{name}: the record counts {said.get(name)}, the module has {built.get(name)}"
                )


_ID_TYPES = (torch.int64, torch.int32)


def require_ids(tokens: Tensor) -> None:
    """Raise BlocklabError unless tokens are ids (B, T), T at least 1. Their values are not read."""
    require(Tensor, tokens, "tokens")
    if tokens.dim() != 2 or not tokens.shape[1]:
        hint = "; for one sequence: tokens[None]" if tokens.dim() == 1 else ""
        raise BlocklabError(
            f"tokens have shape {tuple(tokens.shape)}; expected (B, T) with T at least 1{hint}"
        )
    if tokens.dtype not in _ID_TYPES:
        raise BlocklabError(f"tokens are {tokens.dtype}; expected ids, torch.int64 or torch.int32")


def real_tokens(attention_mask: Tensor) -> Tensor:
    """A mask of 1 for real tokens and 0 for padding as truth values; BlocklabError for others."""
    if attention_mask.dtype == torch.bool:
        return attention_mask
    real = attention_mask == 1
    # A graph cannot depend on values.
    if not torch.compiler.is_compiling() and bool((~real & (attention_mask != 0)).any()):
        raise BlocklabError(
            "attention_mask holds other values than 1 (a real token) and 0 (padding); a mask that "
            "is added to scores is another thing"
        )
    return real


def _require_one_table(model: Transformer, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Before loading: of two tables that differ a tied model would silently drop one."""
    names = f"{prefix}embedding.weight", f"{prefix}head.weight"
    if not model.config.tie_embeddings or any(name not in state for name in names):
        return
    table, own = (state[name] for name in names)
    if not _equal(table, own):
        raise BlocklabError(
            f"{names[1]} is not {names[0]}, but tie_embeddings is true: one table cannot be both; "
            "load them into a model with tie_embeddings=False"
        )


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same, NaN where the other does; True where that is not known."""
    if any(tensor.is_meta or hasattr(tensor, "full_tensor") for tensor in (one, other)):
        return True  # without storage, or spread over processes
    if one is other or one.shape != other.shape:
        return True  # what is wrong with a shape torch says itself
    one, other = one.detach(), other.detach().to(one.device, one.dtype)
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _tie_again(model: Transformer, _: object) -> None:
    """After loading: assigned tensors would leave the head with one of its own."""
    model._tie()


def _built(path: str, seed: int | None, record: PartConfig, *sizes: int) -> nn.Module:
    """The part, constructed from a stream of its own when there is a seed."""
    with _construction(path, seed):
        return record.build(*sizes)


def _construction(path: str, seed: int | None) -> AbstractContextManager[None]:
    return nullcontext() if seed is None else seeded_construction(seed, path)
