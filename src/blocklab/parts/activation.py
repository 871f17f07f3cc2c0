"""Activations, by name. A user's own one registers with `register_activation`."""

from collections.abc import Callable
from typing import Annotated, TypeAlias

import torch.nn.functional as F
from pydantic import AfterValidator
from torch import Tensor

from blocklab.errors import BlocklabError, nearest

Activation: TypeAlias = Callable[[Tensor], Tensor]


def _relu2(x: Tensor) -> Tensor:
    """The square of ReLU (So et al. 2021, Primer)."""
    return F.relu(x).square()


def _gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation, as GPT-2 uses it (Hendrycks & Gimpel 2016, section 2)."""
    return F.gelu(x, approximate="tanh")


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "relu2": _relu2,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": F.silu,
    "identity": _identity,
}


def register_activation(name: str, function: Activation) -> None:
    """Make `activation: name` mean `function` (elementwise, (...) -> (...)).

    Raises BlocklabError when the name is taken by another function.
    """
    if ACTIVATIONS.get(name, function) is not function:
        raise BlocklabError(f"activation '{name}' is already taken; choose another name")
    ACTIVATIONS[name] = function


def _known(name: str) -> str:
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation '{name}'; {nearest(name, ACTIVATIONS)}")
    return name


ActivationName: TypeAlias = Annotated[str, AfterValidator(_known)]
