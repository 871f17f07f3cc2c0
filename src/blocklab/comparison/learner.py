"""A learner's module, called: a copy in float64, its parameters drawn anew, dropout found out.

The module itself is left as it was.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from blocklab.errors import BlocklabError


class Learner:
    """What can be asked of a module without knowing how it was written."""

    def __init__(self, module: nn.Module) -> None:
        try:
            self.module = copy.deepcopy(module).double().eval()
        except Exception as error:
            raise BlocklabError(f"{type(module).__name__} cannot be copied: {error}") from None
        self.name = type(module).__name__
        self.drops_in_evaluation = False
        _draw(self.module)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """By name; a tied one once."""
        return dict(self.module.named_parameters())

    def __call__(self, x: Tensor) -> Tensor:
        """Its output for `x`, dropout taken out. Raises BlocklabError when it cannot be called."""
        with _NoDropout():
            return self._called(x)

    def notice_dropout(self, x: Tensor) -> None:
        """Whether two evaluations of the same input differ."""
        with torch.no_grad():
            first, second = self._called(x), self._called(x)
        self.drops_in_evaluation = not torch.equal(first.nan_to_num(), second.nan_to_num())

    def _called(self, x: Tensor) -> Tensor:
        problem = ""
        for extra in _extras(x):
            try:
                return _tensor(self.module(x, *extra))
            except TypeError as error:
                problem = problem or str(error)
            except Exception as error:
                raise BlocklabError(
                    f"{self.name} fails on an input of shape {tuple(x.shape)}: {error}"
                ) from error
        raise BlocklabError(f"{self.name} cannot be called with one tensor: {problem}")


def _extras(x: Tensor) -> list[tuple[Any, ...]]:
    """What a forward may want beside its input: nothing, a causal mask, None, keys and values."""
    if x.ndim < 2:
        return [()]
    seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    return [(), (seen,), (None,), (x, x)]


def _tensor(output: object) -> Tensor:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise BlocklabError(f"expected a tensor as output, found {type(output).__name__}")


def _draw(module: nn.Module) -> None:
    """Values at which no decision hides: matrices that keep size, gains and biases away from 0, 1.

    Ours and theirs use the same values, whatever they are.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim >= 2:
                parameter.copy_(noise / max(min(parameter.shape[-2:]), 1) ** 0.5)
            else:
                parameter.add_(noise / 3)


class _NoDropout(TorchFunctionMode):
    """Dropout does nothing while this is active, whoever calls it."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in ("dropout", "dropout1d", "alpha_dropout", "feature_dropout"):
            return args[0] if args else given["input"]
        if name == "scaled_dot_product_attention":
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            else:
                given["dropout_p"] = 0.0
        return func(*args, **given)
