"""Writing on from a prompt, token by token: greedy, or sampled at a temperature."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.generation.cache import KeyValueCache
from blocklab.model.evaluation import evaluating
from blocklab.model.transformer import Transformer


def generate(
    model: Transformer,
    tokens: Tensor,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    use_cache: bool = True,
    attention_mask: Tensor | None = None,
    stop_ids: Sequence[int] = (),
) -> Tensor:
    """The prompt and what the model writes after it, (B, T) -> (B, T + max_new_tokens).

    All arguments as for `sample_tokens`; fewer tokens come back when every sequence has met one of
    `stop_ids` before.
    """
    steps = sample_tokens(
        model,
        tokens,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        use_cache=use_cache,
        attention_mask=attention_mask,
        stop_ids=stop_ids,
    )
    return torch.cat([tokens, *(ids[:, None] for ids in steps)], dim=1)


def sample_tokens(
    model: Transformer,
    tokens: Tensor,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    use_cache: bool = True,
    attention_mask: Tensor | None = None,
    stop_ids: Sequence[int] = (),
) -> Iterator[Tensor]:
    """The ids (B,) of each new token as soon as it is chosen, after the prompt `tokens` (B, T).

    At `temperature` 0 the likeliest token is taken. Otherwise one is drawn from the `top_k`
    likeliest, and of these from the fewest whose probabilities reach `top_p` (Holtzman et al.
    2019), by a generator of its own: torch's global random numbers are not touched, and a `seed`
    makes the draw repeatable. Prompts of different lengths stand in one batch with padding on the
    left and an `attention_mask` (B, T), 1 for real tokens. Past `context_length` the model reads
    the last `context_length` tokens anew at each step (GPT-2). A sequence that has met one of
    `stop_ids` repeats it. The model computes without dropout, and its mode stays as it was.

    Raises BlocklabError, at once, for arguments that do not fit.
    """
    choice = _Choice(temperature, top_k, top_p, _generator(seed, tokens.device))
    _check_prompt(model, tokens, attention_mask, max_new_tokens)
    reader = _Reader(model, tokens, attention_mask, max_new_tokens, use_cache)
    return _steps(reader, choice, max_new_tokens, tuple(stop_ids))


def _steps(
    reader: "_Reader", choice: "_Choice", max_new_tokens: int, stop_ids: tuple[int, ...]
) -> Iterator[Tensor]:
    stops = torch.tensor(stop_ids, dtype=torch.long, device=reader.tokens.device)
    last = stopped = None
    for _ in range(max_new_tokens):
        ids = choice.of(reader.next_logits())  # (B,)
        if last is not None and stopped is not None:
            ids = torch.where(stopped, last, ids)
        yield ids
        last, stopped = ids, torch.isin(ids, stops)
        if bool(stopped.all()):
            return
        reader.append(ids)


@dataclass(frozen=True)
class _Choice:
    """Which token follows, given the logits."""

    temperature: float
    top_k: int | None
    top_p: float | None
    generator: torch.Generator

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise BlocklabError(f"temperature must be 0 or more, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise BlocklabError(f"top_k must be 1 or more, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise BlocklabError(f"top_p must be above 0 and at most 1, not {self.top_p}")

    def of(self, logits: Tensor) -> Tensor:
        """Ids (B,) for logits (B, vocab_size)."""
        if not bool(logits.isfinite().all()):
            raise BlocklabError(
                "the model's logits are not finite: has it diverged? `blocklab inspect` shows where"
            )
        if self.temperature == 0:
            return logits.argmax(-1)
        # From the largest down, so that a small temperature overflows to zero probability only.
        scores = (logits.float() - logits.float().amax(-1, keepdim=True)) / self.temperature
        scores, ids = scores.sort(-1, descending=True)
        probabilities = self._kept(scores).softmax(-1)
        drawn = torch.multinomial(probabilities, 1, generator=self.generator)
        return ids.gather(-1, drawn).squeeze(-1)

    def _kept(self, scores: Tensor) -> Tensor:
        """Scores (B, vocab_size) in falling order; those that may not be drawn at -inf."""
        if self.top_k is not None:
            scores = scores.clone()
            scores[:, self.top_k :] = float("-inf")
        if self.top_p is not None:
            probabilities = scores.softmax(-1)
            before = probabilities.cumsum(-1) - probabilities
            # The first is kept whatever rounding says.
            excluded = before >= self.top_p
            excluded[:, 0] = False
            scores = scores.masked_fill(excluded, float("-inf"))
        return scores


class _Reader:
    """Reads tokens and gives the logits of the next one, from the cache as long as it holds."""

    def __init__(
        self,
        model: Transformer,
        tokens: Tensor,
        attention_mask: Tensor | None,
        max_new_tokens: int,
        use_cache: bool,
    ) -> None:
        self.model, self.tokens, self.mask = model, tokens, attention_mask
        self.context_length = model.config.context_length
        # The last new token is never read.
        capacity = min(tokens.shape[1] + max_new_tokens - 1, self.context_length)
        fits = tokens.shape[1] <= capacity
        self.cache = (
            KeyValueCache.of(model, tokens.shape[0], capacity) if use_cache and fits else None
        )

    def append(self, ids: Tensor) -> None:
        self.tokens = torch.cat((self.tokens, ids[:, None]), dim=1)
        if self.mask is not None:
            self.mask = torch.cat((self.mask, self.mask.new_ones(len(ids), 1)), dim=1)

    @torch.no_grad()
    def next_logits(self) -> Tensor:
        """Logits (B, vocab_size) after the last token."""
        with evaluating(self.model):
            if self.cache is not None and self._cache_serves(self.cache):
                return self._read_new(self.cache)
            self.cache = None
            window = slice(-self.context_length, None)
            mask = None if self.mask is None else self.mask[:, window]
            return self._last_logits(self.model.features(self.tokens[:, window], mask))

    def _cache_serves(self, cache: KeyValueCache) -> bool:
        end, padded = self.tokens.shape[1], self.mask is not None
        fits = end <= cache.capacity
        return fits and (not cache.length or self.model.keys_stay(cache.length, end, padded=padded))

    def _read_new(self, cache: KeyValueCache) -> Tensor:
        new = self.tokens[:, cache.length :]
        logits = self._last_logits(self.model.features(new, self.mask, cache))
        if not cache.complete:
            self.cache = None
        return logits

    def _last_logits(self, stream: Tensor) -> Tensor:
        return self.model.head(stream[:, -1])  # type: ignore[no-any-return]


def _generator(seed: int | None, device: torch.device) -> torch.Generator:
    generator = torch.Generator(device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator


def _check_prompt(
    model: Transformer, tokens: Tensor, attention_mask: Tensor | None, max_new_tokens: int
) -> None:
    if max_new_tokens < 0:
        raise BlocklabError(f"max_new_tokens must be 0 or more, not {max_new_tokens}")
    if tokens.ndim != 2 or tokens.is_floating_point():
        raise BlocklabError(
            f"tokens are {tokens.dtype} of shape {tuple(tokens.shape)}; expected ids (B, T)"
        )
    if not tokens.numel():
        raise BlocklabError("the prompt is empty: give at least one token")
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
