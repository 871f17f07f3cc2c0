"""The arithmetic of an update: parameters, their gradients and what a rule remembers of each.

The functions behind PyTorch's optimisers do it. Their classes are left out: to make one imports
PyTorch's compiler, most of a second in every process that trains, and each step costs more.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim._muon import muon
from torch.optim.adam import adam
from torch.optim.sgd import sgd

State: TypeAlias = dict[str, Tensor]


class Step(NamedTuple):
    """What parameters are updated by: entries of the lists belong together."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    states: list[State]
    rate: float
    decay: float

    def remembered(self, name: str) -> list[Tensor]:
        return [state[name] for state in self.states]

    def tensors(self) -> Iterator[Tensor]:
        """What an update changes."""
        yield from self.parameters
        for state in self.states:
            yield from state.values()

    def through(self, read: Callable[[Tensor], Tensor]) -> "Step":
        """The same step of what `read` gives for each tensor."""
        return self._replace(
            parameters=[read(parameter) for parameter in self.parameters],
            gradients=[read(gradient) for gradient in self.gradients],
            states=[{name: read(t) for name, t in state.items()} for state in self.states],
        )


class UpdateRule(Protocol):
    """One algorithm. Its updates act in place, on parameters and on what it remembers of them."""

    by_element: ClassVar[bool]
    """Whether each number is updated by itself, so that parts of a tensor can be apart."""

    def fresh(self, parameter: nn.Parameter) -> State:
        """What is remembered of a parameter that was never updated."""
        ...

    def update(self, step: Step) -> None:
        """Take it. Call it without gradients being recorded."""
        ...


@dataclass(frozen=True)
class DecoupledAdam:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    by_element: ClassVar[bool] = True

    betas: tuple[float, float]
    eps: float

    def fresh(self, parameter: nn.Parameter) -> State:
        # Where PyTorch counts steps: a fused kernel beside the parameter, all others apart.
        device = parameter.device if _can_fuse([parameter]) else "cpu"
        return {
            "step": torch.zeros((), dtype=torch.float32, device=device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }

    def update(self, step: Step) -> None:
        adam(
            step.parameters,
            step.gradients,
            step.remembered("exp_avg"),
            step.remembered("exp_avg_sq"),
            [],
            step.remembered("step"),
            fused=_can_fuse(step.parameters) or None,
            decoupled_weight_decay=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=step.rate,
            weight_decay=step.decay,
            eps=self.eps,
            maximize=False,
        )


@dataclass(frozen=True)
class GradientDescent:
    """Gradient descent with momentum; the decay is added to the gradient."""

    by_element: ClassVar[bool] = True

    momentum: float
    nesterov: bool

    def fresh(self, parameter: nn.Parameter) -> State:
        return {"momentum_buffer": torch.zeros_like(parameter)} if self.momentum else {}

    def update(self, step: Step) -> None:
        buffers: list[Tensor | None] = []
        if self.momentum:
            buffers += step.remembered("momentum_buffer")
        sgd(
            step.parameters,
            step.gradients,
            buffers,
            fused=_can_fuse(step.parameters) or None,
            weight_decay=step.decay,
            momentum=self.momentum,
            lr=step.rate,
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
        )


@dataclass(frozen=True)
class OrthogonalizedMomentum:
    """Muon (Jordan et al. 2024), for matrices."""

    by_element: ClassVar[bool] = False

    momentum: float
    nesterov: bool
    ns_steps: int
    adjust_lr_fn: Literal["original", "match_rms_adamw"]

    def fresh(self, parameter: nn.Parameter) -> State:
        return {"momentum_buffer": torch.zeros_like(parameter)}

    def update(self, step: Step) -> None:
        muon(
            step.parameters,
            step.gradients,
            step.remembered("momentum_buffer"),
            lr=step.rate,
            weight_decay=step.decay,
            momentum=self.momentum,
            nesterov=self.nesterov,
            ns_coefficients=NEWTON_SCHULZ,
            ns_steps=self.ns_steps,
            eps=1e-7,
            adjust_lr_fn=self.adjust_lr_fn,
            has_complex=False,
        )


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Jordan's coefficients of the quintic iteration."""


def _can_fuse(tensors: Sequence[Tensor]) -> bool:
    """A fused AdamW takes a fifth of the time of one tensor at a time (measured on two cores)."""
    return all(t.device.type in ("cpu", "cuda") and t.is_floating_point() for t in tensors)
