"""What a module does beside computing an answer: it overwrites, remembers, or throws dice."""

import torch
from torch import Tensor

from blocklab.comparison.learner import Learner
from blocklab.comparison.wiring import Mistake
from blocklab.errors import BlocklabError

DROPS = Mistake(
    "dropout-in-evaluation",
    "drops out in evaluation too: pass training=self.training, or use nn.Dropout",
    {},
)
RANDOM = Mistake(
    "random-in-evaluation",
    "answers otherwise every time in evaluation too, dropout apart: it draws random numbers, as a "
    "layer that is made inside forward does",
    {},
)
REMEMBERS = Mistake(
    "remembers-calls",
    "answers the same input otherwise the second time: it keeps something of the first call (a "
    "cache, a counter, running statistics)",
    {},
)
CHANGES_INPUT = Mistake(
    "changes-its-input",
    "changes the tensor that it is given, so that its caller goes on with another one: write "
    "x = x - …, which makes a new tensor, not x -= …, x[…] = … or x.relu_()",
    {},
)


def conduct(learner: Learner, x: Tensor) -> tuple[Mistake, ...]:
    """The mistakes that calling it shows, whatever it computes.

    Raises BlocklabError when it cannot be called.
    """
    found = [*_never_registered(learner)]
    with torch.no_grad():
        module, given = learner.fresh(), x.clone()
        first = learner.answer(module, given).clone()
        if not torch.equal(given, x):
            found.append(CHANGES_INPUT)
        if learner.changed:
            found.append(_changes(learner.changed))
        if not _same(first, learner(x)):
            found.append(RANDOM)
        elif not _same(first, _once_more(learner, module, x)):
            found.append(REMEMBERS)
        elif not _same(first, learner.answer(learner.fresh(), x.clone(), drops=True)):
            found.append(DROPS)
    return tuple(found)


def _once_more(learner: Learner, module: torch.nn.Module, x: Tensor) -> Tensor | None:
    """A second answer of a module that was called before; None where it fails now."""
    try:
        return learner.answer(module, x.clone())
    except BlocklabError:
        return None


def _same(first: Tensor, second: Tensor | None) -> bool:
    return second is not None and torch.equal(first.nan_to_num(), second.nan_to_num())


def _changes(names: tuple[str, ...]) -> Mistake:
    return Mistake(
        "changes-its-parameters",
        f"changes {shown(names)} when it is called: no optimiser knows of it, and evaluating it "
        "moves its weights; compute with a changed copy",
        {},
    )


def _never_registered(learner: Learner) -> list[Mistake]:
    if not learner.unregistered:
        return []
    return [
        Mistake(
            "modules-in-a-list",
            f"keeps modules in {shown(learner.unregistered)}, a list or dictionary of Python: its "
            "parameters are not found, so no optimiser trains them; use nn.ModuleList, "
            "nn.ModuleDict or nn.ParameterList",
            {},
        )
    ]


def shown(names: tuple[str, ...] | list[str]) -> str:
    """The first few of some names."""
    some = ", ".join(names[:4])
    return some if len(names) <= 4 else f"{some} and {len(names) - 4} more"
