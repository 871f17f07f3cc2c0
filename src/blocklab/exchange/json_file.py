"""JSON from strangers: an object of bounded size, or an error that names the file."""

import json
from collections.abc import Mapping
from pathlib import Path

from blocklab.errors import BlocklabError

LIMIT = 16 * 2**20
"""Bytes; a hostile file of this size is still refused in well under a second."""


def read_json_object(path: Path, limit: int = LIMIT) -> dict[str, object]:
    """The object in `path`. Raises BlocklabError when it is missing, too large or no object."""
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise BlocklabError(f"{path}: cannot be read ({error.strerror or error})") from None
    if len(raw) > limit:
        raise BlocklabError(f"{path}: larger than {limit:,} bytes; that is no configuration")
    return parse_json_object(raw, str(path))


def parse_json_object(raw: bytes, at: str) -> dict[str, object]:
    """The object that `raw` is as JSON; `at` begins an error's message."""
    try:
        data = json.loads(raw, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:120]
        raise BlocklabError(f"{at}: not valid JSON ({reason})") from None
    if not isinstance(data, dict):
        raise BlocklabError(f"{at}: expected a JSON object, found {type(data).__name__}")
    return data


def _without_repeats(pairs: list[tuple[str, object]]) -> Mapping[str, object]:
    data = dict(pairs)
    if len(data) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"'{twice}' stands there twice")
    return data
