"""Broken parts and broken plans, each a fault that others shipped, to be caught by name.

Every `Planted` is one study that must be refused: what its baseline and its variant set, and the
words of the error that finds it. The parts are in `planted_parts`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from blocklab.study.plan import Plan, plan
from tests.study import planted_parts  # noqa: F401  (registers the kinds)
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


def with_more_heads(planned: Plan) -> Plan:
    baseline, variant, *rest = planned.arms
    config = variant.config.with_changes({"block.attention.n_heads": 4})
    return replace(planned, arms=(baseline, replace(variant, config=config), *rest))


def with_less_clipping(planned: Plan) -> Plan:
    baseline, variant, *rest = planned.arms
    training = variant.training.model_copy(update={"clip": 5.0})
    return replace(planned, arms=(baseline, replace(variant, training=training), *rest))


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
        "blocks cut from one another",
        {"block.kind": "planted-cuts-the-stream"},
        r"no gradient reaches embedding\.weight, blocks\.0\.norm\.attention\.weight",
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
        r"two evaluations differ at blocks\.0\.feed_forward",
    ),
    Planted(
        "random numbers of its own",
        {"block.feed_forward.kind": "planted-own-dice"},
        r"two training passes from one seed differ at blocks\.0\.feed_forward",
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
