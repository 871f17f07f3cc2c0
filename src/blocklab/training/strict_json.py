"""Plain values as JSON that every program reads, and back.

JSON knows no NaN: a number that is not finite is written as null, and `non_finite` lists where it
stood and what it was, [[["loss"], "nan"]].
"""

import math
from collections.abc import Mapping
from typing import Any

LISTED = "non_finite"


def strict(content: Mapping[str, Any]) -> dict[str, Any]:
    """What is to be written for it."""
    found: list[list[object]] = []
    written: dict[str, Any] = _finite(content, [], found)
    return written | ({LISTED: found} if found else {})


def restored(written: Mapping[str, Any]) -> dict[str, Any]:
    """What `strict` was given. Changes the values inside what is given."""
    content = dict(written)
    for place, text in content.pop(LISTED, []):
        target: Any = content
        for key in place[:-1]:
            target = target[key]
        target[place[-1]] = float(text)
    return content


def _finite(value: Any, place: list[object], found: list[list[object]]) -> Any:
    """The value with null for what is not finite; `found` collects where and what that was."""
    if isinstance(value, Mapping):
        return {key: _finite(inner, [*place, key], found) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner, [*place, at], found) for at, inner in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        found.append([place, str(value)])
        return None
    return value
