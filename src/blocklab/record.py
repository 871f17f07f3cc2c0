"""Records: frozen, validated pieces of configuration, and how a dotted path changes one.

A record knows nothing of models or training; every room builds its own records from this base.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from blocklab.errors import BlocklabError, nearest

Value: TypeAlias = bool | int | float | str | Sequence["Value"] | Mapping[str, "Value"] | None
"""What a path may be set to: whatever YAML and JSON can say."""

AnyRecord = TypeVar("AnyRecord", bound="Record")


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

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_keys(cls, data: object) -> object:
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    raise PydanticCustomError(
                        "unknown_key",
                        "unknown key '{key}'; {hint}",
                        {"key": str(key), "hint": nearest(str(key), cls.model_fields)},
                    )
        return data

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


def explained(error: ValidationError, at: str = "") -> BlocklabError:
    """A pydantic error as one line: path, what is wrong, the value found."""
    problems = error.errors(include_url=False)
    lines = [_one_problem(problem, at) for problem in problems[:3]]
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    return BlocklabError("; ".join(lines) + more)


def _one_problem(problem: ErrorDetails, at: str) -> str:
    path = ".".join([*([at] if at else []), *map(str, problem["loc"])])
    message = problem["msg"].removeprefix("Value error, ")
    own_words = problem["type"] in ("value_error", "unknown_key", "unknown_kind", "not_a_part")
    if not own_words and problem["type"] != "missing":
        message = f"{problem['input']!r} does not fit: {message[0].lower()}{message[1:]}"
    return f"{path}: {message}" if path else message


def with_changes(record: AnyRecord, changes: Mapping[str, object], at: str = "") -> AnyRecord:
    """The record with the value at each dotted path replaced, validated as a whole at the end.

    Raises BlocklabError for a bad path or value; `at` prefixes the paths it names.
    """
    new: Record = record
    for path, value in changes.items():
        new = _changed(new, path.split("."), value, f"{at}.{path}" if at else path)
    return revalidated(cast(AnyRecord, new), at)


def revalidated(record: AnyRecord, at: str = "") -> AnyRecord:
    """The same record with every value checked, for one made of unchecked changes."""
    return type(record).parse(_tree(record), at)


def _tree(value: object) -> object:
    """Records as mappings, unchecked values as they are."""
    if isinstance(value, Record):
        return {name: _tree(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {key: _tree(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_tree(inner) for inner in value]
    return value


def _paths(tree: object, at: str = "") -> Iterator[str]:
    """The dotted path of everything in a tree of plain values."""
    if isinstance(tree, Mapping):
        for key, inner in tree.items():
            yield f"{at}{key}"
            yield from _paths(inner, f"{at}{key}.")


def changed(record: Record, path: str, value: object) -> Record:
    """The record with the value at `path` replaced. The result is not validated yet.

    A mapping without `kind` updates the record that stands there; one with `kind` replaces it.
    Changing a `kind` keeps the fields both kinds have; the others take the new kind's defaults.
    """
    return _changed(record, path.split("."), value, path)


def _changed(record: Record, steps: list[str], value: object, path: str) -> Record:
    head, rest = steps[0], steps[1:]
    if head not in type(record).model_fields:
        before = path.removesuffix(".".join(steps))
        found = (inner for inner in _paths(_tree(record)) if inner.split(".")[-1] == head)
        deeper = [f"'{before}{inner}'" for inner in found]
        meant = f"did you mean {' or '.join(deeper[:3])}?"
        hint = meant if deeper else nearest(head, type(record).model_fields)
        raise BlocklabError(f"{path}: unknown key '{head}'; {hint}")
    current = getattr(record, head)
    if rest:
        if isinstance(current, Record):
            new: object = _changed(current, rest, value, path)
        elif current is None or rest == ["kind"]:
            new = _nested_mapping(rest, value)
        elif isinstance(current, Mapping):
            # Set by an earlier change and not validated yet.
            new = _merged(current, rest, value)
        else:
            raise BlocklabError(f"{path}: '{head}' has no parts, it is {current!r}")
    elif head == "kind" and isinstance(record, Tagged):
        return _switched(record, value, path)
    elif isinstance(current, Record) and isinstance(value, Mapping) and "kind" not in value:
        updated: Record = current
        for key, inner in value.items():
            updated = _changed(updated, [str(key)], inner, f"{path}.{key}")
        new = updated
    else:
        new = value
    return record.model_copy(update={head: new})


def _nested_mapping(steps: list[str], value: object) -> object:
    for step in reversed(steps):
        value = {step: value}
    return value


def _merged(mapping: Mapping[str, object], steps: list[str], value: object) -> object:
    inner = mapping.get(steps[0])
    if len(steps) == 1:
        new = value
    elif isinstance(inner, Mapping):
        new = _merged(inner, steps[1:], value)
    else:
        new = _nested_mapping(steps[1:], value)
    return {**mapping, steps[0]: new}


def _switched(record: Tagged, kind: object, path: str) -> Record:
    if not isinstance(kind, str):
        raise BlocklabError(f"{path}: expected the name of a kind, found {kind!r}")
    try:
        target = record.of_kind(kind)
    except BlocklabError as error:
        raise BlocklabError(f"{path}: {error}") from None
    if target is type(record):
        return record
    kept = {
        name: getattr(record, name)
        for name in type(record).model_fields
        if name in target.model_fields and name != "kind"
    }
    return target.model_construct(**{**kept, "kind": kind})
