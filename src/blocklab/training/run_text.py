"""The text that a run was trained on, found again: from elsewhere, by another name, or changed."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from blocklab.data.corpora import is_path, place_of
from blocklab.data.dataset import DataConfig, still_gives
from blocklab.errors import BlocklabError
from blocklab.training.run_folder import RECORD
from blocklab.training.trained import is_run, run_spec, run_tokenizer

CHANGED = (
    "the text has changed since this run was trained: parts of what is held out of it now may have "
    "been trained on"
)
UNKNOWN = (
    "whether the text has changed since this run was trained cannot be told, as its tokenizer is "
    "not here: parts of what is held out of it now may have been trained on"
)


@dataclass(frozen=True)
class RunText:
    """How a run's text was named and read, where it lay, and the fingerprint of what it gave."""

    run: Path
    data: DataConfig
    fingerprint: str
    lay_at: Path | None
    """None for a text that is no file or folder, and in the records of older runs."""

    @classmethod
    def of(cls, model: str) -> "RunText | None":
        """The text of the finished run that MODEL names; None where it names none.

        Raises BlocklabError for a run that is not finished.
        """
        folder = Path(model)
        if not is_run(folder):
            return None
        spec = run_spec(folder)
        lay_at = json.loads((folder / RECORD).read_text(encoding="utf-8")).get("text_lies_at")
        known = Path(lay_at) if isinstance(lay_at, str) else None
        return cls(folder, spec.data, spec.data_fingerprint, known)

    def is_meant_by(self, corpus: str | None) -> bool:
        """Whether a corpus of that name is where this text lay; null names the run's own."""
        if corpus is None:
            return True
        if not is_path(corpus) or not is_path(self.data.corpus):
            return corpus == self.data.corpus
        place, own = place_of(corpus), self._lies_at()
        return place is not None and own is not None and os.path.samefile(place, own)

    def from_here(self) -> DataConfig:
        """The text's record, by a name that leads to it from here.

        Raises BlocklabError, naming the run, where its text is not there any more.
        """
        named = self.data.corpus
        if not is_path(named) or self.is_meant_by(named):
            return self.data
        place = self._lies_at()
        if place is None:
            where = "" if self.lay_at is None else f" ({self.lay_at})"
            raise BlocklabError(
                f"{self.run}: was trained on '{named}'{where}, and there is no such file or folder "
                "now; name the text with --corpus"
            )
        # From here the name that it had leads elsewhere, or nowhere.
        return self.data.model_copy(update={"corpus": str(place)})

    def why_not(self) -> str:
        """In a sentence, of a text that `is_still` does not know again."""
        known = run_tokenizer(self.run, run_spec(self.run)) is not None
        return CHANGED if known else UNKNOWN

    def is_still(self, data: DataConfig) -> bool:
        """Whether `data`, split as the run split its text, gives just the tokens of the run.

        False too where that cannot be told, for want of the run's tokenizer. May read the text.
        """
        as_then = data.model_copy(
            update={
                "tokenizer": self.data.tokenizer,
                "validation_share": self.data.validation_share,
            }
        )
        tokenizer = run_tokenizer(self.run, run_spec(self.run))
        return still_gives(as_then, self.fingerprint, tokenizer)

    def _lies_at(self) -> Path | None:
        if self.lay_at is not None and self.lay_at.exists():
            return self.lay_at
        return place_of(self.data.corpus)
