"""The text that a training is given, and the vocabulary that it gives the model."""

from pathlib import Path

from torch import Tensor

from blocklab.data.dataset import DataConfig, Dataset, prepare
from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig


def resolved_vocabulary(config: ModelConfig, n_ids: int) -> ModelConfig:
    """The config with `vocab_size` from a tokenizer of `n_ids` ids where it was null.

    Raises BlocklabError when the tokenizer has ids that the model has no rows for.
    """
    if config.vocab_size is None:
        return config.with_changes({"vocab_size": n_ids})
    if config.vocab_size < n_ids:
        raise BlocklabError(
            f"vocab_size: the model has {config.vocab_size} rows, the tokenizer {n_ids} ids; "
            "choose a smaller tokenizer or set vocab_size to null"
        )
    return config


def dataset_of(
    corpus: str | Path | Tensor | Dataset, tokenizer: str | None, vocab_size: int | None
) -> Dataset:
    """The prepared text that a trainer is given: itself, token ids, or a corpus by name."""
    if isinstance(corpus, Dataset):
        return corpus
    if isinstance(corpus, Tensor):
        return Dataset.from_tokens(corpus, vocab_size)
    return prepare(DataConfig(corpus=str(corpus), tokenizer=tokenizer))
