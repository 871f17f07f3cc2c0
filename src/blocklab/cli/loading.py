"""A model with its weights and a batch of text for it, from whatever MODEL names."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from blocklab.cli import models
from blocklab.cli.model_argument import is_untrained, model_config
from blocklab.cli.starting_point import assumed_tokenizer
from blocklab.data.corpora import Say, read_corpus
from blocklab.data.dataset import DataConfig, prepare
from blocklab.data.tokenizer import Tokenizer
from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.model.transformer import Transformer
from blocklab.record import with_changes
from blocklab.report.formats import counted
from blocklab.training.run_text import RunText
from blocklab.training.texts import resolved_vocabulary
from blocklab.training.trained import is_run, run_spec

DEFAULT_CORPUS = "python-docs"
CHARACTERS_PER_TOKEN = 8
"""More text than any tokenizer needs for a batch."""


@dataclass(frozen=True)
class Named:
    """What MODEL stands for. A preset or a YAML file has a config and no weights yet."""

    config: ModelConfig
    model: Transformer | None = None
    tokenizer: Tokenizer | None = None
    text: RunText | None = None
    """What a run was trained on."""
    learning_rate: float | None = None


def named_model(name: str) -> Named:
    """The model that MODEL names. Raises BlocklabError when it names nothing that can be read."""
    if is_untrained(name):
        return Named(model_config(name))
    found = models.named_model(name)
    if not is_run(Path(name)):
        return Named(found.model.config, found.model, found.tokenizer)
    spec = run_spec(Path(name))
    return Named(
        found.model.config,
        found.model,
        found.tokenizer,
        RunText.of(name),
        spec.training.learning_rate,
    )


def text_for(named: Named, corpus: str | None, encoding: str | None, say: Say) -> DataConfig:
    """The text to look at a model on, and how it is read: a run's own unless another is named.

    `say` is told where a run's own text is not what it was.
    """
    changes = {"corpus": corpus, "encoding": encoding}
    asked = {field: value for field, value in changes.items() if value is not None}
    own = named.text is not None and named.text.is_meant_by(corpus)
    if named.text is None or not own:
        return with_changes(DataConfig(corpus=DEFAULT_CORPUS), asked, at="data")
    data = with_changes(named.text.from_here(), asked, at="data")
    if not named.text.is_still(data):
        say(f"{data.corpus}: {named.text.why_not()}")
    return data


def batch_of_text(
    named: Named, data: DataConfig, tokenizer: str | None, sequences: int, length: int, say: Say
) -> tuple[ModelConfig, Tensor, Tensor]:
    """The config with its vocabulary, then tokens and next tokens (sequences, length) of a corpus.

    With a tokenizer of its own a model reads the start of the corpus; otherwise the corpus is
    prepared as for training and the validation part is read.
    """
    needed = sequences * length + 1
    if named.tokenizer is not None and tokenizer is None:
        ids = named.tokenizer.encode(_start_of(data, needed * CHARACTERS_PER_TOKEN, say))
        config, tokens = named.config, torch.tensor(ids)
    else:
        chosen = tokenizer or assumed_tokenizer(
            named.config.vocab_size, has_weights=named.model is not None
        )
        dataset = prepare(data.model_copy(update={"tokenizer": chosen}), say=say)
        config = resolved_vocabulary(named.config, dataset.vocab_size)
        tokens = torch.from_numpy(dataset.validation[:needed].astype("int64"))
    if len(tokens) < needed:
        raise BlocklabError(
            f"corpus '{data.corpus}': {counted(len(tokens), 'token')}, but "
            f"{counted(sequences, 'sequence')} of {length} take {needed:,}; give fewer, "
            "shorter ones or more text"
        )
    return (
        config,
        tokens[: needed - 1].view(sequences, length),
        tokens[1:needed].view(sequences, length),
    )


def _start_of(data: DataConfig, characters: int, say: Say) -> str:
    """The first characters of a corpus, a line end between documents; no more is read than that."""
    starts: list[str] = []
    for _, pieces in read_corpus(data.corpus, data.encoding, say=say).streams():
        start, characters = _first(characters, pieces)
        starts.append(start)
        if characters <= 0:
            break
    return "\n".join(starts)


def _first(characters: int, pieces: Iterator[str]) -> tuple[str, int]:
    """At most so many characters of a document, and how many are still wanted after it."""
    taken: list[str] = []
    for piece in pieces:
        taken.append(piece[:characters])
        characters -= len(taken[-1])
        if characters <= 0:
            break
    return "".join(taken), characters
