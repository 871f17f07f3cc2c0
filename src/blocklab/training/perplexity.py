"""How well a model predicts a text: loss, perplexity and bits per byte by overlapping windows.

For a finished model and a text as a whole; the sweep that training makes of its validation tokens
is in `trainer`, and with a stride of the whole context both give the same number.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from blocklab.data.reading import utf8
from blocklab.data.tokenizer import ByteTokenizer, Tokenizer
from blocklab.errors import BlocklabError
from blocklab.model.evaluation import evaluating
from blocklab.model.transformer import Transformer

LOGITS = 2**23
"""How many logits are held at once."""


@dataclass(frozen=True)
class EncodedText:
    """Documents as one row of ids, the tokenizer's end of text between them."""

    ids: NDArray[np.integer]
    n_bytes: int
    """UTF-8 bytes of all text; separators have none."""
    n_bytes_after_first: int
    """The same without the first token, which nothing predicts."""
    n_documents: int


@dataclass(frozen=True)
class Perplexity:
    """What a sweep over a text found. Every token but the first is scored exactly once."""

    loss: float
    """Mean over the scored tokens, nats."""
    n_tokens: int
    """Tokens scored, separators between documents among them."""
    n_bytes: int | None
    """UTF-8 bytes of the scored tokens; None where only ids are known."""
    n_documents: int
    n_windows: int
    stride: int
    context: int

    @property
    def perplexity(self) -> float:
        return math.inf if self.loss >= 700 else math.exp(self.loss)

    @property
    def bits_per_byte(self) -> float | None:
        if not self.n_bytes:
            return None
        return self.loss * self.n_tokens / math.log(2) / self.n_bytes


def encode_text(
    documents: Iterable[Iterable[str]], tokenizer: Tokenizer, start_ids: Sequence[int] = ()
) -> EncodedText:
    """The ids of documents in pieces, after `start_ids` if the model wants some before every text.

    The ids are those of the whole documents, however these are cut; but only the ids are held, as
    small as the vocabulary allows, and the text of about two pieces. Each document is read to its
    end before the next is asked for. Raises BlocklabError where there are fewer than two ids.
    """
    separator = () if tokenizer.end_of_text is None else (tokenizer.end_of_text,)
    largest = max((tokenizer.vocab_size - 1, *start_ids, *separator))
    dtype = np.min_scalar_type(largest)
    held = bytearray(np.array(start_ids, dtype).tobytes())  # grows in place, unlike an array
    n_bytes = n_documents = 0
    for pieces in documents:
        if n_documents:
            held += np.array(separator, dtype).tobytes()
        for text in tokenizer.exact_pieces(pieces):
            held += tokenizer.encode_arrays([text])[0].astype(dtype).tobytes()
            n_bytes += len(utf8(text))
        n_documents += 1
    ids = np.frombuffer(held, dtype)
    _require_a_target(ids)
    first = 0 if start_ids else _bytes_of(int(ids[0]), tokenizer)
    return EncodedText(ids, n_bytes, n_bytes - first, n_documents)


def perplexity(
    model: Transformer,
    text: EncodedText | Tensor,
    *,
    stride: int | None = None,
    batch_size: int = 8,
    on_windows: Callable[[int, int], object] | None = None,
) -> Perplexity:
    """Sweep `text`, or a 1-D tensor of ids, by windows of context_length, `stride` tokens apart.

    Each token but the first is predicted once, with at least context_length - stride tokens of
    context where so many come before it. `stride` defaults to the context: fast, and every window
    begins without any. The result depends on no batch size. `on_windows` is told how many windows
    are done, and of how many. Raises BlocklabError for a stride
    outside 1 … context_length and for ids that the model has no rows for.
    """
    if isinstance(text, Tensor):
        text = EncodedText(text.detach().cpu().numpy().astype(np.int64), 0, 0, 1)
    _require_a_target(text.ids)
    context = model.config.context_length
    stride = context if stride is None else stride
    if not 1 <= stride <= context:
        raise BlocklabError(f"stride is {stride}, expected 1 to context_length {context}")
    low, high = int(text.ids.min()), int(text.ids.max())
    if low < 0 or high >= model.config.rows:
        raise BlocklabError(
            f"token ids run from {low} to {high}, but the model has {model.config.rows} rows; "
            "was the text encoded by another tokenizer?"
        )
    n_tokens = len(text.ids) - 1
    n_windows = 1 + max(0, math.ceil((n_tokens - context) / stride))
    windows = _windows(n_tokens, context, stride)
    total, done = 0.0, 0
    with torch.no_grad(), evaluating(model):
        while batch := list(islice(windows, batch_size)):
            total += _summed(model, text.ids, batch)
            done += len(batch)
            if on_windows is not None:
                on_windows(done, n_windows)
    return Perplexity(
        loss=total / n_tokens,
        n_tokens=n_tokens,
        n_bytes=text.n_bytes_after_first or None,
        n_documents=text.n_documents,
        n_windows=n_windows,
        stride=stride,
        context=context,
    )


def _require_a_target(ids: NDArray[np.integer]) -> None:
    if len(ids) < 2:
        raise BlocklabError(f"the text has {len(ids)} tokens, and a first target needs 2")


class _Window(NamedTuple):
    begin: int
    """First token read."""
    end: int
    """One past the last token read."""
    scored: int
    """How many of its last predictions count."""


def _windows(n_targets: int, context: int, stride: int) -> Iterator[_Window]:
    scored = begin = 0
    while scored < n_targets:
        end = min(begin + context, n_targets)
        yield _Window(begin, end, end - scored)
        scored, begin = end, begin + stride


def _summed(model: Transformer, ids: NDArray[np.integer], windows: list[_Window]) -> float:
    """The sum of the losses that count in a batch of windows."""
    width = max(window.end - window.begin for window in windows)
    inputs = np.zeros((len(windows), width), dtype=np.int64)
    for row, window in zip(inputs, windows, strict=True):
        # What follows a short window changes nothing before it: attention is causal.
        row[: window.end - window.begin] = ids[window.begin : window.end]
    device = model.embedding.weight.device
    stream = model.features(torch.from_numpy(inputs).to(device))  # (B, T, d_model)
    kept, targets = [], []
    for features, window in zip(stream, windows, strict=True):
        n = window.end - window.begin
        kept.append(features[n - window.scored : n])
        targets.append(ids[window.end - window.scored + 1 : window.end + 1])
    rows = max(1, LOGITS // model.config.rows)
    answers = torch.from_numpy(np.concatenate(targets).astype(np.int64)).to(device)
    total = 0.0
    for part, wanted in zip(torch.cat(kept).split(rows), answers.split(rows), strict=True):  # type: ignore[no-untyped-call]
        logits = model.head(part)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        losses = F.cross_entropy(wide, wanted, reduction="none")
        total += float(losses.double().sum()) if device.type != "mps" else float(losses.sum())
    return total


def _bytes_of(token: int, tokenizer: Tokenizer) -> int:
    """UTF-8 bytes of the text's first token."""
    text = tokenizer.decode([token])
    if "\ufffd" not in text:
        return len(utf8(text))
    # A part of a character: `<0xE2>` in a vocabulary with byte tokens, else one letter a byte.
    name = tokenizer.token(token) or ""
    return 1 if isinstance(tokenizer, ByteTokenizer) or name.startswith("<0x") else len(name)
