"""What a prepared corpus is: token ids, split, with what is needed to reopen them anywhere.

How it is made from text is in `dataset`; what makes which batch is in `windows`.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from blocklab.data.cache import digest, read_json, write_json
from blocklab.data.split import Side
from blocklab.data.token_files import (
    FILES,
    TokenWriter,
    entropy,
    map_tokens,
    plain_ids,
    token_dtype,
)
from blocklab.data.tokenizer import Tokenizer
from blocklab.errors import BlocklabError
from blocklab.record import Record

if TYPE_CHECKING:
    import torch

FORMAT = 2  # raised whenever the same text and tokenizer would give other files


class _Part(Record):
    tokens: int
    bytes: int
    documents: int
    sha256: str


class _Metadata(Record):
    """The content of dataset.json."""

    format: int
    fingerprint: str
    tokenizer: str
    end_of_text: int | None
    vocab_size: int
    unigram_entropy: float
    entropy_floor: float | None
    source_notes: tuple[str, ...]
    making_notes: tuple[str, ...]
    train: _Part
    validation: _Part


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and validation tokens, read-only, and where they came from.

    `train` and `validation` are one-dimensional ids. `train_bytes` and `validation_bytes` are the
    UTF-8 bytes of each side's text, None where no text is known. `unigram_entropy` is that of the
    training tokens, in nats. `entropy_floor` is what no model can beat, in nats per token, where
    the language is synthetic. `folder` is None for tokens that only live in memory.
    """

    train: NDArray[np.integer]
    validation: NDArray[np.integer]
    fingerprint: str
    notes: tuple[str, ...]
    folder: Path | None
    vocab_size: int
    unigram_entropy: float
    train_bytes: int | None
    validation_bytes: int | None
    train_documents: int
    validation_documents: int
    entropy_floor: float | None = None
    read_tokenizer: Callable[[], Tokenizer] | None = None

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """What cut the text; None for tokens that were given as ids.

        Read when it is first asked for: training never does, and a large one takes a second and
        270 MB. Raises BlocklabError where its file is damaged.
        """
        return None if self.read_tokenizer is None else self.read_tokenizer()

    @staticmethod
    def open(folder: Path | str, source_notes: tuple[str, ...] | None = None) -> "Dataset":
        """Reopen a prepared folder, in any process; nothing is read or tokenised again.

        `source_notes` replace what was noted of the text's source: one text has many sources.
        Raises BlocklabError where the folder is no dataset or a token file is damaged.
        """
        folder = Path(folder)
        content = read_json(folder / "dataset.json")
        if content is None:
            raise BlocklabError(f"{folder}: no prepared dataset here (no readable dataset.json)")
        known = _Metadata.parse(content, at=str(folder / "dataset.json"))
        if known.format != FORMAT:
            raise BlocklabError(f"{folder}: format {known.format}, expected {FORMAT}; prepare anew")
        train, validation = known.train, known.validation
        return Dataset(
            train=map_tokens(folder / FILES[Side.TRAIN], train.tokens, known.vocab_size),
            validation=map_tokens(
                folder / FILES[Side.VALIDATION], validation.tokens, known.vocab_size
            ),
            fingerprint=known.fingerprint,
            notes=(known.source_notes if source_notes is None else source_notes)
            + known.making_notes,
            folder=folder,
            vocab_size=known.vocab_size,
            unigram_entropy=known.unigram_entropy,
            train_bytes=train.bytes,
            validation_bytes=validation.bytes,
            train_documents=train.documents,
            validation_documents=validation.documents,
            entropy_floor=known.entropy_floor,
            read_tokenizer=partial(_tokenizer, folder, known.tokenizer, known.end_of_text),
        )

    @staticmethod
    def from_tokens(
        tokens: "torch.Tensor | NDArray[np.integer] | Sequence[int]",
        vocab_size: int | None = None,
        validation_share: float = 0.1,
    ) -> "Dataset":
        """A dataset in memory from ids (n,): the first int((1 - share)·n) train, the rest validate.

        `vocab_size` defaults to the largest id plus one.
        """
        if not 0 < validation_share < 1:
            raise BlocklabError(
                f"validation_share is {validation_share}, expected a number between 0 and 1"
            )
        ids = _checked_ids(tokens, vocab_size)
        size = vocab_size or int(ids.max()) + 1
        ids = ids.astype(token_dtype(size))  # a copy: later changes to `tokens` do not reach it
        ids.flags.writeable = False
        cut = int((1 - validation_share) * len(ids) + 1e-9)
        content = hashlib.sha256(ids.tobytes()).hexdigest()
        return Dataset(
            train=ids[:cut],
            validation=ids[cut:],
            fingerprint=digest("tokens", FORMAT, content, size, cut),
            notes=("given as token ids; split at the tail",),
            folder=None,
            vocab_size=size,
            unigram_entropy=entropy(np.bincount(ids[:cut], minlength=size)) if cut else 0.0,
            train_bytes=None,
            validation_bytes=None,
            train_documents=1,
            validation_documents=1,
        )


def _tokenizer(folder: Path, name: str, end_of_text: int | None) -> Tokenizer:
    found = Tokenizer.load(folder / "tokenizer.json", name)
    found.end_of_text = end_of_text
    return found


def _checked_ids(
    tokens: "torch.Tensor | NDArray[np.integer] | Sequence[int]", vocab_size: int | None
) -> NDArray[np.integer]:
    ids = plain_ids(tokens)
    if not len(ids):
        raise BlocklabError("tokens are of shape (0,), expected one dimension of integer ids")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or (vocab_size is not None and high >= vocab_size):
        limit = "" if vocab_size is None else f" and below vocab_size {vocab_size}"
        raise BlocklabError(f"token ids run from {low} to {high}, expected 0 or more{limit}")
    return ids


def describe(
    folder: Path,
    written: dict[Side, TokenWriter],
    tokenizer: Tokenizer,
    fingerprint: str,
    source_notes: tuple[str, ...],
    making_notes: tuple[str, ...],
    entropy_floor: float | None,
) -> None:
    """Complete a folder of token files, so that `Dataset.open` finds all it needs."""
    tokenizer.save(folder / "tokenizer.json")
    train, validation = (
        _Part(
            tokens=side.tokens,
            bytes=side.text_bytes,
            documents=side.documents,
            sha256=side.sha256,
        )
        for side in (written[Side.TRAIN], written[Side.VALIDATION])
    )
    known = _Metadata(
        format=FORMAT,
        fingerprint=fingerprint,
        tokenizer=tokenizer.name,
        end_of_text=tokenizer.end_of_text,
        vocab_size=tokenizer.vocab_size,
        unigram_entropy=entropy(written[Side.TRAIN].counts),
        entropy_floor=entropy_floor,
        source_notes=source_notes,
        making_notes=making_notes,
        train=train,
        validation=validation,
    )
    write_json(folder / "dataset.json", known.plain())
