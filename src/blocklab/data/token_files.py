"""Token ids on disk: how a stream of text becomes two flat files, in constant memory.

Knows the two sides of a split and a tokenizer; which text goes where was decided before.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blocklab.data.reading import utf8
from blocklab.data.split import Side
from blocklab.data.tokenizer import Tokenizer
from blocklab.errors import BlocklabError

if TYPE_CHECKING:
    import torch

Text = tuple[int, Side, str]
"""The number of a document, its side, a piece of its text."""

FILES = {Side.TRAIN: "train.bin", Side.VALIDATION: "validation.bin"}
BATCH = 1 << 20  # characters tokenised at once: bounds memory, keeps the threads busy
LONGEST = 1 << 18  # characters of a text that no exact cut is known in, before it is cut anyhow


def token_dtype(vocab_size: int) -> np.dtype[np.integer]:
    """Two bytes an id where they suffice."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def plain_ids(tokens: "torch.Tensor | NDArray[np.integer] | Sequence[int]") -> NDArray[np.integer]:
    """Ids as an array (n,), without a copy where they are one: a memory map stays on disk.

    Raises BlocklabError for what is not one dimension of integers, in a tensor, array or list.
    """
    given: Any = tokens
    try:
        array = np.asarray(given.detach().cpu().numpy() if hasattr(given, "detach") else given)
    except (TypeError, ValueError, RuntimeError):
        # Of a type that numpy lacks, as bfloat16, or lists of unequal length.
        known = hasattr(given, "dtype")
        found = f"{given.dtype} of shape {tuple(given.shape)}" if known else "of several shapes"
    else:
        if array.ndim == 1 and array.dtype.kind in "iu":
            return array
        found = f"{array.dtype} of shape {array.shape}"
    raise BlocklabError(f"tokens are {found}, expected one dimension of integer ids")


class TokenWriter:
    """One side's file, written as it comes, with what must be known of it afterwards."""

    def __init__(self, path: Path, vocab_size: int, end_of_text: int | None) -> None:
        self.tokens = self.text_bytes = self.documents = 0
        self.counts = np.zeros(vocab_size, dtype=np.int64)
        self._dtype = token_dtype(vocab_size)
        self._separator = np.array([] if end_of_text is None else [end_of_text], self._dtype)
        self._hash = hashlib.sha256()
        self._file = path.open("wb")
        self._document = -1
        self._waiting: list[NDArray[np.integer]] = []

    def close(self) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def add(self, document: int, text: str, ids: NDArray[np.integer]) -> None:
        """Documents follow one another with a separator between them, none at the ends."""
        if document != self._document:
            if self.documents:
                self._waiting.append(self._separator)
            self._document = document
            self.documents += 1
        self._waiting.append(ids)
        self.text_bytes += len(utf8(text))

    def flush(self) -> None:
        if not self._waiting:
            return
        ids = np.concatenate(self._waiting).astype(self._dtype)
        self._waiting.clear()
        self.tokens += len(ids)
        self.counts += np.bincount(ids, minlength=len(self.counts))
        data = ids.tobytes()
        self._hash.update(data)
        self._file.write(data)


def write_tokens(
    texts: Iterable[Text], tokenizer: Tokenizer, folder: Path
) -> dict[Side, TokenWriter]:
    """Tokenise a stream of texts into the two files of `folder`."""
    with ExitStack() as files:
        writers = {
            side: TokenWriter(folder / name, tokenizer.vocab_size, tokenizer.end_of_text)
            for side, name in FILES.items()
        }
        for writer in writers.values():
            files.enter_context(closing(writer))
        for batch in _batches(_cut_exactly(texts, tokenizer)):
            encoded = tokenizer.encode_arrays([text for _, _, text in batch])
            for (document, side, text), ids in zip(batch, encoded, strict=True):
                writers[side].add(document, text, ids)
            for writer in writers.values():
                writer.flush()
    return writers


def _cut_exactly(texts: Iterable[Text], tokenizer: Tokenizer) -> Iterator[Text]:
    """The same texts, each document's side in pieces whose ids are those of the whole.

    Where the tokenizer's definition proves no cut exact, only of those of up to LONGEST.
    """
    for (document, side), pieces in groupby(texts, key=lambda text: text[:2]):
        for piece in tokenizer.exact_pieces((text for _, _, text in pieces), LONGEST):
            yield document, side, piece


def _batches(texts: Iterable[Text]) -> Iterator[list[Text]]:
    batch: list[Text] = []
    size = 0
    for entry in texts:
        batch.append(entry)
        size += len(entry[2])
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def map_tokens(path: Path, tokens: int, vocab_size: int) -> NDArray[np.integer]:
    """The file as a read-only array that stays on disk. Raises BlocklabError if it is damaged."""
    dtype = token_dtype(vocab_size)
    expected = tokens * dtype.itemsize
    try:
        found = path.stat().st_size
    except OSError as error:
        raise BlocklabError(f"{path}: cannot be read ({error.strerror})") from None
    if found != expected:
        raise BlocklabError(
            f"{path}: holds {found:,} bytes, expected {expected:,}: the file is damaged; "
            "delete its folder and prepare the corpus again"
        )
    return np.memmap(path, dtype=dtype, mode="r", shape=(tokens,))


def entropy(counts: NDArray[np.integer]) -> float:
    """Entropy in nats of drawing one of the counted things."""
    total = int(counts.sum())
    present = counts[counts > 0] / total
    return max(0.0, -math.fsum((present * np.log(present)).tolist()))
