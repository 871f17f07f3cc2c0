"""MODEL as a model with its weights: what `generate`, `evaluate`, `export` and `train` begin from.

Presets and YAML files are drawn anew and know nothing yet; everything else brings its weights.
"""

import os
from dataclasses import dataclass

import torch

import blocklab
from blocklab.cli.hub import PREFIX, fetched
from blocklab.cli.model_argument import is_untrained, model_config, require_somewhere
from blocklab.data.tokenizer import Tokenizer, load_tokenizer
from blocklab.dtypes import dtype_called
from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.model.count import count
from blocklab.model.transformer import Transformer
from blocklab.training.devices import usable_device

GPT2_ROWS = 50257


@dataclass(frozen=True, eq=False)
class NamedModel:
    """What MODEL names, in evaluation mode."""

    model: Transformer
    tokenizer: Tokenizer | None
    trained: bool
    start_ids: tuple[int, ...] = ()
    """Ids that go before every text."""
    stop_ids: tuple[int, ...] = ()
    """Ids after which it is meant to stop writing."""
    notes: tuple[str, ...] = ()

    def read_by(self) -> Tokenizer:
        """Its tokenizer. Raises BlocklabError where none is known."""
        if self.tokenizer is None:
            raise BlocklabError("the model came without a tokenizer; name one with --tokenizer")
        return self.tokenizer


def named_model(
    name: str, dtype: str | None = None, tokenizer: str | None = None, device: str = "cpu"
) -> NamedModel:
    """The model that MODEL names, on `device`; `tokenizer` replaces the one it comes with.

    `dtype` is float32, bf16, float16 or float64; null keeps the one of the weights. Raises
    BlocklabError when the name means nothing, or what it names cannot be read.
    """
    chosen, there = _dtype(dtype), usable_device(device)
    given = None if tokenizer is None else load_tokenizer(tokenizer)
    if is_untrained(name):
        named = _untrained(model_config(name), chosen, given, name)
    else:
        named = _from_elsewhere(name, chosen, given)
    wide = any(p.dtype == torch.float64 for p in named.model.parameters())
    if wide and there.type == "mps":
        raise BlocklabError("--device mps: it knows no float64; add --dtype float32")
    named.model.to(there)
    return named


def _untrained(
    config: ModelConfig, dtype: torch.dtype | None, given: Tokenizer | None, name: str
) -> NamedModel:
    tokenizer = given
    if tokenizer is None:
        wide = config.vocab_size is not None and config.vocab_size >= GPT2_ROWS
        tokenizer = load_tokenizer("gpt2" if wide else "bytes")
    if config.vocab_size is None:
        config = config.with_changes({"vocab_size": tokenizer.vocab_size})
    needed, there = count(config).bytes(4), _memory()
    if needed > there:
        raise BlocklabError(
            f"{name}: its weights take {needed / 1e9:,.1f} GB in float32, this machine has "
            f"{there / 1e9:,.1f} GB; choose a smaller model"
        )
    model = Transformer(config, seed=0).to(dtype or torch.float32).eval()
    note = f"{name} is untrained: its weights are drawn at random (seed 0)"
    return NamedModel(model, tokenizer, trained=False, notes=(note,))


def _from_elsewhere(name: str, dtype: torch.dtype | None, given: Tokenizer | None) -> NamedModel:
    source = fetched(name) if name.startswith(PREFIX) else require_somewhere(name)
    loaded = blocklab.load(source, dtype)
    notes = tuple(loaded.notes)
    if given is not None:
        note = foreign(given, loaded.tokenizer)
        notes = notes if note is None else (*notes, note)
        return NamedModel(loaded.model, given, True, given.start_ids(), loaded.stop_ids, notes)
    start, stop = tuple(loaded.start_ids), tuple(loaded.stop_ids)
    return NamedModel(loaded.model, loaded.tokenizer, True, start, stop, notes)


def foreign(tokenizer: Tokenizer | None, own: Tokenizer | None) -> str | None:
    """That a model with a tokenizer of its own is to read by another one, in a sentence."""
    if tokenizer is None or own is None or tokenizer.fingerprint == own.fingerprint:
        return None
    return (
        f"the model learnt its ids from another tokenizer ({own.name}): by {tokenizer.name} they "
        "mean other text to it"
    )


def _dtype(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    try:
        return dtype_called(name)
    except BlocklabError as error:
        raise BlocklabError(f"--{error}") from None


def _memory() -> float:
    """Bytes of memory in the machine; unlimited where the system does not say."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return float("inf")
