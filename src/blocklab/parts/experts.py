"""Mixture of experts: a router sends each position through a few of many gated feed-forwards.

The experts' matrices are stacks, one tensor for all, so that a parameter never lacks a gradient
merely because one expert was idle. What keeps the router from favouring a few is a loss of its
own, `balancing_loss`, which training adds; this file computes it and adds nothing itself.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from blocklab.errors import BlocklabError
from blocklab.parts.activation import ACTIVATIONS, ActivationName
from blocklab.parts.feed_forward import FeedForwardConfig, Gated
from blocklab.parts.linear import Linear
from blocklab.parts.part import Spec, linear, part, under


@dataclass(frozen=True)
class Routing:
    """What one router did with N positions in a forward pass."""

    probabilities: Tensor
    """Of each of the E experts, mean over positions, (E,)."""
    chosen: Tensor
    """Share of positions sent to each expert, (E,); it sums to `n_active` and has no gradient."""
    coefficient: float
    """The record's `balance`."""


_watched: ContextVar[list[Routing] | None] = ContextVar("routing", default=None)


@contextmanager
def watched_routing() -> Iterator[list[Routing]]:
    """Every forward pass of experts inside adds its `Routing` to the list, in order."""
    seen: list[Routing] = []
    token = _watched.set(seen)
    try:
        yield seen
    finally:
        _watched.reset(token)


def balancing_loss(routing: Sequence[Routing]) -> Tensor:
    """E * sum of chosen share * probability, each the mean over layers (Fedus et al. 2021, eq. 4).

    It is n_active where all experts are used alike and grows as a few are favoured. All layers
    must have as many experts.
    """
    chosen = torch.stack([r.chosen for r in routing]).mean(0)
    probabilities = torch.stack([r.probabilities for r in routing]).mean(0)
    return len(chosen) * (chosen * probabilities).sum()


def weighted_balancing_loss(routing: Sequence[Routing]) -> Tensor | None:
    """What training adds: the balancing loss times its coefficient, None where nothing weighs.

    Layers with other numbers of experts, or other coefficients, are balanced among themselves.
    """
    groups: dict[tuple[int, float], list[Routing]] = defaultdict(list)
    for r in routing:
        if r.coefficient:
            groups[len(r.chosen), r.coefficient].append(r)
    losses = [coefficient * balancing_loss(alike) for (_, coefficient), alike in groups.items()]
    return torch.stack(losses).mean() if losses else None


@part("feed_forward", "experts")
class Experts(nn.Module):
    """Each position takes the `n_active` experts its router likes best (Shazeer et al. 2017).

    Experts are gated parts without biases, as in Mixtral (Jiang et al. 2024). Their outputs are
    added, weighted by the router's softmax over all experts, which `normalized` scales to sum to
    one over the chosen. A single one would then always weigh 1 and teach its router nothing, so by
    default it weighs what the softmax says (Fedus et al. 2021, eq. 2). `shared_d_ff` adds a gated
    part that every position passes (Dai et al. 2024), `shared_gate` a sigmoid on it. Shapes:
    (..., d_model) -> (..., d_model). The router decides in at least float32.
    """

    class Config(FeedForwardConfig):
        """`n_experts` of inner width `d_ff`, of which each position passes `n_active`.

        `activation`: what acts on their gates. `normalized`: the weights of the chosen ones sum to
        one. `shared_d_ff`: the inner width of a part that every position passes, with a sigmoid
        gate of its own where `shared_gate`. `balance`: the weight of the balancing loss.
        """

        kind: Literal["experts"] = "experts"
        n_experts: int = Field(8, gt=0)
        n_active: int = Field(2, gt=0)
        """Experts that each position passes."""
        d_ff: int | None = Field(None, gt=0)
        """Inner width of one expert; null means int(8 * d_model / 3 / n_active / 8) * 8: the
        active ones together have the parameters of one gated part."""
        activation: ActivationName = "silu"
        normalized: bool | None = None
        """Scale the weights of the chosen experts to sum to one; null means where `n_active` is
        more than one. With a single one its router learns from the balancing loss alone."""
        shared_d_ff: int | None = Field(None, gt=0)
        """Inner width of what every position passes; null means there is none."""
        shared_gate: bool = False
        balance: float = Field(0.01, ge=0)
        """Weight of the balancing loss in training."""

        @property
        def is_normalized(self) -> bool:
            """`normalized` after resolution."""
            return self.n_active > 1 if self.normalized is None else self.normalized

        def width(self, d_model: int) -> int:
            if self.n_active > self.n_experts:
                raise BlocklabError(
                    f"block.feed_forward.n_active: {self.n_active} of {self.n_experts} experts; "
                    "expected at most n_experts"
                )
            if self.shared_gate and self.shared_d_ff is None:
                raise BlocklabError(
                    "block.feed_forward.shared_gate: there is nothing shared to gate; "
                    "give shared_d_ff"
                )
            d_ff = self.d_ff or int(8 * d_model / 3 / self.n_active / 8) * 8
            if not d_ff:
                raise BlocklabError(
                    f"block.feed_forward.d_ff: d_model {d_model} is too small for the rule "
                    "int(8 * d_model / 3 / n_active / 8) * 8; give d_ff"
                )
            return d_ff

        def parameters(self, d_model: int) -> dict[str, Spec]:  # type: ignore[override]
            d_ff = self.width(d_model)
            specs = {
                "experts_expand": Spec((self.n_experts, 2 * d_ff, d_model), "matrix"),
                "experts_contract": Spec((self.n_experts, d_model, d_ff), "writer"),
            }
            specs |= linear("router", d_model, self.n_experts, bias=False)
            if self.shared_d_ff is not None:
                specs |= under("shared", self._shared(self.shared_d_ff).parameters(d_model))
            if self.shared_gate:
                specs |= linear("shared_gate", d_model, 1, bias=False)
            return specs

        def matrix_parameters(self, d_model: int) -> int:  # type: ignore[override]
            """Those that one token meets: of the experts only the active ones."""
            everything = super().matrix_parameters(d_model)
            return everything - (self.n_experts - self.n_active) * 3 * self.width(d_model) * d_model

        def _shared(self, d_ff: int) -> Gated.Config:
            return Gated.Config(d_ff=d_ff, activation=self.activation, bias=False)

    def __init__(self, d_model: int, config: Config) -> None:
        super().__init__()
        d_ff = config.width(d_model)
        self.activation = ACTIVATIONS[config.activation]
        self.n_active, self.normalized = config.n_active, config.is_normalized
        self.balance = config.balance
        self.experts_expand = _stack(config.n_experts, 2 * d_ff, d_model)
        self.experts_contract = _stack(config.n_experts, d_model, d_ff)
        self.router = Linear(d_model, config.n_experts, bias=False)
        self.shared: nn.Module | None = None
        if config.shared_d_ff is not None:
            self.shared = config._shared(config.shared_d_ff).build(d_model)
        self.shared_gate = Linear(d_model, 1, bias=False) if config.shared_gate else None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)  # (N, d_model)
        weights, chosen = self._route(rows)  # each (N, n_active)
        y = self._mixed(rows, weights, chosen).view_as(x)
        if self.shared is None:
            return y
        shared: Tensor = self.shared(x)
        if self.shared_gate is not None:
            shared = torch.sigmoid(self.shared_gate(x)) * shared
        return y + shared

    def _route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        wide = rows if rows.dtype == torch.float64 else rows.float()
        # Autocast would round the logits, and what is nearly a tie decides who is trained.
        with torch.autocast(rows.device.type, enabled=False):
            logits = F.linear(wide, self.router.weight.to(wide.dtype))  # (N, n_experts)
        probabilities = logits.softmax(-1)
        weights, chosen = probabilities.topk(self.n_active, dim=-1)
        watching = _watched.get()
        if watching is not None:
            share = F.one_hot(chosen, probabilities.shape[-1]).sum(1).to(wide.dtype).mean(0)
            watching.append(Routing(probabilities.mean(0), share, self.balance))
        if self.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(rows.dtype), chosen

    def _mixed(self, rows: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The chosen experts' outputs, weighted and added: (N, d_model) -> (N, d_model)."""
        mixed = torch.zeros_like(rows)
        order = chosen.flatten().argsort(stable=True)  # positions in the order of their expert
        counts = chosen.flatten().bincount(minlength=len(self.experts_expand)).tolist()
        places = torch.split(order // self.n_active, counts)
        shares = torch.split(weights.flatten()[order], counts)
        for expert, (place, share) in enumerate(zip(places, shares, strict=True)):
            if not len(place):
                continue
            gate, value = F.linear(rows[place], self.experts_expand[expert]).chunk(2, dim=-1)
            out = F.linear(self.activation(gate) * value, self.experts_contract[expert])
            mixed = mixed.index_add(0, place, out * share[:, None])
        return mixed


def _stack(n_experts: int, d_out: int, d_in: int) -> nn.Parameter:
    """One matrix an expert, constructed as `nn.Linear` constructs its own."""
    bound = d_in**-0.5
    return nn.Parameter(torch.empty(n_experts, d_out, d_in).uniform_(-bound, bound))
