"""What `train` begins from: a config alone, or a model with its weights and its tokenizer."""

from dataclasses import dataclass
from pathlib import Path

from blocklab.cli.model_argument import is_untrained, model_config
from blocklab.cli.models import GPT2_ROWS, named_model
from blocklab.data.cache import writable_cache, write_json
from blocklab.data.prepared import Dataset
from blocklab.data.tokenizer import Tokenizer
from blocklab.errors import BlocklabError
from blocklab.exchange.runs import keep_conventions
from blocklab.model.config import ModelConfig
from blocklab.model.transformer import Transformer
from blocklab.training.trained import weights_fingerprint


@dataclass(frozen=True, eq=False)
class StartingPoint:
    """A config, and the model whose weights and tokenizer training goes on with."""

    config: ModelConfig
    model: Transformer | None = None
    tokenizer: Tokenizer | None = None
    start_ids: tuple[int, ...] = ()
    stop_ids: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def keep(self, dataset: Dataset, folder: Path) -> None:
        """Keep in a run's folder what reads its text and, where that is the model's own tokenizer,
        what the model came with about texts.
        """
        tokenizer = dataset.tokenizer
        if tokenizer is None:
            return
        _write_tokenizer(tokenizer, folder)
        own = self.tokenizer
        if own is not None and own.fingerprint == tokenizer.fingerprint:
            keep_conventions(folder, self.start_ids, self.stop_ids, own)

    def fingerprint(self) -> str | None:
        """Of the weights; None where they are drawn."""
        return None if self.model is None else weights_fingerprint(self.model)

    def tokenizer_name(self, vocab_size: int | None) -> str | None:
        """The model's own tokenizer as a path, else `assumed_tokenizer`."""
        if self.tokenizer is not None:
            return str(_kept(self.tokenizer))
        return assumed_tokenizer(vocab_size, has_weights=self.model is not None)


def starting_point(name: str, from_scratch: bool) -> StartingPoint:
    """What MODEL gives to begin from; `from_scratch` leaves its weights and tokenizer behind.

    Raises BlocklabError when it names nothing.
    """
    if from_scratch or is_untrained(name):
        return StartingPoint(model_config(name))
    # The optimiser keeps float32 weights, whatever they were stored in.
    named = named_model(name, "float32")
    return StartingPoint(
        named.model.config,
        named.model,
        named.tokenizer,
        named.start_ids,
        named.stop_ids,
        named.notes,
    )


def assumed_tokenizer(vocab_size: int | None, *, has_weights: bool) -> str | None:
    """The name of what reads text for a model that no tokenizer came with: GPT-2's own, or a BPE
    that fills the vocabulary; null where any size will do.

    Raises BlocklabError where the model has learnt from ids that cannot be known.
    """
    if has_weights and vocab_size != GPT2_ROWS:
        raise BlocklabError(
            "the model has weights but no tokenizer came with them; give --tokenizer (bytes, gpt2 "
            "or a tokenizer.json), or any other text means nothing to it"
        )
    if vocab_size is None:
        return None
    return "gpt2" if vocab_size >= GPT2_ROWS else f"bpe:{vocab_size}"


def _kept(tokenizer: Tokenizer) -> Path:
    """A folder in the cache that holds the tokenizer: a corpus is prepared with one by its path."""
    root, _ = writable_cache(None)
    folder = root / "tokenizers" / tokenizer.fingerprint
    if not (folder / "tokenizer.json").is_file():
        _write_tokenizer(tokenizer, folder)
    return folder


def _write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Its definition, and beside it, as that does not say so, which of its tokens ends a text."""
    end = tokenizer.end_of_text
    name = None if end is None else tokenizer.token(end)
    write_json(folder / "tokenizer_config.json", {"eos_token": name})
    tokenizer.save(folder / "tokenizer.json")
