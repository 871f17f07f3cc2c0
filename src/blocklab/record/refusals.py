"""What a record refuses: in which words, and what pydantic by itself would let pass.

Nothing here knows a record; `record` puts both to work.
"""

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError
from pydantic_core.core_schema import no_info_before_validator_function

from blocklab.errors import BlocklabError


def explained(error: ValidationError, at: str = "") -> BlocklabError:
    """A pydantic error as one line: path, what is wrong, the value found."""
    problems = error.errors(include_url=False)
    lines = [_one_problem(problem, at) for problem in problems[:3]]
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    return BlocklabError("; ".join(lines) + more)


_OWN_WORDS = ("value_error", "unknown_key", "unknown_kind", "not_a_part", "no_kind")


def _one_problem(problem: ErrorDetails, at: str) -> str:
    path = ".".join([*([at] if at else []), *map(str, problem["loc"])])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] not in (*_OWN_WORDS, "missing"):
        message = f"{problem['input']!r} does not fit: {message[0].lower()}{message[1:]}"
    return f"{path}: {message}" if path else message


def _no_switch(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("switch", "it is a switch, expected a number")
    return value


def _no_number(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise PydanticCustomError("number", "it is a number, expected true or false")
    return value


_INNER = (
    "schema",
    "items_schema",
    "keys_schema",
    "values_schema",
    "steps",
    "lax_schema",
    "strict_schema",
    "python_schema",
    "json_schema",
)
"""Where a schema holds the schemas of what it is made of; a union holds them as its choices."""


def tell_switches_from_numbers(record: CoreSchema) -> None:
    """Let every field of a record's schema refuse true for a number and 1 for a switch.

    Where a field takes both, each stays what it is. Changes the schema; once is enough, but it may
    be asked again.
    """
    fields: Any = record
    while fields["type"] != "model-fields":
        fields = fields["schema"]
    for field in fields["fields"].values():
        field["schema"] = _guarded(field["schema"])


def _guarded(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_guarded(inner) for inner in schema]
    # A record sees to its own fields.
    if schema["type"] == "model" or _is_guarded(schema):
        return schema
    guard = _guard(schema)
    if guard is not None:
        return no_info_before_validator_function(guard, schema)
    changed = {key: _guarded(schema[key]) for key in _INNER if key in schema}
    if schema["type"] == "union":
        changed["choices"] = [_choice(choice) for choice in schema["choices"]]
    return {**schema, **changed}


def _choice(choice: Any) -> Any:
    """Of a union: with the name that an error calls it by."""
    if isinstance(choice, tuple):
        return (_guarded(choice[0]), choice[1])
    return _guarded(choice) if _guard(choice) is None else (_guarded(choice), choice["type"])


def _guard(schema: Any) -> Callable[[object], object] | None:
    if schema["type"] != "literal":
        return {"int": _no_switch, "float": _no_switch, "bool": _no_number}.get(schema["type"])
    kinds = set(map(type, schema["expected"])) & {bool, int}
    if kinds == {bool}:
        return _no_number
    return _no_switch if kinds == {int} else None


def _is_guarded(schema: Any) -> bool:
    return schema["type"] == "function-before" and schema["function"]["function"] in (
        _no_switch,
        _no_number,
    )
