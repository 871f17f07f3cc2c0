"""Which text `evaluate` judges a model on: all of a corpus, or the part a run never trained on."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from blocklab.data.corpora import Say, is_path, read_corpus
from blocklab.data.dataset import DataConfig
from blocklab.data.reading import Notes
from blocklab.data.split import Side, split
from blocklab.data.tokenizer import ByteTokenizer, Tokenizer
from blocklab.errors import BlocklabError
from blocklab.training.run_text import RunText

PARTS = ("all", "validation")
UNVERIFIED = "unverified"
"""The part that would be held out of a run's text now, where that is not the text it was."""


@dataclass(frozen=True)
class EvaluatedText:
    """A corpus and the part of it that is read; `part` null is still to be chosen by `compared`."""

    data: DataConfig
    part: str | None
    run: RunText | None = None
    """The text of the run that is judged."""
    own: bool = False
    """Whether the corpus is named as that text, or not named at all."""
    notes: tuple[str, ...] = ()

    @property
    def corpus(self) -> str:
        return self.data.corpus

    def told(self) -> str:
        """The part and the corpus, in words."""
        words = {"validation": "the validation part", UNVERIFIED: "what would be held out now"}
        return f"{words.get(self.part or 'all', 'all')} of {self.corpus}"

    def compared(self) -> "EvaluatedText":
        """The same, compared with the text that the run was trained on. May read the corpus."""
        if self.run is None:
            return self
        if self.run.is_still(self.data):
            share = self.run.data.validation_share
            return replace(
                self,
                data=self.data.model_copy(update={"validation_share": share}),
                part=self.part or "validation",
                notes=("this run was trained on most of this text",) if self.part == "all" else (),
            )
        if not self.own:
            return replace(self, part=self.part or "all")
        part = "all" if self.part == "all" else UNVERIFIED
        return replace(self, part=part, notes=(f"{self.corpus}: {self.run.why_not()}",))

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

    Reads no text yet. Raises BlocklabError for a part that is none, where no corpus is known, and
    where there is none of that name.
    """
    if part is not None and part not in PARTS:
        raise BlocklabError(f"--part {part}: expected {' or '.join(PARTS)}")
    run = RunText.of(model)
    if corpus is None and run is None:
        raise BlocklabError(f"{model}: on which text? give --corpus")
    if run is not None and run.is_meant_by(corpus):
        if encoding not in (None, run.data.encoding):
            raise BlocklabError(
                f"--encoding {encoding}: the run read this corpus as {run.data.encoding}"
            )
        data = run.from_here()
        named = data if corpus is None else data.model_copy(update={"corpus": corpus})
        return EvaluatedText(named, part, run, own=True)
    data = DataConfig(corpus=corpus or "", encoding=encoding or DataConfig().encoding)
    if is_path(data.corpus):
        # What is not there is said before a model is read.
        read_corpus(data.corpus, data.encoding)
    return EvaluatedText(data, part if run is not None else part or "all", run)
