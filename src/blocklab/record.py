"""Records: frozen, validated pieces of configuration, and how a dotted path changes one.

A record knows nothing of models or training; every room builds its own records from this base.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar, cast

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
                        {"key": str(key), "hint": cls.key_hint(str(key))},
                    )
        return data

    @classmethod
    def key_hint(cls, key: str, at: str = "") -> str:
        """What may have been meant by a key that is no field; `at` is the record's dotted path."""
        return nearest(key, cls.model_fields)

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


def every_path(tree: object) -> Iterator[str]:
    """The dotted path of everything that a record or a tree of values says, parts before leaves."""
    if isinstance(tree, Record):
        tree = _tree(tree)
    if isinstance(tree, Mapping):
        for key, inner in tree.items():
            steps = str(key).split(".")
            yield from (".".join(steps[: n + 1]) for n in range(len(steps)))
            yield from (f"{key}.{path}" for path in every_path(inner))


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
        found = (inner for inner in every_path(record) if inner.split(".")[-1] == head)
        deeper = [f"'{before}{inner}'" for inner in found]
        meant = f"did you mean {' or '.join(deeper[:3])}?"
        hint = meant if deeper else record.key_hint(head, before.removesuffix("."))
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
    kept = {name: getattr(record, name) for name in _shared(record, target)}
    fitting = {name: value for name, value in kept.items() if _is_kept(record, target, name)}
    return target.model_construct(**{**fitting, "kind": kind})


def _shared(record: Tagged, target: type[Tagged]) -> list[str]:
    """Fields of a record that the record of another kind has too."""
    fields = type(record).model_fields
    return [name for name in fields if name in target.model_fields and name != "kind"]


def _is_kept(record: Tagged, target: type[Tagged], name: str) -> bool:
    """Whether another kind takes this value of `record`.

    What even its own kind refuses is kept: it is a mistake that is still to be named.
    """
    value = _tree(getattr(record, name))
    return _taken(target, name, value) or not _taken(type(record), name, value)


def _taken(kind: type[Tagged], name: str, value: object) -> bool:
    """Whether a field of a kind takes a plain value."""
    data = {"kind": kind.model_fields["kind"].default, name: value}
    try:
        taken = getattr(kind.model_validate(data), name)
    except ValidationError as error:
        # Other fields stand at their defaults here; what is wrong with those is not asked.
        return not any(problem["loc"][:1] == (name,) for problem in error.errors())
    # A switch is no number, though a field for one would read it as 0 or 1.
    return isinstance(taken, bool) == isinstance(value, bool)


class Kept(NamedTuple):
    """A value that a change of kind carried over, where the new kind's own default is another."""

    path: str
    value: Value
    kind: str
    """The new kind."""
    default: Value
    """What the new kind would have by itself."""

    @property
    def sentence(self) -> str:
        """`block.norm.eps stays 1e-06 (my-norm by itself: 0.01)`."""
        return (
            f"{self.path} stays {_said(self.value)} ({self.kind} by itself: {_said(self.default)})"
        )


def kept_by_switches(record: Record, changes: Mapping[str, object]) -> tuple[Kept, ...]:
    """What the changes of kind among `changes` carry over from `record` without its being said.

    Fields that equal the new kind's default are left out, and those that some change sets. Raises
    BlocklabError for a bad path.
    """
    said = list(_said_paths(changes))
    kept: list[Kept] = []
    for path, value in said:
        new = _changed(record, path.split("."), value, path)
        place = path.removesuffix(".kind")
        if place != path:
            old, now = _standing_at(record, place), _standing_at(new, place)
            if isinstance(old, Tagged) and isinstance(now, Tagged) and type(old) is not type(now):
                kept += _carried_over(old, now, place)
        record = new
    return tuple(k for k in kept if not any(_meet(k.path, path) for path, _ in said))


def _said_paths(changes: Mapping[str, object], at: str = "") -> Iterator[tuple[str, object]]:
    """Every path that is set, with its value: a mapping without `kind` sets those below it."""
    for key, value in changes.items():
        if isinstance(value, Mapping) and "kind" not in value:
            yield from _said_paths(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


def _standing_at(record: Record, path: str) -> object:
    """What stands at a dotted path; None where nothing does."""
    found: object = record
    for step in path.split("."):
        found = getattr(found, step, None)
    return found


def _carried_over(old: Tagged, new: Tagged, at: str) -> Iterator[Kept]:
    for name in _shared(old, type(new)):
        field = type(new).model_fields[name]
        if field.is_required() or not _is_kept(old, type(new), name):
            continue
        default = _tree(field.get_default(call_default_factory=True))
        value = _tree(getattr(old, name))
        if value != default:
            yield Kept(f"{at}.{name}", cast(Value, value), new.kind, cast(Value, default))


def _meet(one: str, other: str) -> bool:
    """Whether one of two paths is the other or lies in it."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _said(value: Value) -> str:
    """A value as a study's file would say it on one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_said(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_said, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def first_difference(
    there: object, here: object, path: str = ""
) -> tuple[str, object, object] | None:
    """The first dotted path at which two trees of plain values differ, with both values."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in [*there, *(k for k in here if k not in there)]:
            inner = f"{path}.{key}" if path else str(key)
            found = first_difference(there.get(key), here.get(key), inner)
            if found is not None:
                return found
        return None
    return None if there == here else (path, there, here)
