"""Which text `train` trains on, and how that stands to the text that the model comes from."""

from collections.abc import Iterator, Mapping

from blocklab.data.dataset import DataConfig
from blocklab.data.prepared import Dataset
from blocklab.record import with_changes
from blocklab.training.run_text import RunText


def training_text(
    named: Mapping[str, object], tokenizer: str | None, known: RunText | None
) -> DataConfig:
    """The record of the text: what is `named`, by field, and the rest as `known` had it.

    A run goes on with its own text, and reads and splits it as before, unless another corpus is
    named. Raises BlocklabError for a field or a value that is none, and where a run's text is gone.
    """
    corpus = named.get("corpus")
    # Encoding and split belong to a text: another one has its own.
    own = known is not None and (corpus is None or known.is_meant_by(str(corpus)))
    base = known.from_here() if known is not None and own else DataConfig()
    return with_changes(base.model_copy(update={"tokenizer": tokenizer}), named, at="data")


def told_of_text(known: RunText, data: DataConfig, dataset: Dataset) -> Iterator[str]:
    """Why a loss on what is held out of a run's own text is none on text that it never saw."""
    if dataset.fingerprint == known.fingerprint or not known.is_meant_by(data.corpus):
        return
    if not known.is_still(data):
        yield f"{data.corpus}: {known.why_not()}"
    elif data.validation_share != known.data.validation_share:
        yield (
            f"{data.corpus}: the model was trained with {known.data.validation_share:g} of this "
            f"text held out; parts of the {data.validation_share:g} that are now were trained on"
        )
