"""What a checkpoint's authors agreed on about texts, beside the weights and the tokenizer.

Where a text begins and ends, which tokens are special, how a chat is written down, how the model
is meant to write: plain values, carried from where they were read to where they are written again.
Nothing of it is executed here. `huggingface_text` reads and writes their files.
"""

from collections.abc import Iterator, Sequence
from typing import Self, TypeAlias
from weakref import WeakKeyDictionary

from pydantic import Field, JsonValue, model_validator

from blocklab.data.reading import without_lone_surrogates
from blocklab.data.tokenizer import Tokenizer
from blocklab.model.transformer import Transformer
from blocklab.record import Record

TOKENS = (
    *("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token"),
    "mask_token",
)
"""The special tokens that have a name in Hugging Face's files."""

Said: TypeAlias = dict[str, JsonValue]
"""The content of one file, as it is there."""


class TextConventions(Record):
    """What the files of a checkpoint in Hugging Face's layout say; null for one that is missing."""

    model_type: str | None = None
    """The family whose defaults hold for whatever is not said; null where none do."""
    config: Said = Field(default_factory=dict)
    """Of config.json: ids of special tokens, and in old files how the model is meant to write."""
    generation: Said | None = None
    """generation_config.json."""
    tokenizer: Said | None = None
    """tokenizer_config.json."""
    special_tokens: Said | None = None
    """special_tokens_map.json."""
    chat_templates: dict[str, str] = Field(default_factory=dict)
    """Those in files of their own, by name: Jinja that nobody renders here. `default` is the one
    that is meant where none is named."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids after which the model is meant to stop writing."""
        said = (self.generation or {}).get("eos_token_id")
        return _ids(self.config.get("eos_token_id") if said is None else said)

    def stopping_at(self, ids: Sequence[int]) -> Self:
        """The same with these ids to stop after."""
        if tuple(ids) == self.stop_ids:
            return self
        end: Said = {"eos_token_id": _one_or_list(ids)}
        generation = None if self.generation is None else self.generation | end
        return self.model_copy(update={"config": self.config | end, "generation": generation})

    def beyond(self, rows: int) -> tuple[str, ...]:
        """The ids that a model of so many rows has not, each with its name."""
        said = (*_id_fields(self.config), *_id_fields(self.generation))
        odd = (f"{name} {i}" for name, value in said for i in _ids(value) if not 0 <= i < rows)
        return tuple(dict.fromkeys(odd))

    def within(self, rows: int, notes: list[str]) -> Self:
        """The same without those ids, and a note for each."""
        odd = self.beyond(rows)
        if not odd:
            return self
        notes += (_left_out(said, rows) for said in odd)
        generation = None if self.generation is None else _within(self.generation, rows)
        changes = {"config": _within(self.config, rows), "generation": generation}
        return self.model_copy(update=changes)

    @model_validator(mode="after")
    def _refuse_what_no_file_holds(self) -> Self:
        for name, template in self.chat_templates.items():
            if template != without_lone_surrogates(template):
                raise ValueError(f"chat template {_short(name)}: not a text, it has no UTF-8")
        return self

    @model_validator(mode="after")
    def _refuse_what_is_no_id_or_token(self) -> Self:
        named = {"config.json": self.config, "generation_config.json": self.generation}
        for file, said in named.items():
            for name, value in _id_fields(said):
                if not _is_ids(value):
                    raise ValueError(f"{file}: {name} {_short(value)}: expected a token id or ids")
        named = {
            "tokenizer_config.json": self.tokenizer,
            "special_tokens_map.json": self.special_tokens,
        }
        for file, said in named.items():
            for name in TOKENS:
                token = (said or {}).get(name)
                content = token.get("content") if isinstance(token, dict) else token
                if token is not None and not isinstance(content, str):
                    raise ValueError(f"{file}: {name} {_short(token)}: expected a token")
        return self


def conventions_by_ids(
    start: int | None,
    stops: Sequence[int],
    pad: int | None = None,
    tokenizer: Said | None = None,
) -> TextConventions:
    """For a model whose authors left no files: where a text begins and ends, in ids."""
    ids: Said = {
        "bos_token_id": start,
        "eos_token_id": _one_or_list(stops),
        "pad_token_id": pad,
    }
    known = {name: value for name, value in ids.items() if value is not None}
    generation: Said = {"_from_model_config": True, **known}
    return TextConventions(config=ids, generation=generation, tokenizer=tokenizer)


def within_rows(name: str, ids: Sequence[int], rows: int, notes: list[str]) -> tuple[int, ...]:
    """Those of `ids` that are rows of the model; a note for each other."""
    notes += (_left_out(f"{name} {i}", rows) for i in ids if not 0 <= i < rows)
    return tuple(i for i in ids if 0 <= i < rows)


# The public export is handed a model and a tokenizer alone, and neither knows of other people's
# files: what came with them is found by the object.
_CAME_WITH: WeakKeyDictionary[Transformer | Tokenizer, TextConventions] = WeakKeyDictionary()


def came_with(owner: Transformer | Tokenizer) -> TextConventions | None:
    """The conventions that a model or a tokenizer was loaded with."""
    return _CAME_WITH.get(owner)


def let_come_with(owner: Transformer | Tokenizer, conventions: TextConventions) -> None:
    """From now on `came_with` knows them, as long as `owner` is there."""
    _CAME_WITH[owner] = conventions


def _id_fields(said: Said | None) -> Iterator[tuple[str, JsonValue]]:
    return ((name, value) for name, value in (said or {}).items() if name.endswith("_token_id"))


def _is_ids(value: object) -> bool:
    several = value if isinstance(value, list) else [value]
    return value is None or all(type(i) is int for i in several)


def _ids(value: JsonValue) -> tuple[int, ...]:
    several = value if isinstance(value, list) else [value]
    return tuple(i for i in several if isinstance(i, int))


def _one_or_list(ids: Sequence[int]) -> JsonValue:
    if len(ids) > 1:
        return list(ids)
    return ids[0] if ids else None


def _within(said: Said, rows: int) -> Said:
    kept = dict(said)
    for name, value in _id_fields(said):
        rest: list[JsonValue] = [i for i in _ids(value) if 0 <= i < rows]
        if len(rest) < len(_ids(value)):
            kept[name] = rest or None
    return kept


def _left_out(said: str, rows: int) -> str:
    return f"{said} is none of the model's {rows} rows; it is left out"


def _short(value: object) -> str:
    said = repr(value)
    return said if len(said) <= 80 else f"{said[:77]}…"
