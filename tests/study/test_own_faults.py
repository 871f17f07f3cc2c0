"""A part of the user's own is refused with a reason that is true, and let through without one."""

import random
from typing import Literal

import pytest
import torch
from torch import nn

import blocklab as bl
from blocklab.model.transformer import Transformer
from blocklab.record import Tagged
from blocklab.study import part_probes, probes
from blocklab.study.liveness import require_differences
from blocklab.study.own_faults import unnamed_writers
from blocklab.study.plan import plan
from tests.study.test_study import TEXT, minimal


@pytest.fixture(autouse=True)
def _own_parts_are_forgotten(monkeypatch):
    kinds = {slot: dict(of_slot) for slot, of_slot in Tagged._kinds.items()}
    monkeypatch.setattr(Tagged, "_kinds", kinds)


def with_own(slot, module, **changes):
    """A small model with this part."""
    if "Config" in vars(module) and module.Config.takes_config:
        kind = module.Config.model_fields["kind"].default
    else:
        kind = f"own-{module.__name__}"
    bl.part(slot, kind)(module)
    path = slot if slot in ("positions", "block") else f"block.{slot}"
    return bl.presets.modern(
        d_model=32, n_layers=2, n_heads=2, vocab_size=64, context_length=24
    ).with_changes({path: {"kind": kind}, **changes})


def refused(slot, module, **changes):
    with pytest.raises(bl.BlocklabError) as caught:
        probes.evaluated(Transformer(with_own(slot, module, **changes), seed=0))
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Scale(nn.Module):
    """A norm that is all right; others derive from it."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return self.weight * x


# What fails when it is called.


def test_a_forward_that_fails_is_named_with_its_place_and_line():
    class Fails(Scale):
        def forward(self, x):
            return x @ self.weight[:3]

    message = refused("norm", Fails)
    assert message.startswith("blocks.0.norm.attention: Fails.forward fails: RuntimeError: ")
    assert message.endswith("of test_own_faults.py)")


def test_a_class_without_forward_is_named():
    class Nothing(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()

    assert "blocks.0.norm.attention: Nothing.forward fails: NotImpl" in refused("norm", Nothing)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda x: x.mean(-1), r"gives shape (2, 24), torch.float32; expected a tensor of shape"),
        (lambda x: x.double(), r"gives shape (2, 24, 32), torch.float64; expected"),
        (lambda x: (x, None), r"gives a tuple; expected a tensor of shape (2, 24, 32)"),
    ],
)
def test_an_output_of_another_shape_is_named(spoil, words):
    class Spoils(Scale):
        def forward(self, x):
            return spoil(x)

    assert f"blocks.0.norm.attention: Spoils.forward {words}" in refused("norm", Spoils)


def test_a_fault_in_training_alone_is_named_too():
    class InTraining(Scale):
        def forward(self, x):
            return x if not self.training else x[:, :-1]

    model = Transformer(with_own("norm", InTraining), seed=0)
    probes.evaluated(model)
    with pytest.raises(bl.BlocklabError, match=r"InTraining\.forward gives shape \(2, 23, 32\)"):
        probes.training_pass(model)
    assert not any(module._forward_hooks for module in model.modules())


def test_positions_that_fail_are_named_by_their_method():
    class Wide(bl.parts.Positions):
        def __init__(self, d_model: int, context_length: int) -> None:
            super().__init__(d_model, context_length)

        def embed(self, positions):
            return torch.zeros(len(positions), 3)

    class Turns(Wide):
        def embed(self, positions):
            return None

        def score_bias(self, distance, n_heads):
            return distance.missing

    assert "positions: Wide.embed gives shape (2, 3) for 2 positions" in refused("positions", Wide)
    message = refused("positions", Turns)
    assert message.startswith("positions: Turns.score_bias fails: AttributeError")


def test_a_fault_of_ours_stays_a_bug(monkeypatch):
    def fails(self, x):
        raise RuntimeError("a bug")

    monkeypatch.setattr(bl.parts.RMSNorm, "forward", fails)

    class Ours(Scale):
        pass

    model = Transformer(with_own("norm", Ours, final_norm={"kind": "rms"}), seed=0)
    with pytest.raises(RuntimeError, match="a bug"):
        probes.evaluated(model)


# What is kept from step to step.


class Running(Scale):
    """An RMS that runs over the batches, in a buffer, which checkpoints hold."""

    def __init__(self, d: int) -> None:
        super().__init__(d)
        self.register_buffer("square", torch.ones(()))

    def forward(self, x):
        y = self.weight * x * (self.square + 1e-6).rsqrt()
        if self.training:
            self.square = 0.9 * self.square + 0.1 * x.detach().square().mean()
        return y


def test_state_in_a_buffer_is_let_through_and_left_as_it_was():
    model = Transformer(with_own("norm", Running), seed=0)
    probes.shake(model)
    traced = probes.training_pass(model)
    assert list(probes.without_gradient(model, traced)) == []
    assert list(probes.draws_wrongly(model)) == []
    assert list(probes.sees_the_future(model)) == []
    assert {float(buffer) for buffer in model.buffers()} == {1.0}


@pytest.mark.parametrize("while_training", [True, False])
def test_state_that_no_checkpoint_holds_is_called_that(while_training):
    class Counts(Scale):
        steps = 0

        def forward(self, x):
            self.steps += self.training is while_training
            return super().forward(x) * (1 + self.steps / 20)

    found = " ".join(probes.draws_wrongly(Transformer(with_own("norm", Counts), seed=0)))
    assert "differ at blocks.0.norm.attention: it keeps something from pass to pass" in found
    assert "register_buffer" in found
    assert "random" not in found


def test_random_numbers_of_another_library_are_still_called_that():
    class Dice(Running):
        def forward(self, x):
            return super().forward(x) * (1 + random.random() * self.training)

    (found,) = probes.draws_wrongly(Transformer(with_own("norm", Dice), seed=0))
    assert "random numbers that are not torch's" in found


# First values that are no numbers.


def test_a_parameter_that_starts_as_nan_is_named():
    class NotANumber(Scale):
        def __init__(self, d: int) -> None:
            super().__init__(d)
            self.weight = nn.Parameter(torch.full((d,), float("nan")))

    model = Transformer(with_own("norm", NotANumber), seed=0)
    (found,) = probes.starts_too_high(model, probes.evaluated(model))
    assert "nan nats: blocks.0.norm.attention.weight starts with values that are not fini" in found
    assert "smaller" not in found


def test_the_first_part_that_puts_out_nan_is_named():
    class Root(nn.Module):
        def __init__(self, d_model: int) -> None:
            super().__init__()
            self.out = nn.Linear(d_model, d_model)

        def forward(self, x):
            return self.out(x).sqrt()

    model = Transformer(with_own("feed_forward", Root), seed=0)
    (found,) = probes.starts_too_high(model, probes.evaluated(model))
    assert "nan nats: blocks.0.feed_forward is the first" in found


# Promises.


class Boosted(bl.parts.RMSNorm):
    class Config(bl.parts.RMSNorm.Config):
        kind: Literal["own"] = "own"

    def forward(self, x):
        return 0.5 * super().forward(x)


class Silent(bl.parts.CausalAttention):
    """Of the keys before it a query sees every second."""

    class Config(bl.parts.CausalAttention.Config):
        kind: Literal["own"] = "own"

    def _attend(self, queries, keys, values, context):
        n = queries.shape[2]
        distance = torch.arange(n)[:, None] - torch.arange(n)
        mask = (distance >= 0) & (distance % 2 == 0)
        scores = (queries @ keys.mT * self.scale).masked_fill(~mask, float("-inf"))
        return scores.softmax(-1) @ values


class Counting(bl.parts.NoPositions):
    class Config(bl.parts.NoPositions.Config):
        kind: Literal["own"] = "own"

    def embed(self, positions):
        return 0.1 * positions[:, None].float()


class Halving(bl.parts.NoResidual):
    class Config(bl.parts.NoResidual.Config):
        kind: Literal["own"] = "own"

    def forward(self, stream, branch):
        return 0.5 * stream + branch


@pytest.mark.parametrize(
    ("slot", "module", "probe"),
    [
        ("norm", Boosted, part_probes.norm_statistics),
        ("attention", Silent, part_probes.wrong_keys),
        ("positions", Counting, part_probes.wrong_places),
        ("residual", Halving, part_probes.wrong_identity_path),
    ],
)
def test_a_class_derived_from_ours_may_say_that_it_is_another_thing(slot, module, probe):
    base = module.__mro__[1].__name__
    changes = {"block.attention.n_heads": 2} if slot == "attention" else {}
    found = list(probe(Transformer(with_own(slot, module, **changes), seed=0)))
    said = f"{module.__name__} is derived from {base}, which promises otherwise; if that is meant"
    assert said in found[0]
    assert "keeps_promise = False" in found[0]
    free = type(module.__name__, (module,), {"keeps_promise": False, "Config": module.Config})
    Tagged._kinds[slot].pop("own")
    assert list(probe(Transformer(with_own(slot, free, **changes), seed=0))) == []


# Matrices that write to the stream.


class Plain(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.down = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.down(x)


def test_a_part_that_names_no_writers_is_said_where_it_matters():
    config = with_own("feed_forward", Plain)
    assert list(unnamed_writers(config)) == []
    (said,) = unnamed_writers(config.with_changes({"initialization": {"kind": "depth"}}))
    assert said.startswith("feed_forward 'own-Plain': Plain names no matrix that writes")
    zero = {"initialization.residual_writers": "zero", "blocks.1.feed_forward": {"kind": "mlp"}}
    assert len(list(unnamed_writers(config.with_changes(zero)))) == 1


@pytest.mark.parametrize("named", [("down.weight",), ()])
def test_a_part_that_names_its_writers_is_said_nothing_of(named):
    module = type("Named", (Plain,), {"residual_writers": named})
    config = with_own("feed_forward", module, **{"initialization.kind": "depth"})
    assert list(unnamed_writers(config)) == []


def test_a_study_with_a_running_norm_is_let_through():
    bl.part("norm", "own")(Running)
    require_differences(plan(minimal(variants={"own": {"block.norm": {"kind": "own"}}}), TEXT))
