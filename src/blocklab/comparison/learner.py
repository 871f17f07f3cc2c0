"""A learner's module, called: each time from the state in which it was built, in float64.

The module itself is left as it was.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from blocklab.comparison.copies import Snapshot, copied, fresh
from blocklab.comparison.listening import Listening
from blocklab.errors import BlocklabError


class Learner:
    """What can be asked of a module without knowing how it was written."""

    def __init__(self, module: nn.Module) -> None:
        self.name = type(module).__name__
        try:
            found = copied(module)
        except Exception as error:
            raise BlocklabError(f"{self.name} cannot be copied: {error}") from None
        self.module = found.module
        self.frozen, self.unregistered = found.frozen, found.unregistered
        self._untrained = found.untrained
        self.narrow: set[torch.dtype] = set()
        """Types below float64 that it has computed in so far."""
        self.overwriting: list[str] = []
        """Operations in place of its last call, as they are written."""
        self.changed: tuple[str, ...] = ()
        """Parameters that its calls have changed so far; they were put back each time."""
        self._first_values = found.first_values
        self._snapshot = Snapshot(self.parameters)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """By name; a tied one once."""
        return dict(self.module.named_parameters())

    @property
    def sizes(self) -> list[int]:
        """Every dimension of its parameters, then of what may have been meant as one."""
        trained = {size for p in self.parameters.values() for size in p.shape}
        others = {size for _, shape in self._untrained.values() for size in shape} - trained
        return sorted(trained, reverse=True) + sorted(others, reverse=True)

    def __call__(self, x: Tensor) -> Tensor:
        """Its output for `x`, dropout taken out. Raises BlocklabError when it cannot be called."""
        return self.answer(self.fresh(), x.clone())

    def fresh(self) -> nn.Module:
        """The module with its parameters, as it was before any call."""
        return fresh(self.module)

    def answer(self, module: nn.Module, given: Tensor, drops: bool = False) -> Tensor:
        """What `module`, a fresh one or one called before, gives for this very tensor."""
        listening = Listening(drops)
        try:
            with _undisturbed(), listening:
                return self._answer(module, given)
        finally:
            self.narrow |= listening.narrow
            self.overwriting = listening.overwriting
            if changed := self._snapshot.changed():
                self.changed = changed
                self._snapshot.put_back()

    def give_first_values_back(self, used: Collection[int]) -> None:
        """Undo the drawing of parameters that ours has no use for, such as a temperature of 1.

        `used` are the identities of the others.
        """
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                if id(parameter) not in used:
                    parameter.copy_(self._first_values[name])
        self._first_values = {}  # A whole model's are large.
        self._snapshot = Snapshot(self.parameters)

    def no_parameter(self, shapes: Collection[tuple[int, ...]] | None = None) -> str:
        """Tensors of these shapes, or any, that may have been meant as parameters, in words."""
        either = {*shapes, *(shape[::-1] for shape in shapes)} if shapes is not None else None
        meant = [
            f"{name} {shape} is {what}"
            for name, (what, shape) in self._untrained.items()
            if either is None or shape in either
        ]
        return f"; {', '.join(meant[:3])}: only nn.Parameter is trained" if meant else ""

    def _answer(self, module: nn.Module, given: Tensor) -> Tensor:
        problem = ""
        for extra in _extras(given):
            try:
                return _tensor(module(given, *extra))
            except TypeError as error:
                problem = problem or str(error)
            except (Exception, SystemExit) as error:
                what = f"SystemExit: {error}" if isinstance(error, SystemExit) else str(error)
                raise BlocklabError(
                    f"{self.name} fails on an input of shape {tuple(given.shape)}: {what}"
                ) from error
        raise BlocklabError(f"{self.name} cannot be called with one tensor: {problem}")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """What is made inside is float64 too, and switches that a module throws are put back."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        torch.set_default_dtype(default)


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
