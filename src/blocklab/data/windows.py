"""Which tokens make which batch.

A training batch is a pure function of (tokens, sizes, seed, step): resuming, pairing and changing
the model cannot shift it. Validation is one fixed sweep whose targets do not depend on batch size.
"""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from blocklab.data.permutation import Permutation
from blocklab.data.token_files import plain_ids
from blocklab.errors import BlocklabError
from blocklab.streams import stream_seed

Tokens: TypeAlias = NDArray[np.integer] | torch.Tensor
Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets, both (B, T) int64; targets are the inputs' next tokens."""

WINDOWS_AT_ONCE = 1024
"""How many are drawn together, for several steps: for one alone it takes 0.1 to 0.2 ms."""

IGNORED = -100  # a target that counts for nothing, as in torch's cross_entropy


class TrainingWindows:
    """Contiguous windows of `context_length` tokens, in a new order every epoch.

    Windows do not overlap; a rest too short for a window is never used. Batches run on across
    epochs: one may hold the end of an epoch and the start of the next, so no window is dropped.
    The order is computed, not stored: memory does not depend on the size of the corpus.
    """

    def __init__(self, tokens: Tokens, context_length: int, batch_size: int, seed: int) -> None:
        self._tokens = plain_ids(tokens)
        _check_positive(context_length=context_length, batch_size=batch_size)
        if len(self._tokens) < context_length + 1:
            raise BlocklabError(
                f"{len(self._tokens):,} training tokens, but one window of context_length "
                f"{context_length} needs {context_length + 1:,}; "
                "give more text or a shorter context"
            )
        self.context_length = context_length
        self.batch_size = batch_size
        self.seed = seed
        self.windows_per_epoch = (len(self._tokens) - 1) // context_length
        self.steps_per_epoch = -(-self.windows_per_epoch // batch_size)
        """Steps after which every window has been seen at least once."""
        self._together = max(WINDOWS_AT_ONCE // batch_size, 1)  # steps
        self._drawn: tuple[int, NDArray[np.int64]] | None = None

    def epoch(self, step: int) -> int:
        """The epoch, from 0, in which the batch of `step` begins."""
        return step * self.batch_size // self.windows_per_epoch

    def batch(self, step: int) -> Batch:
        """The batch of `step`, counted from 0."""
        if step < 0:
            raise BlocklabError(f"step is {step}, expected 0 or more")
        starts = self._windows(step) * self.context_length
        return _gathered(self._tokens, starts, self.context_length)

    def _windows(self, step: int) -> NDArray[np.int64]:
        """Which windows make the batch of `step`, (B,)."""
        block, row = divmod(step, self._together)
        if self._drawn is None or self._drawn[0] != block:
            n = self._together * self.batch_size
            self._drawn = block, self._in_order(block * n, n).reshape(-1, self.batch_size)
        windows: NDArray[np.int64] = self._drawn[1][row]
        return windows

    def _in_order(self, first: int, n: int) -> NDArray[np.int64]:
        """The window at `first` and those after it, all epochs in their orders: (n,)."""
        size = self.windows_per_epoch
        windows = np.empty(n, dtype=np.int64)
        for epoch in range(first // size, (first + n - 1) // size + 1):
            order = Permutation(size, stream_seed(self.seed, "data", epoch))
            begin, end = max(epoch * size, first), min((epoch + 1) * size, first + n)
            windows[begin - first : end - first] = order(np.arange(begin, end) - epoch * size)
        return windows


class ValidationWindows:
    """One sweep in which every token but the first is a target exactly once.

    The last window may be short: it is padded with inputs 0 and targets IGNORED. Losses must be
    summed over targets and divided by `n_targets`; then no batch size changes the result.
    """

    def __init__(self, tokens: Tokens, context_length: int) -> None:
        self._tokens = plain_ids(tokens)
        _check_positive(context_length=context_length)
        if len(self._tokens) < 2:
            raise BlocklabError(
                f"{len(self._tokens)} validation tokens, but a first target needs 2; give more text"
            )
        self.context_length = context_length
        self.n_targets = len(self._tokens) - 1
        self.n_windows = -(-self.n_targets // context_length)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """The sweep in order; the last batch may hold fewer windows."""
        _check_positive(batch_size=batch_size)
        for first in range(0, self.n_windows, batch_size):
            yield self.batch(first, batch_size)

    def batch(self, first: int, batch_size: int) -> Batch:
        """The windows of the sweep from `first` on, as many as are left of `batch_size`."""
        windows = np.arange(first, min(first + batch_size, self.n_windows))
        return self._gathered(windows * self.context_length)

    def _gathered(self, starts: NDArray[np.int64]) -> Batch:
        left = self.n_targets - int(starts[-1])
        if left >= self.context_length:
            return _gathered(self._tokens, starts, self.context_length)
        # (B, T + 1), the places past the last token read as 0 and ignored
        places = starts[:, None] + np.arange(self.context_length + 1)
        past = places > self.n_targets
        rows = self._tokens[np.minimum(places, self.n_targets)].astype(np.int64)
        inputs = np.where(past[:, 1:], 0, rows[:, :-1])
        targets = np.where(past[:, 1:], IGNORED, rows[:, 1:])
        return torch.from_numpy(inputs), torch.from_numpy(targets)


def _gathered(tokens: NDArray[np.integer], starts: NDArray[np.int64], context: int) -> Batch:
    rows = tokens[starts[:, None] + np.arange(context + 1)].astype(np.int64)  # (B, T + 1)
    inputs, targets = np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def _check_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise BlocklabError(f"{name} is {size}, expected 1 or more")
