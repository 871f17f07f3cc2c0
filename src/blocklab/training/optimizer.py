"""Optimisers: which parameter is updated by what, at which rate, with how much weight decay.

Groups are made by role and cover every trainable parameter exactly once. The state is read and
written by parameter path, so that a run resumes bit for bit. Not for schedules: a step is told its
factor.
"""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from blocklab.errors import BlocklabError, nearest
from blocklab.model.transformer import Transformer
from blocklab.record import Tagged
from blocklab.training.spread import is_spread, part_here, placed_like, total_norm, whole
from blocklab.training.update_rules import (
    DecoupledAdam,
    GradientDescent,
    OrthogonalizedMomentum,
    State,
    Step,
    UpdateRule,
)

MATRIX_ROLES = frozenset({"embedding", "position", "matrix", "writer", "head"})
ROLES = MATRIX_ROLES | {"gain", "bias", "other"}

Fraction = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, eq=False)
class NamedParameter:
    """A parameter with its path in the model and its role (see `blocklab.parts.part`)."""

    path: str
    role: str
    parameter: nn.Parameter

    @property
    def is_matrix(self) -> bool:
        """Whether weight decay is meant for it: never a norm's gain, never a bias."""
        return self.role in MATRIX_ROLES or (self.role == "other" and self.parameter.ndim >= 2)


def named_parameters(model: Transformer) -> list[NamedParameter]:
    """Every distinct parameter with its path and role, in module order."""
    specs = model.config.parameters()
    return [NamedParameter(path, specs[path].role, p) for path, p in model.named_parameters()]


class GroupSummary(NamedTuple):
    """One group as it is printed."""

    name: str
    optimizer: str
    decay: float
    n_tensors: int
    n_parameters: int


@dataclass(frozen=True)
class Group:
    """Parameters that are updated alike, at `ratio` times the peak rate."""

    name: str
    optimizer: str
    decay: float
    members: Sequence[NamedParameter]
    ratio: float = 1.0

    @property
    def summary(self) -> GroupSummary:
        size = sum(member.parameter.numel() for member in self.members)
        return GroupSummary(self.name, self.optimizer, self.decay, len(self.members), size)


class OptimizerConfig(Tagged):
    """Decay touches matrices only; `decay_everything` is for published runs that did otherwise."""

    slot: ClassVar[str] = "optimizer"
    default_kind: ClassVar[str] = "adamw"

    weight_decay: float = Field(0.1, ge=0)
    decay_everything: bool = False

    def groups(self, parameters: Sequence[NamedParameter]) -> list[Group]:
        """A group for every parameter; a group may be empty."""
        return self._by_decay(parameters, self.kind)

    @abstractmethod
    def rule(self, algorithm: str) -> UpdateRule:
        """The algorithm that a group names."""

    def _by_decay(
        self, parameters: Sequence[NamedParameter], algorithm: str, ratio: float = 1.0
    ) -> list[Group]:
        if self.decay_everything:
            return [Group("everything", algorithm, self.weight_decay, parameters, ratio)]
        matrices = [p for p in parameters if p.is_matrix]
        vectors = [p for p in parameters if not p.is_matrix]
        return [
            Group("matrices", algorithm, self.weight_decay, matrices, ratio),
            Group("gains and biases", algorithm, 0.0, vectors, ratio),
        ]


class _WithAdam(OptimizerConfig):
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)

    def rule(self, algorithm: str) -> UpdateRule:
        return DecoupledAdam(self.betas, self.eps)


class AdamW(_WithAdam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), fused where torch can."""

    kind: Literal["adamw"] = "adamw"


class SGD(OptimizerConfig):
    """Gradient descent with momentum; the decay is added to the gradient, as torch does."""

    kind: Literal["sgd"] = "sgd"
    weight_decay: float = Field(0.0, ge=0)
    momentum: Fraction = 0.9
    nesterov: bool = False

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self

    def rule(self, algorithm: str) -> UpdateRule:
        return GradientDescent(self.momentum, self.nesterov)


class Muon(_WithAdam):
    """Orthogonalised momentum for hidden matrices (Jordan et al. 2024), AdamW for all the rest.

    Embeddings, positions, the head, vectors and stacks of expert matrices go to AdamW, at
    `adamw_ratio` times the rate. `match_rms_adamw` (Liu et al. 2025) scales a matrix's update to
    the size of AdamW's, so that both share a rate; `original` is Jordan's scaling.
    """

    kind: Literal["muon"] = "muon"
    momentum: Fraction = 0.95
    nesterov: bool = True
    ns_steps: int = Field(5, ge=1, lt=100)
    adjust_lr_fn: Literal["original", "match_rms_adamw"] = "match_rms_adamw"
    adamw_ratio: float = Field(1.0, gt=0)

    def groups(self, parameters: Sequence[NamedParameter]) -> list[Group]:
        hidden = [p for p in parameters if p.role in ("matrix", "writer") and p.parameter.ndim == 2]
        if not hidden:
            found = f"none of {len(parameters)} parameters is a hidden matrix; choose adamw"
            raise BlocklabError(f"optimizer: muon would get nothing: {found}")
        rest = [p for p in parameters if p not in hidden]
        own = Group("hidden matrices", "muon", self.weight_decay, hidden)
        return [own, *self._by_decay(rest, "adamw", self.adamw_ratio)]

    def rule(self, algorithm: str) -> UpdateRule:
        if algorithm == "adamw":
            return super().rule(algorithm)
        return OrthogonalizedMomentum(
            self.momentum, self.nesterov, self.ns_steps, self.adjust_lr_fn
        )


AdamW.register("adamw")
SGD.register("sgd")
Muon.register("muon")


class Optimizer:
    """Groups of parameters, each with the rule that updates it and what that remembers."""

    def __init__(self, config: OptimizerConfig, groups: Sequence[Group], rate: float) -> None:
        self.groups = tuple(group.summary for group in groups)
        self._rate = rate
        self._ruled = [(config.rule(group.optimizer), group) for group in groups]
        self._states: dict[str, State] = {}

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Update every parameter that has a gradient, at `factor` times its group's peak rate."""
        for rule, group in self._ruled:
            due = [
                (member, gradient)
                for member in group.members
                if (gradient := member.parameter.grad) is not None
            ]
            if due:
                step = Step(
                    [member.parameter for member, _ in due],
                    [gradient for _, gradient in due],
                    [self._state_of(member, rule) for member, _ in due],
                    rate=self._rate * group.ratio * factor,
                    decay=group.decay,
                )
                _updated(rule, step)

    def zero_grad(self) -> None:
        for _, member in self._members():
            member.parameter.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """The state as `name/path` -> tensor, not copied; empty before the first step."""
        return {
            f"{name}/{member.path}": tensor
            for _, member in self._members()
            for name, tensor in self._states.get(member.path, {}).items()
        }

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the state by copies of `tensors`; BlocklabError, and no change, on a misfit."""
        by_path: dict[str, list[str]] = {}
        for key in tensors:
            by_path.setdefault(key.partition("/")[2], []).append(key)
        fresh: dict[str, State] = {}
        for rule, member in self._members():
            # One parameter's at a time: they may be on their way from elsewhere.
            given = {key.partition("/")[0]: tensors[key] for key in by_path.pop(member.path, [])}
            fresh[member.path] = _checked(rule, member, given)
        if by_path:
            raise BlocklabError(f"optimiser state for unknown parameter '{min(by_path)}'")
        self._states = {path: state for path, state in fresh.items() if state}

    def _state_of(self, member: NamedParameter, rule: UpdateRule) -> State:
        if member.path not in self._states:
            self._states[member.path] = rule.fresh(member.parameter)
        return self._states[member.path]

    def _members(self) -> Iterator[tuple[UpdateRule, NamedParameter]]:
        for rule, group in self._ruled:
            yield from ((rule, member) for member in group.members)


def build_optimizer(
    config: OptimizerConfig, parameters: Sequence[NamedParameter], learning_rate: float
) -> Optimizer:
    """The optimiser of `config` for every parameter that requires a gradient (a tied one: once).

    Raises BlocklabError unless each is in exactly one group, and Muon gets something.
    """
    if not 0 < learning_rate < math.inf:
        raise BlocklabError(f"learning_rate: expected a number above 0, found {learning_rate}")
    groups = checked_groups(config, parameters)
    return Optimizer(config, [group for group in groups if group.members], learning_rate)


def checked_groups(config: OptimizerConfig, parameters: Sequence[NamedParameter]) -> list[Group]:
    """The groups of every parameter that requires a gradient, empty ones too.

    Raises BlocklabError unless each is in exactly one, and Muon gets something.
    """
    _require_distinct(parameters)
    trained = [p for p in parameters if p.parameter.requires_grad]
    if not trained:
        raise BlocklabError(f"optimizer: none of {len(parameters)} parameters requires a gradient")
    groups = config.groups(trained)
    placed = Counter(member.path for group in groups for member in group.members)
    if placed != Counter(p.path for p in trained):
        wrong = ", ".join(p.path for p in trained if placed[p.path] != 1)
        raise BlocklabError(f"optimizer: not in exactly one group: {wrong}")
    return groups


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float) -> float:
    """Scale the gradients together to a norm of at most `limit`; gives the norm before.

    A norm that is not finite leaves them alone, so that the first bad one can still be found.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = total_norm(gradients)
    if limit < norm < math.inf:
        torch._foreach_mul_(gradients, limit / norm)
    return norm


def _require_distinct(parameters: Sequence[NamedParameter]) -> None:
    seen: dict[int | str, str] = {}
    for p in parameters:
        if p.role not in ROLES:
            raise BlocklabError(f"{p.path}: unknown role '{p.role}'; {nearest(p.role, ROLES)}")
        first = seen.get(id(p.parameter), seen.get(p.path))
        if first is not None:
            raise BlocklabError(
                f"optimizer: '{p.path}' is listed already, as '{first}'; list a tied tensor once"
            )
        seen |= {id(p.parameter): p.path, p.path: p.path}


def _checked(rule: UpdateRule, member: NamedParameter, state: State) -> State:
    """Copies of one parameter's state, where its rule has it. None at all: it was never updated."""
    if not state:
        return {}
    expected = rule.fresh(member.parameter)
    fits = set(state) == set(expected)
    if not fits or any(state[name].shape != expected[name].shape for name in expected):
        found = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in state.items())
        raise BlocklabError(
            f"optimiser state of '{member.path}': expected {', '.join(sorted(expected)) or 'none'} "
            f"of shape {tuple(member.parameter.shape)}, found {found}; was it saved by another "
            "optimiser or model?"
        )
    return {name: placed_like(tensor, expected[name]) for name, tensor in state.items()}


def _updated(rule: UpdateRule, step: Step) -> None:
    """Take a step whose tensors may be spread over several processes."""
    if not any(is_spread(parameter) for parameter in step.parameters):
        rule.update(step)
        return
    if rule.by_element:
        rule.update(step.through(part_here))
        return
    # Every process takes the whole step, and keeps its parts of what comes out.
    taken = step.through(whole)
    rule.update(taken)
    for kept, found in zip(step.tensors(), taken.tensors(), strict=True):
        kept.copy_(placed_like(found, kept))
