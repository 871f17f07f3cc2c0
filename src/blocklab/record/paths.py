"""How a dotted path changes a record."""

from collections.abc import Mapping
from typing import TypeVar, cast

from pydantic import ValidationError

from blocklab.errors import BlocklabError
from blocklab.record.records import Record, Tagged, lacks_kind, slot_of
from blocklab.record.trees import every_path, tree_of

AnyRecord = TypeVar("AnyRecord", bound="Record")


def with_changes(record: AnyRecord, changes: Mapping[str, object], at: str = "") -> AnyRecord:
    """The record with the value at each dotted path replaced, validated as a whole at the end.

    Raises BlocklabError for a bad path or value; `at` prefixes the paths it names.
    """
    new: Record = record
    for path, value in changes.items():
        new = changed_at(new, path.split("."), value, f"{at}.{path}" if at else path)
    return revalidated(cast(AnyRecord, new), at)


def revalidated(record: AnyRecord, at: str = "") -> AnyRecord:
    """The same record with every value checked, for one made of unchecked changes."""
    return type(record).parse(tree_of(record), at)


def changed(record: Record, path: str, value: object) -> Record:
    """The record with the value at `path` replaced. The result is not validated yet.

    A mapping without `kind` updates the record that stands there; one with `kind` replaces it.
    Changing a `kind` keeps the fields both kinds have; the others take the new kind's defaults.
    """
    return changed_at(record, path.split("."), value, path)


def changed_at(record: Record, steps: list[str], value: object, path: str) -> Record:
    head, rest = steps[0], steps[1:]
    if head not in type(record).model_fields:
        before = path.removesuffix(".".join(steps))
        found = (inner for inner in every_path(record) if inner.split(".")[-1] == head)
        deeper = [f"'{before}{inner}'" for inner in found]
        meant = f"did you mean {' or '.join(deeper[:3])}?"
        hint = meant if deeper else record.key_hint(head, before.removesuffix("."))
        raise BlocklabError(f"{path}: unknown key '{head}'; {hint}")
    if head == "kind" and isinstance(record, Tagged) and not rest:
        return _switched(record, value, path)
    new = _as_part(record, head, _replaced(record, head, rest, value, path))
    return record.model_copy(update={head: new})


def _replaced(record: Record, head: str, rest: list[str], value: object, path: str) -> object:
    """What a field holds after a change of it, or of what is at `rest` below it."""
    if not rest and not lacks_kind(value):
        return value
    current = getattr(record, head)
    if current is None or isinstance(current, str):
        # A kind that is said where there was none is that kind, with its own defaults.
        meant = None if rest == ["kind"] else record.meant_by(head)
        current = current if meant is None else meant
    if isinstance(current, Record):
        if rest:
            return changed_at(current, rest, value, path)
        updated: Record = current
        for key, inner in cast(Mapping[str, object], value).items():
            updated = changed_at(updated, [str(key)], inner, f"{path}.{key}")
        return updated
    slot = slot_of(type(record), head)
    if isinstance(current, Mapping):
        # Set by an earlier change, and not valid by itself; or no part at all.
        return _merged(current, rest, value) if rest or slot else value
    if rest == ["kind"]:
        return _nested_mapping(rest, value)
    if slot is not None:
        place = path.removesuffix("".join(f".{step}" for step in rest))
        found = "null" if current is None else repr(current)
        at = f"{path}: " if rest else ""
        raise BlocklabError(f"{at}{place} is {found}; set {place}.kind first")
    if rest and current is not None:
        raise BlocklabError(f"{path}: '{head}' has no parts, it is {current!r}")
    return _nested_mapping(rest, value)


def _as_part(record: Record, name: str, value: object) -> object:
    """The record of a kind by its name or in a mapping, for what a later change does to it.

    What is none, or does not fit, stays as it is: a later change may mend it.
    """
    slot = slot_of(type(record), name)
    if slot is None or not isinstance(value, str | Mapping):
        return value
    try:
        return slot.model_validate(value)
    except ValidationError:
        return value


def _nested_mapping(steps: list[str], value: object) -> object:
    for step in reversed(steps):
        value = {step: value}
    return value


def _merged(mapping: Mapping[str, object], steps: list[str], value: object) -> object:
    if not steps:
        return {**mapping, **cast(Mapping[str, object], value)}
    head, rest = steps[0], steps[1:]
    inner = mapping.get(head)
    if isinstance(inner, Mapping) and (rest or (lacks_kind(value) and "kind" in inner)):
        return {**mapping, head: _merged(inner, rest, value)}
    return {**mapping, head: _nested_mapping(rest, value)}


def _switched(record: Tagged, kind: object, path: str) -> Record:
    if not isinstance(kind, str):
        raise BlocklabError(f"{path}: expected the name of a kind, found {kind!r}")
    try:
        target = record.of_kind(kind)
    except BlocklabError as error:
        raise BlocklabError(f"{path}: {error}") from None
    if target is type(record):
        return record
    kept = {name: getattr(record, name) for name in shared_fields(record, target)}
    fitting = {name: value for name, value in kept.items() if is_kept(record, target, name)}
    return target.model_construct(**{**fitting, "kind": kind})


def shared_fields(record: Tagged, target: type[Tagged]) -> list[str]:
    """Fields of a record that the record of another kind has too."""
    fields = type(record).model_fields
    return [name for name in fields if name in target.model_fields and name != "kind"]


def is_kept(record: Tagged, target: type[Tagged], name: str) -> bool:
    """Whether another kind takes this value of `record`.

    What even its own kind refuses is kept: it is a mistake that is still to be named.
    """
    value = tree_of(getattr(record, name))
    return _taken(target, name, value) or not _taken(type(record), name, value)


def _taken(kind: type[Tagged], name: str, value: object) -> bool:
    """Whether a field of a kind takes a plain value."""
    data = {"kind": kind.model_fields["kind"].default, name: value}
    try:
        kind.model_validate(data)
    except ValidationError as error:
        # Other fields stand at their defaults here; what is wrong with those is not asked.
        return not any(problem["loc"][:1] == (name,) for problem in error.errors())
    return True
