"""Which text is for training and which for validation, decided before anything else is.

Many documents are split whole, by a hash of their text, so that equal documents share a side and a
new document leaves nearly all others where they were. Few documents, or very unequal ones, each
give their tail.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from blocklab.data.corpora import BUCKETS, Corpus, Survey
from blocklab.data.reading import Notes, utf8
from blocklab.errors import BlocklabError

RULE = 1  # raised whenever the same corpus would be split differently
MANY = 20  # documents
TOLERANCE = 0.25  # of the share asked for; whole documents further off give way to tails


class Side(IntEnum):
    TRAIN = 0
    VALIDATION = 1


@dataclass(frozen=True)
class Split:
    """`held_out`: the buckets whose documents are for validation; None where tails are."""

    survey: Survey
    share: float
    held_out: frozenset[int] | None

    def texts(self, corpus: Corpus, notes: Notes | None = None) -> Iterator[tuple[int, Side, str]]:
        """(document's number, side, piece of its text) for the whole corpus in order.

        `notes` hears what was skipped or normalised.
        """
        for number, (name, pieces) in enumerate(corpus.streams(notes)):
            if number == len(self.survey.sizes):
                raise BlocklabError(f"corpus '{corpus.name}' grew while it was being read: {name}")
            if self.held_out is None:
                head = self.survey.sizes[number] - round(self.share * self.survey.sizes[number])
                parts = cut(pieces, head)
            else:
                side = Side(self.survey.buckets[number] in self.held_out)
                parts = ((side, piece) for piece in pieces)
            for side, piece in parts:
                yield number, side, piece

    def said(self) -> str:
        n = len(self.survey.sizes)
        if self.held_out is not None:
            return f"split by whole documents, {n:,} in all"
        return f"split at the tail of {'the text' if n == 1 else f'each of {n:,} documents'}"


def split(survey: Survey, share: float) -> Split:
    """Hold out about `share` of the bytes: whole documents where that comes near, else tails."""
    if len(survey.sizes) < MANY:
        return Split(survey, share, None)
    weights = [0] * BUCKETS
    for bucket, size in zip(survey.buckets, survey.sizes, strict=True):
        weights[bucket] += size
    wanted = round(share * sum(weights))
    held_out, taken = set(), 0
    for bucket, weight in enumerate(weights):  # in order of the hash
        if weight and taken + weight <= wanted:
            held_out.add(bucket)
            taken += weight
    near = taken >= (1 - TOLERANCE) * wanted
    return Split(survey, share, frozenset(held_out) if near else None)


def cut(pieces: Iterator[str], head: int) -> Iterator[tuple[Side, str]]:
    """The first `head` bytes of a document for training, the rest for validation."""
    left = head
    for piece in pieces:
        size = len(utf8(piece))
        if size <= left:
            yield Side.TRAIN, piece
        elif left <= 0:
            yield Side.VALIDATION, piece
        else:
            before, after = _cut_piece(piece, left)
            if before:
                yield Side.TRAIN, before
            yield Side.VALIDATION, after
        left -= size


def _cut_piece(piece: str, at: int) -> tuple[str, str]:
    data = utf8(piece)
    for _ in range(3):  # back to the start of a character, at most three bytes
        if data[at] & 0xC0 == 0x80 and at > 0:
            at -= 1
    before, after = data[:at], data[at:]
    return before.decode("utf-8", "surrogateescape"), after.decode("utf-8", "surrogateescape")
