"""Looking at a model without changing it: evaluation mode, its own mode given back afterwards."""

from types import TracebackType

from torch import nn


class Evaluating:
    """A context in which a model is in evaluation mode; after it each module is as it was before.

    The modules are listed once, so that entering it again for every token costs next to nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = tuple(model.modules())
        self._training: list[nn.Module] = []

    def __enter__(self) -> None:
        self._training = [module for module in self._modules if module.training]
        for module in self._training:
            module.training = False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for module in self._training:
            module.training = True


def evaluating(model: nn.Module) -> Evaluating:
    """Evaluation mode inside; afterwards every module is in the mode it was in before."""
    return Evaluating(model)
