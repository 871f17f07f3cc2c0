"""Records and plain values as trees, whose places have dotted paths."""

from collections.abc import Iterator, Mapping

from blocklab.record.records import Record


def tree_of(value: object) -> object:
    """Records as mappings, unchecked values as they are."""
    if isinstance(value, Record):
        return {name: tree_of(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {key: tree_of(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [tree_of(inner) for inner in value]
    return value


def every_path(tree: object) -> Iterator[str]:
    """The dotted path of everything that a record or a tree of values says, parts before leaves."""
    if isinstance(tree, Record):
        tree = tree_of(tree)
    if isinstance(tree, Mapping):
        for key, inner in tree.items():
            steps = str(key).split(".")
            yield from (".".join(steps[: n + 1]) for n in range(len(steps)))
            yield from (f"{key}.{path}" for path in every_path(inner))


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
