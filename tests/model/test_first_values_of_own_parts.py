"""What a user's own part starts from: its constructor's values where they are meant, else ours."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.model.overwritten import overwritten
from blocklab.record import Tagged
from blocklab.training.optimizer import AdamW, NamedParameter

D = 8
CONFIG = {"d_model": D, "n_heads": 2, "n_layers": 2, "vocab_size": 7, "context_length": 6}


@pytest.fixture(autouse=True)
def _own_parts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {slot: dict(of_slot) for slot, of_slot in Tagged._kinds.items()}
    monkeypatch.setattr(Tagged, "_kinds", kinds)


def with_own(
    constructed: Callable[[Any, int], None], slot: str = "feed_forward", **said: object
) -> bl.ModelConfig:
    """A model with a part whose constructor does this, and whose class says this."""

    def start(self: nn.Module, d_model: int) -> None:
        nn.Module.__init__(self)
        constructed(self, d_model)

    methods = {"__init__": start, "forward": lambda self, x: x, **said}
    bl.part(slot, "own")(type("Mine", (nn.Module,), methods))
    return bl.presets.gpt2(**CONFIG).with_changes({f"block.{slot}": {"kind": "own"}})


def first(config: bl.ModelConfig) -> Any:
    return bl.Transformer(config, seed=0).blocks[0].feed_forward


def gated(self: Any, d_model: int) -> None:
    self.gate = nn.Linear(d_model, d_model)
    nn.init.constant_(self.gate.bias, -2.0)


def test_raw_vectors_keep_their_constructors_values_whatever_they_are_called() -> None:
    def constructed(self: Any, d_model: int) -> None:
        self.distance_bias = nn.Parameter(-torch.arange(16.0))
        self.bias = nn.Parameter(torch.full((d_model,), 3.0))
        self.inner = nn.Module()
        self.inner.bias = nn.Parameter(torch.full((d_model,), 4.0))
        self.listed = nn.ParameterDict({"bias": nn.Parameter(torch.full((d_model,), 6.0))})
        self.in_proj_bias = nn.Parameter(torch.tensor(5.0))

    config = with_own(constructed)
    made = first(config)
    assert torch.equal(made.distance_bias, -torch.arange(16.0))
    assert (made.bias == 3).all()
    assert (made.inner.bias == 4).all()
    assert (made.listed["bias"] == 6).all()
    assert made.in_proj_bias == 5
    assert {spec.role for spec in config.block.feed_forward.parameters(D).values()} == {"gain"}


def test_biases_of_linear_maps_and_of_parts_are_zeroed() -> None:
    class Own(nn.Linear):
        pass

    def constructed(self: Any, d_model: int) -> None:
        self.plain = nn.Linear(d_model, d_model)
        self.own = Own(d_model, d_model)
        self.mixed = nn.Conv1d(d_model, d_model, 1)
        self.norm = bl.parts.LayerNorm.Config().build(d_model)

    config = with_own(constructed)
    made = first(config)
    specs = config.block.feed_forward.parameters(D)
    for name in ("plain", "own", "mixed", "norm"):
        assert specs[f"{name}.bias"].role == "bias"
        assert not made.get_submodule(name).bias.any(), name


def test_neither_kind_of_vector_decays() -> None:
    def constructed(self: Any, d_model: int) -> None:
        gated(self, d_model)
        self.distance_bias = nn.Parameter(torch.ones(d_model))

    config = with_own(constructed, keeps_values=("gate.bias",))
    specs = config.parameters()
    named = [
        NamedParameter(path, specs[path].role, parameter)
        for path, parameter in bl.Transformer(config).named_parameters()
        if path.startswith("blocks.0.feed_forward")
    ]
    decays = {m.path.split(".", 3)[3]: g.decay for g in AdamW().groups(named) for m in g.members}
    assert decays == {"gate.weight": 0.1, "gate.bias": 0.0, "distance_bias": 0.0}


def test_what_a_class_keeps_is_not_drawn_again() -> None:
    assert not first(with_own(gated)).gate.bias.any()
    kept = first(with_own(gated, keeps_values=("gate.bias",)))
    assert (kept.gate.bias == -2).all()
    again = first(with_own(gated))
    assert torch.equal(kept.gate.weight, again.gate.weight)


def test_matrices_and_tables_may_be_kept_and_keep_their_roles() -> None:
    def constructed(self: Any, d_model: int) -> None:
        self.turn, self.table = nn.Linear(d_model, d_model), nn.Embedding(3, d_model)
        self.down = nn.Linear(d_model, d_model)
        nn.init.eye_(self.turn.weight)
        nn.init.ones_(self.table.weight)
        nn.init.eye_(self.down.weight)

    names = ("turn.weight", "table.weight", "down.weight")
    config = with_own(constructed, keeps_values=names, residual_writers=("down.weight",))
    made = first(config.with_changes({"initialization.residual_writers": "zero"}))
    assert torch.equal(made.turn.weight, torch.eye(D))
    assert torch.equal(made.down.weight, torch.eye(D))
    assert (made.table.weight == 1).all()
    roles = {name: s.role for name, s in config.block.feed_forward.parameters(D).items()}
    assert [roles[name] for name in names] == ["matrix", "position", "writer"]


def test_a_class_derived_from_ours_may_keep_values_and_so_may_one_inside_another() -> None:
    @bl.part("feed_forward", "own-derived")
    class Derived(bl.parts.MLP):
        class Config(bl.parts.MLP.Config):
            kind: Literal["own-derived"] = "own-derived"

        keeps_values = ("expand.bias",)

        def __init__(self, d_model: int, config: Config) -> None:
            super().__init__(d_model, config)
            nn.init.constant_(self.expand.bias, -2.0)

    def nesting(self: Any, d_model: int) -> None:
        self.inner = Derived.Config().build(d_model)

    plain = bl.presets.gpt2(**CONFIG).with_changes({"block.feed_forward.kind": "own-derived"})
    assert (first(plain).expand.bias == -2).all()
    assert (first(with_own(nesting)).inner.expand.bias == -2).all()


def test_a_tied_tensor_is_kept_by_any_of_its_names() -> None:
    def constructed(self: Any, d_model: int) -> None:
        self.one, self.other = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.other.weight = self.one.weight
        nn.init.eye_(self.one.weight)

    made = first(with_own(constructed, keeps_values=("other.weight",)))
    assert torch.equal(made.one.weight, torch.eye(D))


def test_a_name_that_is_no_parameter_is_refused_with_the_nearest() -> None:
    config = with_own(gated, keeps_values=("gate.bais",))
    message = r"Mine\.keeps_values: 'gate\.bais' is no parameter of it; did you mean 'gate\.bias'"
    for fails in (bl.count, bl.Transformer):
        with pytest.raises(BlocklabError, match=message):
            fails(config)
    with pytest.raises(BlocklabError, match=r"Mine\.keeps_values: expected a tuple .*'gate\.bias'"):
        with_own(gated, keeps_values="gate.bias")


def said(config: bl.ModelConfig) -> list[tuple[str, tuple[str, ...]]]:
    return [(found.place, found.names) for found in overwritten(config)]


def test_values_that_a_constructor_sets_and_that_would_be_lost_can_be_said() -> None:
    def constructed(self: Any, d_model: int) -> None:
        gated(self, d_model)
        self.turn, self.silent = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        nn.init.eye_(self.turn.weight)
        nn.init.zeros_(self.silent.weight)
        nn.init.zeros_(self.silent.bias)
        self.raw_bias = nn.Parameter(torch.ones(d_model))
        self.table = nn.Embedding(3, d_model)
        self.norm = nn.LayerNorm(d_model)

    place = "block.feed_forward"
    names = ("gate.bias", "turn.weight", "silent.weight")
    assert said(with_own(constructed)) == [(place, names)]
    kept = with_own(constructed, keeps_values=("turn.weight", "gate.bias"))
    assert said(kept) == [(place, ("silent.weight",))]
    writing = with_own(constructed, keeps_values=names[:2], residual_writers=("silent.weight",))
    assert said(writing.with_changes({"initialization.residual_writers": "zero"})) == []


def test_they_are_found_wherever_an_own_part_stands() -> None:
    def constructed(self: Any, d_model: int) -> None:
        gated(self, d_model)

    as_norm = with_own(constructed, slot="norm")
    assert said(as_norm) == [("block.norm", ("gate.bias",))]
    last = bl.presets.gpt2(**CONFIG).with_changes({"final_norm": {"kind": "own"}})
    assert said(last) == [("final_norm", ("gate.bias",))]
    in_one = bl.presets.gpt2(**CONFIG).with_changes({"blocks.1.attention.qk_norm": {"kind": "own"}})
    assert said(in_one) == [("block.attention.qk_norm", ("gate.bias",))]

    @bl.part("positions", "own")
    class Places(bl.parts.Positions):
        def __init__(self, d_model: int, context_length: int) -> None:
            super().__init__(d_model, context_length)
            self.table = nn.Embedding(context_length, d_model)
            nn.init.zeros_(self.table.weight)

        def embed(self, positions: Tensor) -> Tensor:
            return self.table(positions)

    places = bl.presets.gpt2(**CONFIG).with_changes({"positions": "own"})
    assert said(places) == [("positions", ("table.weight",))]


def test_nothing_is_said_of_ours_nor_of_torchs_own_constructors() -> None:
    def constructed(self: Any, d_model: int) -> None:
        self.attention = nn.MultiheadAttention(d_model, 2)
        self.recurrent = nn.GRU(d_model, d_model)
        self.mixed = nn.Conv1d(d_model, d_model, 3)
        self.ours = bl.parts.Experts.Config(d_ff=8).build(d_model)

    assert said(with_own(constructed)) == []
    for name in bl.presets.names():
        small = {"d_model": 128, "n_layers": 1, "vocab_size": 7, "context_length": 6}
        assert said(bl.presets.preset(name)(**small)) == []
