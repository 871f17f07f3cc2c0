"""The record of a part that states none: its fields are its constructor's parameters."""

import inspect
from typing import Any, Literal, TypeVar

from pydantic import create_model
from torch import nn

from blocklab.errors import BlocklabError
from blocklab.parts.contract import SIZES
from blocklab.record import Tagged

Base = TypeVar("Base", bound=Tagged)
"""The record that all parts of a slot have in common."""

_WHERE = ("device", "dtype")
"""Of torch's own constructors: where and how a part is stored, not what it computes."""


def record_of(module: type[nn.Module], base: type[Base], kind: str) -> type[Base]:
    """A record with a field for every parameter after the slot's sizes.

    Raises BlocklabError, naming the parameter, where one cannot be a field.
    """
    name, sizes = module.__name__, SIZES[base.slot]
    parameters = list(inspect.signature(module).parameters.values())
    _require_sizes(name, parameters, sizes)
    fields: dict[str, Any] = {}
    for parameter in parameters[len(sizes) :]:
        if parameter.name == "config" and parameter.default is parameter.empty:
            raise _needs_a_record(module, base, kind)
        if parameter.name in _WHERE and parameter.default is None:
            continue
        _require_named(name, parameter, base)
        annotation = parameter.annotation
        if annotation is parameter.empty:
            annotation = type(parameter.default)
        fields[parameter.name] = (annotation, parameter.default)
        _require_storable(module, base, parameter, annotation)
    return _made(module, base, kind, fields)


def require_config_taken(module: type[nn.Module], base: type[Tagged]) -> None:
    """Raise BlocklabError unless a constructor takes the slot's sizes and a record."""
    given = (*SIZES[base.slot], "config")
    signature = inspect.signature(module)
    try:
        signature.bind(*given)
    except TypeError:
        raise BlocklabError(
            f"{module.__name__} has a Config, so its constructor is called with "
            f"({', '.join(given)}); it takes {signature}"
        ) from None


def _made(
    module: type[nn.Module], base: type[Base], kind: str, fields: dict[str, Any]
) -> type[Base]:
    return create_model(
        f"{module.__name__}Config",
        __base__=base,
        __module__=module.__module__,
        **{"kind": (Literal[kind], kind), **fields},
    )


def _require_sizes(name: str, parameters: list[inspect.Parameter], sizes: tuple[str, ...]) -> None:
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    first = parameters[: len(sizes)]
    if len(first) < len(sizes) or any(parameter.kind not in by_place for parameter in first):
        raise BlocklabError(
            f"{name}: the constructor must take {len(sizes)} size(s) first: {', '.join(sizes)}"
        )


def _require_named(name: str, parameter: inspect.Parameter, base: type[Tagged]) -> None:
    """Raise BlocklabError where a parameter cannot be a field by its name or its form."""
    at = f"{name}: constructor parameter '{parameter.name}'"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise BlocklabError(
            f"{name}: constructor parameter '{parameter}' could be anything; name each parameter, "
            "so that the record can state it"
        )
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise BlocklabError(f"{at} is given by name; let it stand after the '/'")
    if parameter.name.startswith("_"):
        raise BlocklabError(f"{at} begins with an underscore; call it something else")
    if parameter.name == "kind" or hasattr(base, parameter.name):
        raise BlocklabError(f"{at} is a word of every {base.__name__}; call it something else")
    if parameter.default is parameter.empty:
        raise BlocklabError(f"{at} needs a default, so that the record can state it")
    if parameter.default is None and parameter.annotation is parameter.empty:
        raise BlocklabError(
            f"{at} could only ever be None; give it a type, as in {parameter.name}: float | None = "
            "None"
        )


def _needs_a_record(module: type[nn.Module], base: type[Tagged], kind: str) -> BlocklabError:
    owner = next((cls for cls in module.__mro__[1:] if "Config" in vars(cls)), None)
    if owner is None:
        inherits = f"bl.parts.{base.__name__}" if base.slot != "block" else base.__name__
    else:
        inherits = f"{owner.__name__}.Config"
    return BlocklabError(
        f"{module.__name__}: its constructor takes a config, so the class needs a record of its "
        f"own in it: class Config({inherits}): kind: Literal['{kind}'] = '{kind}'"
    )


def _require_storable(
    module: type[nn.Module],
    base: type[Tagged],
    parameter: inspect.Parameter,
    annotation: object,
) -> None:
    """Raise BlocklabError unless a file can hold the parameter's default and give it back."""
    at = f"{module.__name__}: constructor parameter '{parameter.name}'"
    try:
        alone = _made(module, base, "own", {parameter.name: (annotation, parameter.default)})
        stored = alone.parse({}).plain()
    # Whatever pydantic makes of a type that it does not know.
    except Exception as error:
        said = getattr(annotation, "__name__", str(annotation))
        raise BlocklabError(
            f"{at}: a record cannot hold {said}; expected what YAML can say (bool, int, float, "
            "str, a list or mapping of them, None) or a part's record"
        ) from error
    try:
        alone.parse(stored)
    except BlocklabError as error:
        raise BlocklabError(f"{at}: its default is not of its type: {error}") from None
