"""Broken parts and broken plans, each a fault that others shipped, to be caught by name.

Every `Planted` is one study that must be refused: what its baseline and its variant set, and the
words of the error that finds it. Parts are registered under kinds that only tests know.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

import blocklab as bl
from blocklab.model.block import StandardBlock
from blocklab.parts import MLP, Add, CausalAttention, LayerNorm, NoPositions, NoResidual, Rotary
from blocklab.study.plan import Plan, plan
from blocklab.training.optimizer import AdamW, Group
from tests.study.test_study import TEXT, minimal


@dataclass(frozen=True)
class Planted:
    """One fault."""

    name: str
    changes: dict[str, Any]
    """What the variant `planted` declares."""
    words: str
    """A pattern of the error's text after the variant's name."""
    baseline: dict[str, Any] = field(default_factory=dict)
    doctor: Callable[[Plan], Plan] = lambda planned: planned
    """What is done to the plan before it is looked at."""

    def plan(self) -> Plan:
        baseline = {"preset": "modern", "d_model": 32, "n_layers": 2, "n_heads": 2}
        study = minimal(
            baseline=baseline | {"context_length": 32, "set": self.baseline},
            variants={"planted": self.changes},
        )
        return self.doctor(plan(study, TEXT))


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


def with_more_heads(planned: Plan) -> Plan:
    baseline, variant, *rest = planned.arms
    config = variant.config.with_changes({"block.attention.n_heads": 4})
    return replace(planned, arms=(baseline, replace(variant, config=config), *rest))


def with_less_clipping(planned: Plan) -> Plan:
    baseline, variant, *rest = planned.arms
    training = variant.training.model_copy(update={"clip": 5.0})
    return replace(planned, arms=(baseline, replace(variant, training=training), *rest))


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


PLANTED = (
    Planted(
        "a flag that its part ignores",
        {"block.norm.strength": 5.0},
        r"takes no effect",
        baseline={"block.norm": {"kind": "planted-ignores-its-flag"}},
    ),
    Planted(
        "a flag that is ignored beside one that is not",
        {"block.norm": {"kind": "planted-ignores-its-flag"}, "block.norm.strength": 5.0},
        r"'block\.norm\.strength: 5\.0' takes no effect",
    ),
    Planted(
        "an evaluation on the way, which trains nothing else",
        {"training.evaluate_every": 5},
        r"the training does not.*takes no effect",
    ),
    Planted("the kind that stands there", {"block.norm.kind": "rms"}, r"does not differ"),
    Planted(
        "the same norm under another kind and name",
        {"block.norm": {"kind": "planted-rms-again"}},
        r"takes no effect",
    ),
    Planted(
        "a part that is never called",
        {"block.kind": "planted-forgets-its-norm"},
        r"blocks\.0\.spare is built but never called",
    ),
    Planted(
        "a parameter that nothing uses",
        {"block.feed_forward.kind": "planted-unused-parameter"},
        r"no gradient reaches blocks\.0\.feed_forward\.temperature",
    ),
    Planted(
        "a branch cut out of the graph",
        {"block.feed_forward.kind": "planted-detached"},
        r"no gradient reaches .*blocks\.0\.feed_forward\.expand\.weight",
    ),
    Planted(
        "a branch scaled away",
        {"block.residual": {"kind": "scaled", "scale": 0.0}},
        r"no gradient reaches .* and \d+ more",
    ),
    Planted(
        "attention without a mask",
        {"block.attention.kind": "planted-sees-all"},
        r"blocks\.0\.attention: with no window the query at place 16 sees 32 keys.*expected 17",
    ),
    Planted(
        "a mask one place too late",
        {"block.attention.kind": "planted-one-too-late"},
        r"blocks\.0\.attention: .* sees 18 keys \(places 0 to 17\), expected 17",
    ),
    Planted(
        "a norm over the batch",
        {"block.norm.kind": "planted-batch-norm"},
        r"blocks\.0\.norm\.attention sees the future: in training",
    ),
    Planted(
        "a convolution padded on the wrong side",
        {"block.feed_forward.kind": "planted-looks-ahead"},
        r"blocks\.0\.feed_forward sees the future",
    ),
    Planted(
        "a window of one key too many",
        {"block.attention": {"kind": "planted-one-key-more", "n_heads": 2, "window": 4}},
        r"with a window of 4 the query at place 16 sees 5 keys",
    ),
    Planted(
        "positions none that count anyway",
        {"positions.kind": "planted-none-counts-anyway"},
        r"logits of a repeated token differ from place to place",
    ),
    Planted(
        "positions none that turn anyway",
        {"positions.kind": "planted-none-turns-anyway"},
        r"notices in which order",
    ),
    Planted(
        "rotary positions that never turn",
        {"positions.kind": "planted-never-turns"},
        r"positions 'planted-never-turns' do nothing at blocks\.0\.attention",
    ),
    Planted(
        "residual none that adds anyway",
        {"block.residual.kind": "planted-none-adds-anyway"},
        r"the identity path is not gone",
    ),
    Planted(
        "a residual that forgets the stream",
        {"block.residual.kind": "planted-add-forgets"},
        r"nothing of the stream comes through",
    ),
    Planted(
        "a LayerNorm that keeps the mean",
        {"block.norm": {"kind": "planted-keeps-the-mean", "bias": False}},
        r"blocks\.0\.norm\.attention does not normalise.*mean is off 0",
    ),
    Planted(
        "a variance divided by d - 1",
        {"block.norm": {"kind": "planted-divides-by-d-less-one", "bias": False}},
        r"does not normalise.*variance off 1 by 0\.03",
    ),
    Planted(
        "dropout that stays on in evaluation",
        {"block.feed_forward.kind": "planted-always-drops"},
        r"two evaluations differ",
    ),
    Planted(
        "random numbers of its own",
        {"block.feed_forward.kind": "planted-own-dice"},
        r"two training passes from one seed differ",
    ),
    Planted(
        "a module that changes from model to model",
        {"block.norm.eps": 1e-3},
        r"modules of blocks\.0\.feed_forward, blocks\.1\.feed_forward, which nothing .* explains",
        baseline={"block.feed_forward": {"kind": "planted-counts-itself"}},
    ),
    Planted(
        "first values drawn from elsewhere",
        {"block.norm.eps": 1e-3},
        r"first values of blocks\.0\.residual\.attention\.gate, .* and 1 more",
        baseline={"block.residual": {"kind": "planted-starts-anywhere"}},
    ),
    Planted(
        "a change of the model that is not declared",
        {"block.norm.eps": 1e-3},
        r"differs from the baseline in block\.attention\.n_heads too",
        doctor=with_more_heads,
    ),
    Planted(
        "a change of the training that is not declared",
        {"block.norm.eps": 1e-3},
        r"differs from the baseline in training\.clip too",
        doctor=with_less_clipping,
    ),
    Planted(
        "an optimiser that misses the gains",
        {"training.optimizer": {"kind": "planted-misses-gains"}},
        r"not in exactly one group: blocks\.0\.norm\.attention\.weight",
    ),
    Planted(
        "an algorithm that gets nothing",
        {"training.optimizer": {"kind": "planted-two-algorithms"}},
        r"muon gets none of \d+ parameters",
    ),
    Planted(
        "a decay that touches nothing",
        {"training.optimizer": {"kind": "planted-decays-nothing"}},
        r"group 'matrices' decays by 0\.1 but is empty",
    ),
    Planted(
        "a head drawn so large that it begins far above chance",
        {"initialization.head_std": 1.0},
        r"loss at step 0 is \d+\.\d\d nats, more than 1 above ln V = 6\.24",
    ),
)
