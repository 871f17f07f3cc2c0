"""What a module of each slot must be, and how a user's own class is told when it is not.

A fault of a user's class is bad input and becomes one line that names the class; one of ours is a
bug and stays what it is.
"""

import inspect
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from blocklab.errors import BlocklabError

SIZES: Mapping[str, tuple[str, ...]] = {
    "norm": ("d",),
    "feed_forward": ("d_model",),
    "attention": ("d_model",),
    "residual": ("d_model",),
    "block": ("d_model",),
    "positions": ("d_model", "context_length"),
}
"""What a constructor takes first, by slot."""

METHODS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "norm": {"forward": ("x",)},
    "feed_forward": {"forward": ("x",)},
    "attention": {"forward": ("x", "context")},
    "residual": {"forward": ("stream", "branch")},
    "block": {"forward": ("x", "context")},
    "positions": {
        "embed": ("positions",),
        "tables": ("positions", "head_dim", "dtype"),
        "rotate": ("x", "tables"),
        "score_bias": ("distance", "n_heads"),
    },
}
"""The methods that a module acts by, with what each is called with, by slot."""


def is_ours(cls: type) -> bool:
    """Whether a class comes with blocklab."""
    return cls.__module__.split(".")[0] == "blocklab"


def require_module(module: object, slot: str, base: type[nn.Module]) -> None:
    """Raise BlocklabError unless `module` is a class that can stand in this slot."""
    if not isinstance(module, type):
        name = getattr(module, "__name__", type(module).__name__)
        raise BlocklabError(
            f"{name} is no class: @bl.part('{slot}', …) registers a subclass of torch.nn.Module"
        )
    name = module.__name__
    if not issubclass(module, base):
        if slot != "positions":
            raise BlocklabError(f"{name} must be a subclass of torch.nn.Module")
        raise BlocklabError(
            f"{name} must be a subclass of Positions: class {name}(bl.parts.Positions), with "
            f"{_listed(slot)}, whichever it acts by"
        )
    if is_ours(module):
        return
    _require_names(module, "residual_writers", "down.weight")
    _require_names(module, "keeps_values", "gate.bias")
    for method, given in METHODS[slot].items():
        _require_signature(module, method, given)
    inherited = all(getattr(module, m) is getattr(base, m, None) for m in METHODS[slot])
    if slot == "positions" and inherited:
        raise BlocklabError(
            f"{name} would do nothing: positions act by {_listed(slot)}; define one of them"
        )


def _listed(slot: str) -> str:
    *some, last = (f"{name}({', '.join(given)})" for name, given in METHODS[slot].items())
    return f"{', '.join(some)} or {last}" if some else last


def _require_names(module: type[nn.Module], attribute: str, example: str) -> None:
    named = getattr(module, attribute, ())
    if not isinstance(named, tuple | list) or not all(isinstance(name, str) for name in named):
        raise BlocklabError(
            f"{module.__name__}.{attribute}: expected a tuple of parameters' names, as in "
            f"('{example}',), found {named!r}"
        )


def _require_signature(module: type[nn.Module], method: str, given: tuple[str, ...]) -> None:
    function = inspect.getattr_static(module, method, None)
    if not inspect.isfunction(function) or function is nn.Module.forward:
        return  # what cannot be read is found when it is called
    signature = inspect.signature(function)
    try:
        signature.bind(None, *given)
    except TypeError:
        raise BlocklabError(
            f"{module.__name__}.{method} is called with ({', '.join(given)}) and takes {signature}"
        ) from None


@contextmanager
def constructing(module: type[nn.Module]) -> Iterator[None]:
    """What a user's constructor raises inside becomes a BlocklabError that names the class."""
    try:
        yield
    except Exception as error:
        if is_ours(module) or not may_be_reworded(error):
            raise
        if "Module.__init__()" in str(error):
            raise _without_super(module) from error
        raise BlocklabError(
            f"{module.__name__}: its constructor fails: {in_a_line(error, module)}"
        ) from error


def require_begun(module: nn.Module) -> None:
    """Raise BlocklabError where a constructor never came to torch's own."""
    if "_modules" not in vars(module):
        raise _without_super(type(module))


def _without_super(module: type[nn.Module]) -> BlocklabError:
    base = next(cls for cls in module.__mro__[1:] if issubclass(cls, nn.Module))
    taken = [
        name
        for name, parameter in inspect.signature(base.__init__).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    return BlocklabError(
        f"{module.__name__}: its constructor must begin with "
        f"super().__init__({', '.join(taken[1:])})"
    )


def may_be_reworded(error: Exception) -> bool:
    """Whether an error may be a user's fault: neither said already nor the machine's."""
    return not isinstance(error, BlocklabError | MemoryError | torch.OutOfMemoryError)


def in_a_line(error: Exception, module: type[nn.Module]) -> str:
    """An error's class and first line, and where in the class's file it was raised."""
    return in_file(error, getattr(sys.modules.get(module.__module__), "__file__", None))


def in_file(error: BaseException, file: str | None) -> str:
    """`ValueError: too few (line 12 of my_norm.py)`: an error's first line and its place."""
    lines = str(error).strip().splitlines()
    said = type(error).__name__ + (f": {lines[0]}" if lines else "")
    frames = traceback.extract_tb(error.__traceback__)
    found = [frame.lineno for frame in frames if frame.filename == file]
    return f"{said} (line {found[-1]} of {Path(file).name})" if file and found else said
