"""What a change of kind carries over from the kind before it, in words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from blocklab.record.paths import changed_at, is_kept, shared_fields
from blocklab.record.records import Record, Tagged, Value
from blocklab.record.trees import tree_of


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
        new = changed_at(record, path.split("."), value, path)
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
    for name in shared_fields(old, type(new)):
        field = type(new).model_fields[name]
        if field.is_required() or not is_kept(old, type(new), name):
            continue
        default = tree_of(field.get_default(call_default_factory=True))
        value = tree_of(getattr(old, name))
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
