"""The text that a training is given, and the vocabulary that it gives the model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from blocklab.data.dataset import DataConfig, Dataset, prepare
from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig

Text: TypeAlias = str | Path | Dataset | Tensor | NDArray[np.integer] | Sequence[int]
"""A corpus by its name or path, prepared, or as token ids (n,)."""


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


def dataset_of(corpus: Text, tokenizer: str | None, vocab_size: int | None) -> Dataset:
    """The prepared text that a trainer is given: itself, token ids, or a corpus by name.

    Raises BlocklabError for anything else, and for a tokenizer where there is nothing to cut.
    """
    if isinstance(corpus, str | Path):
        return prepare(DataConfig(corpus=str(corpus), tokenizer=tokenizer))
    if not isinstance(corpus, Dataset | Tensor | np.ndarray | list | tuple):
        raise BlocklabError(
            f"corpus: found {type(corpus).__name__}, expected a name, a path, a Dataset, or token "
            "ids in a tensor, an array or a list"
        )
    if tokenizer is not None:
        raise BlocklabError(
            f"tokenizer '{tokenizer}': there is no text to cut, the corpus is token ids already; "
            "leave tokenizer out, or give the text"
        )
    return corpus if isinstance(corpus, Dataset) else Dataset.from_tokens(corpus, vocab_size)
