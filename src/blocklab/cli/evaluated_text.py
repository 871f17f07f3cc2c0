"""Which text `evaluate` judges a model on: all of a corpus, or the part a run never trained on."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from blocklab.data.corpora import Say, read_corpus
from blocklab.data.dataset import DataConfig
from blocklab.data.reading import Notes
from blocklab.data.split import Side, split
from blocklab.data.tokenizer import ByteTokenizer, Tokenizer
from blocklab.errors import BlocklabError
from blocklab.training.trained import trained_on

PARTS = ("all", "validation")


@dataclass(frozen=True)
class EvaluatedText:
    """A corpus and the part of it that is read."""

    data: DataConfig
    part: str
    notes: tuple[str, ...] = ()

    @property
    def corpus(self) -> str:
        return self.data.corpus

    def documents(self, tokenizer: Tokenizer, say: Say) -> Iterator[Iterator[str]]:
        """Each document's text in pieces, in order. Read one before asking for the next.

        `say` is told after the last one what was skipped or normalised.
        """
        bytewise = isinstance(tokenizer, ByteTokenizer)
        corpus = read_corpus(
            self.corpus, self.data.encoding, errors="surrogateescape" if bytewise else "strict"
        )
        notes = Notes()
        if self.part == "all":
            yield from (pieces for _, pieces in corpus.streams(notes))
        else:
            chosen = split(corpus.survey, self.data.validation_share).texts(corpus, notes)
            held_out = ((number, text) for number, side, text in chosen if side is Side.VALIDATION)
            for _, numbered in groupby(held_out, key=lambda piece: piece[0]):
                yield (text for _, text in numbered)
        for note in corpus.found + notes.said():
            say(note)


def evaluated_text(
    model: str, corpus: str | None, part: str | None, encoding: str | None = None
) -> EvaluatedText:
    """The text for MODEL. A run is judged on what it was trained on unless another is named.

    Raises BlocklabError for a part that is none, and where no corpus is known.
    """
    if part is not None and part not in PARTS:
        raise BlocklabError(f"--part {part}: expected {' or '.join(PARTS)}")
    known = trained_on(model)
    if corpus is None and known is None:
        raise BlocklabError(f"{model}: on which text? give --corpus")
    if known is not None and corpus in (None, known.corpus):
        chosen = part or "validation"
        notes = ("this run was trained on most of this text",) if chosen == "all" else ()
        if encoding not in (None, known.encoding):
            raise BlocklabError(
                f"--encoding {encoding}: the run read this corpus as {known.encoding}"
            )
        return EvaluatedText(known, chosen, notes)
    read = DataConfig(corpus=corpus or "", encoding=encoding or DataConfig().encoding)
    return EvaluatedText(read, part or "all")
