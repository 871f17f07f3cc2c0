"""Writing on from a prompt, token by token, and what happens past the context length.

Which token is chosen is in `sampling`; text instead of ids is in `text`.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from blocklab.errors import BlocklabError
from blocklab.expected import require, require_whole, require_whole_numbers
from blocklab.generation.cache import KeyValueCache
from blocklab.generation.compiled import CompiledReading, obstacle, worth_compiling
from blocklab.generation.sampling import Choice, Sampling
from blocklab.model.evaluation import Evaluating
from blocklab.model.transformer import Transformer, real_tokens, require_ids
from blocklab.parts.linear import PackedWeights
from blocklab.parts.positions import Positions

PastContext: TypeAlias = Literal["window", "error", "extend"]
"""What to do where prompt and new tokens are more than context_length.

`window` reads the last context_length tokens anew at each step, as GPT-2 was published: slow, and
the same with and without a cache. `error` refuses before the first step. `extend` goes on with the
cache, for positions that reach any distance (alibi, sinusoidal, none); learned and rotary
positions were never trained out there and are refused.
"""

PACKED_FROM = 64
"""New tokens from which laying weights out anew takes less time than it saves."""

_POLICIES: tuple[PastContext, ...] = ("window", "error", "extend")


def generate(
    model: Transformer,
    tokens: Tensor,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int | Sequence[int] | None = None,
    use_cache: bool = True,
    attention_mask: Tensor | None = None,
    stop_ids: Sequence[int] = (),
    past_context: PastContext = "window",
    compiled: bool | None = None,
) -> Tensor:
    """The prompt and what the model writes after it, (B, T) -> (B, T + max_new_tokens).

    How a token is chosen is told by `Sampling`, all else by `sample_tokens`. Fewer tokens come
    back when every sequence has met one of `stop_ids` before.
    """
    steps = sample_tokens(
        model,
        tokens,
        max_new_tokens=max_new_tokens,
        sampling=Sampling(
            repetition_penalty=repetition_penalty,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
        ),
        use_cache=use_cache,
        attention_mask=attention_mask,
        stop_ids=stop_ids,
        past_context=past_context,
        compiled=compiled,
    )
    return torch.cat([tokens, *(ids[:, None] for ids in steps)], dim=1)


def sample_tokens(
    model: Transformer,
    tokens: Tensor,
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    use_cache: bool = True,
    attention_mask: Tensor | None = None,
    stop_ids: Sequence[int] = (),
    past_context: PastContext = "window",
    compiled: bool | None = None,
) -> Iterator[Tensor]:
    """The ids (B,) of each new token as soon as it is chosen, after the prompt `tokens` (B, T).

    Without `sampling` the likeliest token is taken. Torch's global random numbers are not touched,
    and no sequence's tokens depend on what else is in the batch. Prompts of different lengths stand
    in one batch with padding on the left and an `attention_mask` (B, T), 1 for real tokens. A
    sequence that has met one of `stop_ids` repeats it. `past_context` says what to do where the
    context ends. The model computes without dropout, and its mode stays as it was. A part of the
    user's own that looks at earlier tokens otherwise than through `context.extend` is found out at
    the first cached token; all tokens are then read anew at each step.

    `compiled` reads new tokens by compiled code: on a processor, with a cache, and with blocklab's
    own parts. Null does so where that saves more time than compiling takes (`COMPILED_FROM`), and
    goes on without where it cannot be. Logits then differ in their rounding. The model's weights
    must stay as they are until the text is written.

    Raises BlocklabError, at once, for arguments that do not fit.
    """
    require(Transformer, model, "model")
    require(Tensor, tokens, "tokens")
    require_whole(max_new_tokens, "max_new_tokens")
    require_whole_numbers(stop_ids, "stop_ids")
    if attention_mask is not None:
        require(Tensor, attention_mask, "attention_mask")
        attention_mask = real_tokens(attention_mask)
    _check_prompt(model, tokens, attention_mask, max_new_tokens)
    capacity = _capacity(model, tokens.shape[1], max_new_tokens, past_context)
    choice = Choice(sampling or Sampling(), tokens, attention_mask, model.config.rows)
    reader = _Reader(model, tokens, attention_mask, capacity, max_new_tokens, use_cache)
    if compiled is not False:
        reader.compile(required=compiled is True)
    return _steps(reader, choice, max_new_tokens, tuple(stop_ids))


def _steps(
    reader: "_Reader", choice: Choice, max_new_tokens: int, stop_ids: tuple[int, ...]
) -> Iterator[Tensor]:
    stops = torch.tensor(stop_ids, dtype=torch.long, device=reader.tokens.device)
    last = stopped = None
    for _ in range(max_new_tokens):
        ids = choice.next(reader.next_logits())  # (B,)
        if last is not None and stopped is not None:
            ids = torch.where(stopped, last, ids)
        yield ids
        if stop_ids:
            last, stopped = ids, torch.isin(ids, stops)
            if bool(stopped.all()):
                return
        reader.append(ids)


class _Reader:
    """Reads tokens and gives the logits of the next one, from the cache as long as it holds."""

    def __init__(
        self,
        model: Transformer,
        tokens: Tensor,
        attention_mask: Tensor | None,
        capacity: int,
        max_new_tokens: int,
        use_cache: bool,
    ) -> None:
        self.model, self.tokens, self.mask = model, tokens, attention_mask
        self.evaluating = Evaluating(model)
        # Those that a cache serves: past the context, all are read anew.
        self.new_tokens = min(max_new_tokens, capacity - tokens.shape[1] + 1)
        self.compiled: CompiledReading | None = None
        self.must_compile = False
        self.packed: PackedWeights | None = None
        self.readable = capacity
        self.proven = not any(map(_is_a_users, model.modules()))
        fits = tokens.shape[1] <= capacity
        self.cache = (
            KeyValueCache.of(model, tokens.shape[0], capacity) if use_cache and fits else None
        )

    def compile(self, *, required: bool) -> None:
        """Read new tokens by compiled code: if it pays, or because it was asked for."""
        if required:
            self._require_compilable()
        if self.cache is not None and (required or worth_compiling(self.model, self.new_tokens)):
            self.compiled = CompiledReading(
                self.model,
                len(self.tokens),
                padded=self.mask is not None,
                insisting=required,
            )
            self.must_compile = required

    def _require_compilable(self) -> None:
        reason = obstacle(self.model)
        if self.cache is None:
            too_long = self.tokens.shape[1] > self.readable
            reason = "the prompt is longer than the context" if too_long else "there is no cache"
        if reason is not None:
            raise BlocklabError(f"no compiled code can write this text: {reason}")

    def append(self, ids: Tensor) -> None:
        self.tokens = torch.cat((self.tokens, ids[:, None]), dim=1)
        if self.mask is not None:
            self.mask = torch.cat((self.mask, self.mask.new_ones(len(ids), 1)), dim=1)

    @torch.no_grad()
    def next_logits(self) -> Tensor:
        """Logits (B, vocab_size) after the last token."""
        if self.cache is not None and not self._cache_serves(self.cache):
            self.cache = None
        written = self._by_compiled_code()
        if written is not None:
            return written
        with self.evaluating:
            if self.cache is not None:
                return self._read_new(self.cache)
            return self._read_all()

    def _cache_serves(self, cache: KeyValueCache) -> bool:
        end, padded = self.tokens.shape[1], self.mask is not None
        fits = end <= cache.capacity
        return fits and (not cache.length or self.model.keys_stay(cache.length, end, padded=padded))

    def _by_compiled_code(self) -> Tensor | None:
        """Once the prompt is in the cache, and where there is such code."""
        if self.compiled is None or self.cache is None or not self.cache.length:
            return None
        new = self.tokens[:, self.cache.length :]
        try:
            reason = self.compiled.changed()
            if reason is None:
                return self.compiled.logits(new, self.cache, self.mask)
        except Exception as error:  # whatever a compiler raises, where there is none above all
            reason = str(error)
        self.compiled = None
        if self.must_compile:
            raise BlocklabError(f"no compiled code can write this text: {reason}")
        return None

    def _read_new(self, cache: KeyValueCache) -> Tensor:
        extends, new = cache.length > 0, self.tokens[:, cache.length :]
        if self.new_tokens >= PACKED_FROM and cache.length and self.packed is None:
            self.packed = PackedWeights(self.model)
        with self.packed or nullcontext():
            logits = self._last_logits(self.model.features(new, self.mask, cache))
        if not cache.complete:
            self.cache = None
        elif extends and not self.proven:
            return self._proven(logits)
        return logits

    def _proven(self, logits: Tensor) -> Tensor:
        """The first logits that came from cached tokens, or those of all tokens where they differ.

        A part of the user's own may look at earlier tokens that it has not put into the cache.
        """
        self.proven, anew = True, self._read_all()
        rounding = torch.finfo(anew.dtype).eps ** 0.5 * float(anew.abs().max())
        if torch.allclose(logits, anew, rtol=0.0, atol=rounding, equal_nan=True):
            return logits
        self.cache = None
        return anew

    def _read_all(self) -> Tensor:
        window = slice(-self.readable, None)
        mask = None if self.mask is None else self.mask[:, window]
        return self._last_logits(self.model.features(self.tokens[:, window], mask))

    def _last_logits(self, stream: Tensor) -> Tensor:
        return self.model.head(stream[:, -1])  # type: ignore[no-any-return]


def _is_a_users(module: nn.Module) -> bool:
    return type(module).__module__.split(".")[0] not in ("blocklab", "torch")


def checked_policy(name: str) -> PastContext:
    """The policy of this name. Raises BlocklabError for another."""
    for policy in _POLICIES:
        if name == policy:
            return policy
    raise BlocklabError(f"past_context '{name}': expected one of {', '.join(_POLICIES)}")


def _capacity(
    model: Transformer, prompt_length: int, max_new_tokens: int, past_context: PastContext
) -> int:
    """How many tokens are read at a time at most. Raises BlocklabError where the policy refuses."""
    checked_policy(past_context)
    context = model.config.context_length
    # The last new token is never read.
    wanted = prompt_length + max(max_new_tokens - 1, 0)
    if wanted <= context or past_context == "window":
        return min(wanted, context)
    too_long = (
        f"{prompt_length} prompt tokens and {max_new_tokens} new ones reach past context_length "
        f"{context}"
    )
    if past_context == "error":
        raise BlocklabError(f"{too_long}; give fewer, or past_context 'window'")
    for positions in (model.positions, *model.layer_positions.values()):
        if isinstance(positions, Positions) and positions.bounded:
            kind = type(positions).__name__
            raise BlocklabError(
                f"{too_long}, where {kind} has no trained places; use past_context 'window'"
            )
    return wanted


def _check_prompt(
    model: Transformer, tokens: Tensor, attention_mask: Tensor | None, max_new_tokens: int
) -> None:
    if max_new_tokens < 0:
        raise BlocklabError(f"max_new_tokens must be 0 or more, not {max_new_tokens}")
    if not tokens.numel():
        raise BlocklabError("the prompt is empty: give at least one token")
    require_ids(tokens)
    rows = model.config.rows
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= rows:
        raise BlocklabError(
            f"token id {low if low < 0 else high} does not fit a model with vocab_size {rows}; "
            "was the prompt encoded by another tokenizer?"
        )
    if attention_mask is None:
        return
    if attention_mask.shape != tokens.shape:
        raise BlocklabError(
            f"attention_mask has shape {tuple(attention_mask.shape)}, "
            f"expected {tuple(tokens.shape)}: one entry for each token"
        )
    if not bool(attention_mask[:, -1].all()):
        raise BlocklabError("a prompt ends in padding: put the padding on the left")
