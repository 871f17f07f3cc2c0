"""The number types that weights may have, by every name that people have for them."""

import torch

from blocklab.errors import BlocklabError

_NAMES: dict[torch.dtype, tuple[str, ...]] = {
    torch.float32: ("float32", "fp32", "float", "single"),
    torch.bfloat16: ("bf16", "bfloat16"),
    torch.float16: ("float16", "fp16", "half"),
    torch.float64: ("float64", "fp64", "double"),
}
"""The first name of each is the one that is offered."""

_BY_NAME = {name: dtype for dtype, names in _NAMES.items() for name in names}


def dtype_called(name: str | torch.dtype) -> torch.dtype:
    """The type of this name, as in `bf16`, `bfloat16` or `torch.bfloat16`, or the type itself.

    Raises BlocklabError for anything else.
    """
    found = _found(name)
    if found is None:
        offered = ", ".join(names[0] for names in _NAMES.values())
        raise BlocklabError(f"dtype {name}: expected one of {offered}")
    return found


def name_of(dtype: torch.dtype) -> str:
    """Torch's own name of a type, as files store it: `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def stored_name(said: object) -> object:
    """Torch's own name for any name of a type; what is none stays, for whoever checks it."""
    found = _found(said)
    return said if found is None else name_of(found)


def _found(said: object) -> torch.dtype | None:
    if isinstance(said, str):
        return _BY_NAME.get(said.removeprefix("torch.").lower())
    return said if isinstance(said, torch.dtype) and said in _NAMES else None
