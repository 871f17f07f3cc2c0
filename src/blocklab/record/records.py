"""The base of every record, and of those that are one kind of several.

How a dotted path changes a record is in `paths`.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Self,
    TypeAlias,
    TypeGuard,
    Union,
    cast,
    get_args,
    get_origin,
)

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from blocklab.errors import BlocklabError, nearest
from blocklab.record.refusals import explained, tell_switches_from_numbers

Value: TypeAlias = bool | int | float | str | Sequence["Value"] | Mapping[str, "Value"] | None
"""What a path may be set to: whatever YAML and JSON can say."""


class Record(BaseModel):
    """A frozen record. Unknown keys and bad values raise BlocklabError with the dotted path."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise explained(error) from None

    # Pydantic then still validates nested records itself, so that errors keep their full path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def parse(cls, data: object, at: str = "") -> Self:
        """Validate `data`; an error names the dotted path, prefixed by `at`."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise explained(error, at) from None

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        tell_switches_from_numbers(handler.resolve_ref_schema(schema))
        return schema

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_keys(cls, data: object) -> object:
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    raise PydanticCustomError(
                        "unknown_key",
                        "unknown key '{key}'; {hint}",
                        {"key": str(key), "hint": cls.key_hint(str(key))},
                    )
        return data

    @model_validator(mode="before")
    @classmethod
    def _take_kinds_from_defaults(cls, data: object) -> object:
        """A mapping without `kind` is of the kind that stands there by default; null has none."""
        if not isinstance(data, Mapping):
            return data
        tagged = dict(data)
        for name, value in data.items():
            slot = slot_of(cls, name) if lacks_kind(value) else None
            if slot is None:
                continue
            default = cls.model_fields[name].get_default(call_default_factory=True)
            if default is None:
                raise PydanticCustomError(
                    "no_kind",
                    "{name} is null by default and has no kind; give {name}.kind ({kinds})",
                    {"name": name, "kinds": ", ".join(slot.kinds())},
                )
            if isinstance(default, Tagged):
                tagged[name] = {"kind": default.kind, **value}
        return tagged

    def meant_by(self, name: str) -> "Record | None":
        """The part that a field means while it names none: while it is null, or a word.

        A path into the field starts there. None where the record knows of no such part.
        """
        return None

    @classmethod
    def key_hint(cls, key: str, at: str = "") -> str:
        """What may have been meant by a key that is no field; `at` is the record's dotted path."""
        return nearest(key, cls.model_fields)

    def __repr_name__(self) -> str:
        """With the part that it is nested in: `RMSNorm.Config(kind='rms', …)`."""
        return type(self).__qualname__.rpartition("<locals>.")[2]

    def plain(self) -> dict[str, Value]:
        """The record as plain JSON values; `parse` of it gives an equal record."""
        # As any: a user's record may nest a slot's base and still lose no field of the kind there.
        return cast(dict[str, Value], self.model_dump(mode="json", serialize_as_any=True))


class Tagged(Record):
    """A record whose `kind` chooses among several records of one slot.

    The slot's base declares `slot` and `default_kind`; validating the base dispatches on the tag,
    so a field annotated with the base accepts every kind that is registered, the user's own too.
    """

    slot: ClassVar[str]
    default_kind: ClassVar[str]
    _kinds: ClassVar[dict[str, dict[str, type["Tagged"]]]] = {}

    kind: str

    @classmethod
    def register(cls, kind: str) -> None:
        """Make this record the one that `kind` means in its slot."""
        registered = Tagged._kinds.setdefault(cls.slot, {})
        if kind in registered and not _may_replace(registered[kind], cls):
            raise BlocklabError(f"{cls.slot} kind '{kind}' is already taken; choose another name")
        registered[kind] = cls

    @classmethod
    def kinds(cls) -> dict[str, type["Tagged"]]:
        """Every record registered in this slot, by kind."""
        return Tagged._kinds.setdefault(cls.slot, {})

    @classmethod
    def of_kind(cls, kind: str) -> type["Tagged"]:
        found = cls.kinds().get(kind)
        if found is None:
            raise BlocklabError(f"unknown {cls.slot} kind '{kind}'; {cls._hint(kind)}")
        return found

    @classmethod
    def key_hint(cls, key: str, at: str = "") -> str:
        """Another kind of the slot may have that field."""
        having = [kind for kind, record in cls.kinds().items() if key in record.model_fields]
        if not having:
            return super().key_hint(key, at)
        have = f"{having[0]} has it" if len(having) == 1 else f"{', '.join(having)} have it"
        return f"{have}: set {at}{'.' if at else ''}kind={having[0]} first"

    @classmethod
    def _hint(cls, kind: str) -> str:
        return f"{nearest(kind, cls.kinds())} (one of your own: --plugin names its file)"

    @classmethod
    def _is_slot_base(cls) -> bool:
        return "slot" in cls.__dict__

    @model_validator(mode="wrap")
    @classmethod
    def _choose_by_kind(cls, data: Any, handler: Any) -> Any:
        if not cls._is_slot_base() or isinstance(data, cls):
            return handler(data)
        if isinstance(data, str):
            data = {"kind": data}
        if not isinstance(data, Mapping):
            raise PydanticCustomError("not_a_part", "expected a mapping with 'kind'")
        kind = data.get("kind", cls.default_kind)
        if kind not in cls.kinds():
            raise PydanticCustomError(
                "unknown_kind",
                "unknown {slot} kind '{kind}'; {hint}",
                {"slot": cls.slot, "kind": str(kind), "hint": cls._hint(str(kind))},
            )
        return cls.kinds()[kind].model_validate(data)


def _may_replace(old: type, new: type) -> bool:
    """The same lines run again, in a notebook or from an edited file; ours never give way."""
    ours = old.__module__.startswith("blocklab.") and old.__module__ != new.__module__
    return old.__qualname__ == new.__qualname__ and not ours


def slot_of(record: type[Record], name: str) -> type[Tagged] | None:
    """The slot whose kinds a field takes; None where it takes no part or one kind only."""
    field = record.model_fields.get(name)
    if field is None:
        return None
    types = (found for found in _alternatives(field.annotation) if isinstance(found, type))
    slots = (found for found in types if issubclass(found, Tagged) and found._is_slot_base())
    return next(slots, None)


def _alternatives(annotation: object) -> Iterator[object]:
    """What a value may be: the members of a union, of one inside another too."""
    if get_origin(annotation) is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for inner in get_args(annotation):
            yield from _alternatives(inner)
    else:
        yield annotation


def lacks_kind(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, Mapping) and "kind" not in value
