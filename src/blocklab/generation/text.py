"""Text in, text out: prompts encoded, batched, written on, and decoded while they grow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.generation.sampler import PastContext, sample_tokens
from blocklab.generation.sampling import Sampling
from blocklab.generation.streaming import Decoder, TextStream
from blocklab.model.transformer import Transformer

OnText = Callable[[int, str], object]
"""Called with the number of a prompt and the next piece of its text, whole characters only."""


class Tokenizer(Decoder, Protocol):
    """What is asked of a tokenizer here; those of `blocklab.data` are some."""

    @property
    def end_of_text(self) -> int | None:
        """The id that separates texts, where there is one."""
        ...

    def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """The ids of a text; `special_tokens` reads those that stand in it as what they are."""
        ...


@dataclass(frozen=True)
class Written:
    """What a model wrote after one prompt."""

    text: str
    """Without the prompt, and without the stop string or stop token that ended it."""
    ids: tuple[int, ...]
    """The new ids, the last one that was read for a stop included."""
    ended: Literal["length", "stop"]
    """Whether `max_new_tokens` or a stop ended it."""


def generate_text(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    stop: str | Sequence[str] = (),
    stop_ids: Sequence[int] | None = None,
    start_ids: Sequence[int] = (),
    special_tokens: bool = False,
    use_cache: bool = True,
    past_context: PastContext = "window",
    compiled: bool | None = None,
    on_text: OnText | None = None,
) -> list[Written]:
    """What the model writes after each prompt, as text.

    It ends before the first of `stop` to appear in the new text, at one of `stop_ids` (null: the
    tokenizer's end of text), or after `max_new_tokens`. `start_ids` go before every prompt; an
    empty one without them begins after the tokenizer's end of text. With `special_tokens` those
    that stand in a prompt are read as what they are, and a prompt that begins with `start_ids`
    gets no others. `on_text` is given pieces as they are written. All else as for `sample_tokens`.

    Raises BlocklabError for arguments that do not fit.
    """
    prompts = [prompts] if isinstance(prompts, str) else prompts
    if not prompts:
        return []
    encoded = [_encoded(tokenizer, prompt, start_ids, special_tokens) for prompt in prompts]
    end = tokenizer.end_of_text
    ends = (() if end is None else (end,)) if stop_ids is None else tuple(stop_ids)
    stops = (stop,) if isinstance(stop, str) else stop
    rows = [_Row(TextStream(tokenizer, ids, stops), ends) for ids in encoded]
    tokens, mask = _padded(encoded, model.embedding.weight.device)
    steps = sample_tokens(
        model,
        tokens,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        use_cache=use_cache,
        attention_mask=mask,
        stop_ids=ends,
        past_context=past_context,
        compiled=compiled,
    )
    tell = on_text or (lambda number, piece: None)
    for ids in steps:
        for number, (row, token) in enumerate(zip(rows, ids.tolist(), strict=True)):
            _told(tell, number, row.add(token))
        if all(row.stopped for row in rows):
            break
    for number, row in enumerate(rows):
        _told(tell, number, row.end())
    return [row.written() for row in rows]


class _Row:
    """One prompt's continuation."""

    def __init__(self, stream: TextStream, stop_ids: tuple[int, ...]) -> None:
        self.stream, self.stop_ids = stream, stop_ids
        self.ids: list[int] = []
        self.pieces: list[str] = []
        self.stopped = False

    def add(self, token: int) -> str:
        if self.stopped:
            return ""
        self.ids.append(token)
        if token in self.stop_ids:
            self.stopped = True
            return ""
        piece = self.stream.add(token)
        self.stopped = self.stream.stopped
        self.pieces.append(piece)
        return piece

    def end(self) -> str:
        piece = self.stream.end()
        self.stopped = self.stopped or self.stream.stopped
        self.pieces.append(piece)
        return piece

    def written(self) -> Written:
        ended: Literal["length", "stop"] = "stop" if self.stopped else "length"
        return Written("".join(self.pieces), tuple(self.ids), ended)


def _told(tell: OnText, number: int, piece: str) -> None:
    if piece:
        tell(number, piece)


def _encoded(
    tokenizer: Tokenizer, prompt: str, start_ids: Sequence[int], special_tokens: bool
) -> list[int]:
    start = list(start_ids)
    ids = tokenizer.encode(prompt, special_tokens=special_tokens)
    if not (special_tokens and ids[: len(start)] == start):
        ids = start + ids
    if ids:
        return ids
    if tokenizer.end_of_text is None:
        raise BlocklabError(
            "the prompt is empty, and the tokenizer has no end of text to begin after"
        )
    return [tokenizer.end_of_text]


def _padded(encoded: Sequence[list[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Ids (B, T) with padding on the left, and the mask of real ones where there is padding."""
    width = max(map(len, encoded))
    tokens = torch.tensor([[0] * (width - len(ids)) + ids for ids in encoded], device=device)
    if all(len(ids) == width for ids in encoded):
        return tokens, None
    real = [[0] * (width - len(ids)) + [1] * len(ids) for ids in encoded]
    return tokens, torch.tensor(real, device=device)
