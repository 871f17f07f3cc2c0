"""Broken parts and optimisers, registered under kinds that only tests know; see `planted`."""

import itertools
import random
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

import blocklab as bl
from blocklab.model.block import StandardBlock
from blocklab.parts import MLP, Add, CausalAttention, LayerNorm, NoPositions, NoResidual, Rotary
from blocklab.training.optimizer import AdamW, Group


def own(slot: str, name: str, base: type[nn.Module] = nn.Module) -> Callable[[type], type]:
    """Register a class derived from one of ours under `planted-NAME`, with the record of ours."""
    kind = f"planted-{name}"

    def register(module: type) -> type:
        fields = {"kind": kind, "__annotations__": {"kind": Literal[kind]}}
        module.Config = type("Config", (base.Config,), {**fields, "__module__": __name__})
        return bl.part(slot, kind)(module)

    return register


# Flags and kinds that change nothing.


@bl.part("norm", "planted-ignores-its-flag")
class IgnoresItsFlag(nn.Module):
    def __init__(self, d: int, strength: float = 1.0) -> None:
        super().__init__()
        self.inner = nn.LayerNorm(d)

    def forward(self, x):
        return self.inner(x)


@bl.part("norm", "planted-rms-again")
class RMSAgain(nn.Module):
    """RMSNorm under another kind, its gain under another name."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.rms_norm(x, self.gain.shape, self.gain, 1e-6)


class TwoNumbers(nn.Module):
    def __init__(self, d_model: int, config: bl.parts.ResidualConfig) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.ones(1, 2))

    def forward(self, stream, branch):
        return self.scales[0, 0] * stream + self.scales[0, 1] * branch


def _two_numbers(kind: str, role: bl.parts.Role) -> None:
    def parameters(self, d_model):
        return {"scales": bl.parts.Spec((1, 2), role)}

    record = {"kind": kind, "__annotations__": {"kind": Literal[kind]}, "parameters": parameters}
    module = type(f"TwoNumbers{role}", (TwoNumbers,), {"__module__": __name__})
    module.Config = type("Config", (bl.parts.ResidualConfig,), record | {"__module__": __name__})
    bl.part("residual", kind)(module)


# One decays, the other does not; they are no fault.
_two_numbers("planted-decayed", "other")
_two_numbers("planted-undecayed", "gain")


# Parts left out, parameters that nothing reaches.


@own("block", "forgets-its-norm", StandardBlock)
class ForgetsItsNorm(StandardBlock):
    def __init__(self, d_model, config):
        super().__init__(d_model, config)
        self.spare = bl.parts.NoNorm.Config().build(d_model)


@own("feed_forward", "unused-parameter", MLP)
class UnusedParameter(MLP):
    def __init__(self, d_model, config):
        super().__init__(d_model, config)
        self.temperature = nn.Parameter(torch.ones(1))


# Said by reading the built module, since the record of ours does not know of the new one.
UnusedParameter.Config.parameters = bl.parts.PartConfig.parameters


@own("feed_forward", "detached", MLP)
class Detached(MLP):
    def forward(self, x):
        with torch.no_grad():
            h = self.activation(self.expand(x))
        return self.contract(h)


@own("block", "cuts-the-stream", StandardBlock)
class CutsTheStream(StandardBlock):
    """Each block learns, and nothing before it."""

    def forward(self, x, context):
        return super().forward(x.detach(), context)


# The future.


@own("attention", "sees-all", CausalAttention)
class SeesAll(CausalAttention):
    def _attend(self, queries, keys, values, context):
        return F.scaled_dot_product_attention(queries, keys, values, scale=self.scale)


@own("attention", "one-too-late", CausalAttention)
class OneTooLate(CausalAttention):
    """The causal triangle with its diagonal one further."""

    def _attend(self, queries, keys, values, context):
        n = queries.shape[2]
        mask = torch.ones(n, n, dtype=torch.bool).tril(1)
        return F.scaled_dot_product_attention(queries, keys, values, mask, scale=self.scale)


@bl.part("norm", "planted-batch-norm")
class OverTheBatch(nn.Module):
    """Statistics of all places together: in training only, so that an evaluation looks causal."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.inner = nn.BatchNorm1d(d)

    def forward(self, x):
        return self.inner(x.flatten(0, -2)).view_as(x)


@bl.part("feed_forward", "planted-looks-ahead")
class LooksAhead(nn.Module):
    """A convolution over places, padded on the wrong side."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inward = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.inward(x + F.pad(x, (0, 0, 0, 1))[:, 1:])


# Windows, positions, residuals, norms that break their promise.


@own("attention", "one-key-more", CausalAttention)
class OneKeyMore(CausalAttention):
    """A window of W that sees W + 1."""

    def __init__(self, d_model, config):
        super().__init__(d_model, config)
        self.window = self.window and self.window + 1


@own("positions", "none-counts-anyway", NoPositions)
class NoneCountsAnyway(NoPositions):
    """Positions that are off, and fall back to a count of the places."""

    def embed(self, positions):
        return 0.1 * positions[:, None].float()


@own("positions", "none-turns-anyway", NoPositions)
class NoneTurnsAnyway(Rotary):
    """The public fault: positions `none` equal to rotary ones to four digits."""

    def __init__(self, d_model, context_length, config):
        super().__init__(d_model, context_length, Rotary.Config())


@own("positions", "never-turns", Rotary)
class NeverTurns(Rotary):
    def rotate(self, x, tables):
        return x


@own("residual", "none-adds-anyway", NoResidual)
class NoneAddsAnyway(NoResidual):
    def forward(self, stream, branch):
        return 0.5 * stream + branch


@own("residual", "add-forgets", Add)
class AddForgets(Add):
    def forward(self, stream, branch):
        return branch + branch


@own("norm", "keeps-the-mean", LayerNorm)
class KeepsTheMean(LayerNorm):
    def forward(self, x):
        return x / (x.var(-1, keepdim=True, unbiased=False) + self.eps).sqrt() * self.weight


@own("norm", "divides-by-d-less-one", LayerNorm)
class DividesByDLessOne(LayerNorm):
    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (x.var(-1, keepdim=True) + self.eps).sqrt() * self.weight


# Randomness.


@own("feed_forward", "always-drops", MLP)
class AlwaysDrops(MLP):
    """Functional dropout, which does not know of evaluation."""

    def forward(self, x):
        return F.dropout(super().forward(x), 0.1)


@own("feed_forward", "own-dice", MLP)
class OwnDice(MLP):
    def forward(self, x):
        return super().forward(x) * (1 + random.random() * self.training)


# Differences that nothing declares.

_built = itertools.count()


@own("feed_forward", "counts-itself", MLP)
class CountsItself(MLP):
    """Carries something from one model into the next."""

    def __init__(self, d_model, config):
        super().__init__(d_model, config)
        self.number = next(_built)


@own("residual", "starts-anywhere", Add)
class StartsAnywhere(Add):
    def __init__(self, d_model, config):
        super().__init__(d_model, config)
        self.gate = nn.Parameter(torch.tensor([1 + random.random()]))

    def forward(self, stream, branch):
        return stream + self.gate * branch


StartsAnywhere.Config.parameters = bl.parts.PartConfig.parameters


# Optimisers.


class MissesGains(AdamW):
    kind: Literal["planted-misses-gains"] = "planted-misses-gains"

    def groups(self, parameters):
        return super().groups([p for p in parameters if p.is_matrix])


class TwoAlgorithms(AdamW):
    """As when hidden matrices are looked for under a role that none has."""

    kind: Literal["planted-two-algorithms"] = "planted-two-algorithms"

    def groups(self, parameters):
        hidden = [p for p in parameters if p.role == "hidden"]
        return [Group("hidden", "muon", 0.0, hidden), *super().groups(parameters)]


class DecaysNothing(AdamW):
    kind: Literal["planted-decays-nothing"] = "planted-decays-nothing"

    def groups(self, parameters):
        return [
            Group("matrices", "adamw", self.weight_decay, []),
            Group("the rest", "adamw", 0.0, parameters),
        ]


for optimizer in (MissesGains, TwoAlgorithms, DecaysNothing):
    optimizer.register(optimizer.model_fields["kind"].default)
