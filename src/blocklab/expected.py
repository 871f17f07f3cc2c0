"""What stands at the door of a public function: is each argument what it takes?

Bad input, not a bug: whoever gives the name of a preset where a config is expected is told so, and
what to give instead. Which values fit is the function's own business.
"""

import operator
from collections.abc import Iterable
from numbers import Real
from os import PathLike

from blocklab.errors import BlocklabError

_MODEL = "bl.Transformer(bl.presets.gpt2()), or bl.load(…).model"

_INSTEAD: dict[str, dict[str, str]] = {
    "Transformer": {
        "str": f"a model is {_MODEL}",
        "Path": f"a model is {_MODEL}",
        "ModelConfig": "build it: bl.Transformer(config)",
        "Loaded": "give its .model",
        "Trained": "give its .model",
        "Trainer": "give its .model",
        "Module": "it must be one of blocklab's own; bl.compare takes yours",
    },
    "ModelConfig": {
        "str": "a config is bl.presets.gpt2(), or bl.ModelConfig.from_yaml(…)",
        "Path": "a config is bl.ModelConfig.from_yaml(…)",
        "Mapping": "a config is bl.ModelConfig(**fields)",
        "dict": "a config is bl.ModelConfig(**fields)",
        "function": "call it: bl.presets.gpt2()",
        "Transformer": "give its .config",
        "Loaded": "give its .model.config",
        "Count": "give its .config",
    },
    "Study": {
        "str": "a study is bl.Study.from_yaml(…)",
        "Path": "a study is bl.Study.from_yaml(…)",
        "dict": "a study is bl.Study(**fields)",
    },
    "Tensor": {
        "str": "the ids of a text are torch.tensor([tokenizer.encode(text)])",
        "list": "torch.tensor(…) makes one",
        "tuple": "torch.tensor(…) makes one",
        "ndarray": "torch.from_numpy(…) makes one",
    },
    "Mapping": {
        "str": 'changes are {"block.norm.kind": "rms"}: paths and values',
    },
}
"""By the class that is expected and the one that was given: what was likely meant."""


def require(expected: type, value: object, name: str) -> None:
    """Raise BlocklabError unless `value`, the argument called `name`, is of the expected class."""
    # What torch.compile wraps is still that.
    if isinstance(value, expected) or isinstance(getattr(value, "_orig_mod", None), expected):
        return
    meant = _INSTEAD.get(expected.__name__, {})
    hints = (meant[cls.__name__] for cls in type(value).__mro__ if cls.__name__ in meant)
    hint = next(hints, None)
    raise BlocklabError(
        f"{name}: expected a {expected.__name__}, found {described(value)}"
        + (f"; {hint}" if hint else "")
    )


def require_place(value: object, name: str) -> None:
    """Raise BlocklabError unless `value` is text or a path."""
    if not isinstance(value, str | PathLike):
        raise BlocklabError(f"{name}: expected a name or a path, found {described(value)}")


def require_whole(value: object, name: str) -> None:
    """Raise BlocklabError unless `value` is a whole number; a switch is none."""
    if not _is_whole(value):
        raise BlocklabError(f"{name}: expected a whole number, found {described(value)}")


def require_whole_numbers(values: object, name: str) -> None:
    """Raise BlocklabError unless `values` are some whole numbers, such as a list of them."""
    if not isinstance(values, Iterable):
        raise BlocklabError(f"{name}: expected some whole numbers, found {described(values)}")
    for value in values:
        require_whole(value, name)


def require_number(value: object, name: str) -> None:
    """Raise BlocklabError unless `value` is a number; a switch is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise BlocklabError(f"{name}: expected a number, found {described(value)}")


def described(value: object) -> str:
    """A short value itself, otherwise what it is: `'gpt2'`, `2.5`, `a list`, `None`."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else f"{value[:39]}…")
    return f"a {type(value).__name__}"


def _is_whole(value: object) -> bool:
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True
