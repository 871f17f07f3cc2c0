"""Checkpoints in Hugging Face's layout: config.json, weights and a tokenizer in one folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from blocklab.data.tokenizer import Tokenizer
from blocklab.errors import BlocklabError
from blocklab.exchange.conventions import within_rows
from blocklab.exchange.families import family_of
from blocklab.exchange.family import Family
from blocklab.exchange.fields import Fields
from blocklab.exchange.huggingface_text import TOKENIZER, read_conventions
from blocklab.exchange.json_file import read_json_object
from blocklab.exchange.loaded import Loaded
from blocklab.exchange.names import Stored, stored_tensors
from blocklab.exchange.tensor_file import TensorSource, same_numbers
from blocklab.exchange.weights import check_tensors, filled, open_weights, stored_dtype
from blocklab.model.config import ModelConfig

CONFIG = "config.json"


def load_huggingface(folder: Path, dtype: torch.dtype | None) -> Loaded:
    """The model in `folder`. `dtype` None keeps the one most weights are stored in.

    Raises BlocklabError for a family or field that is not implemented, for missing, unexpected or
    wrongly shaped tensors, and for damaged files; each names what it found.
    """
    fields = _fields(folder)
    family, config = read_config(fields)
    source = open_weights(folder)
    if config.n_layers > len(source.names()):
        raise BlocklabError(
            f"{folder / CONFIG}: {config.n_layers} layers, but the folder holds only "
            f"{len(source.names())} tensors"
        )
    wanted, unused = _tensors_of(family, config, source, folder)
    check_tensors(wanted, source, folder, (*family.unused, *unused))
    model = filled(config, wanted, source, dtype or stored_dtype(wanted, source))
    notes = list(fields.notes)
    if fields.has("auto_map"):
        notes.append("auto_map names code that comes with the checkpoint; it is not run")
    conventions = read_conventions(folder, fields, family.model_type, notes)
    conventions = conventions.within(config.rows, notes)
    tokenizer = _tokenizer(folder, config, notes)
    before = () if tokenizer is None else tokenizer.start_ids()
    start_ids = within_rows("the tokenizer's first id", before, config.rows, notes)
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        source=f"{folder} ({family.architecture})",
        start_ids=start_ids,
        stop_ids=conventions.stop_ids,
        notes=tuple(notes),
        conventions=conventions,
    )


def huggingface_config(folder: Path) -> ModelConfig:
    """What `folder`'s config.json describes. Raises BlocklabError naming the field."""
    return read_config(_fields(folder))[1]


def _fields(folder: Path) -> Fields:
    return Fields(read_json_object(folder / CONFIG), str(folder / CONFIG))


def read_config(fields: Fields) -> tuple[Family, ModelConfig]:
    """The family and our config of a config.json. Raises BlocklabError naming the field."""
    family = family_of(fields.text("model_type"), fields.at)
    named = fields.items("architectures")
    if named is not None and list(named) != [family.architecture]:
        raise fields.refused("architectures", named, f"['{family.architecture}']")
    _refuse_foreign_tasks(fields)
    config = family.config(fields)
    fields.refuse_unread()
    return family, config


def _refuse_foreign_tasks(fields: Fields) -> None:
    """Fields that every configuration may have and that must say nothing here."""
    fields.expect("quantization_config")
    fields.expect("is_encoder_decoder", False)
    fields.expect("add_cross_attention", False)
    fields.expect("cross_attention_hidden_size")
    fields.expect("tie_encoder_decoder", False)
    fields.expect("pruned_heads", {})
    fields.expect("is_decoder", False, True)


def _tensors_of(
    family: Family, config: ModelConfig, source: TensorSource, folder: Path
) -> tuple[Mapping[str, Sequence[Stored]], list[str]]:
    """The tensors by the layout that fits best, and patterns of those not needed besides."""
    there = set(source.names())
    found: list[dict[str, list[Stored]]] = []
    refusal: BlocklabError | None = None
    for layout in family.layouts:
        try:
            # Some may be missing, to be named in the error; many more are a lie.
            found.append(stored_tensors(layout, config, at_most=2 * len(there) + 100))
        except BlocklabError as error:
            refusal = BlocklabError(f"{folder}: {error}")
    if not any(name.startswith(family.prefix) for name in there):
        found = [_without_prefix(wanted, family.prefix) for wanted in found]
    wanted = min(found, key=lambda tensors: len(_names(tensors) - there), default={})
    if refusal is not None and not (wanted and _names(wanted) <= there):
        raise refusal
    if not config.tie_embeddings:
        return wanted, []
    return wanted, _checked_tie(family, wanted, source, folder)


def _checked_tie(
    family: Family, wanted: Mapping[str, list[Stored]], source: TensorSource, folder: Path
) -> list[str]:
    """A tied head may be stored beside the table, as long as it is the table."""
    head = f"{family.head_name}.weight"
    table = wanted["embedding.weight"][0].name
    if head not in source.names():
        return []
    if table in source.names() and not same_numbers(source, head, table):
        raise BlocklabError(
            f"{folder / CONFIG}: tie_word_embeddings is true, but '{head}' differs from '{table}' "
            f"in {source.where(head).name}; set it to false to use both"
        )
    return [f"^{head}$"]


def _names(tensors: Mapping[str, Sequence[Stored]]) -> set[str]:
    return {stored.name for pieces in tensors.values() for stored in pieces}


def _without_prefix(wanted: Mapping[str, Sequence[Stored]], prefix: str) -> dict[str, list[Stored]]:
    return {
        path: [Stored(t.name.removeprefix(prefix), t.shape, t.view, t.skipped) for t in pieces]
        for path, pieces in wanted.items()
    }


def _tokenizer(folder: Path, config: ModelConfig, notes: list[str]) -> Tokenizer | None:
    if not (folder / TOKENIZER).is_file():
        notes.append(
            f"no {TOKENIZER} beside the weights: give token ids, or a tokenizer of its own"
        )
        return None
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    if tokenizer.vocab_size > config.rows:
        notes.append(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model {config.rows} rows: the last "
            "ids cannot be used"
        )
    return tokenizer
