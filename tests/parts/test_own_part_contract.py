"""What does not fit a slot is refused in one line that names the class and the parameter."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.record import Tagged

CONFIG = {"d_model": 8, "n_heads": 2, "n_layers": 2, "vocab_size": 7, "context_length": 6}


@pytest.fixture(autouse=True)
def _own_parts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {slot: dict(of_slot) for slot, of_slot in Tagged._kinds.items()}
    monkeypatch.setattr(Tagged, "_kinds", kinds)


def refused(slot: str, module: Any, kind: str = "own") -> str:
    with pytest.raises(BlocklabError) as caught:
        bl.part(slot, kind)(module)
    return one_line(caught.value)


def one_line(error: BlocklabError) -> str:
    assert "\n" not in str(error)
    return str(error)


def norm(**parameters: tuple[object, object]) -> type[nn.Module]:
    """A norm whose constructor has these parameters, each an annotation and a default."""
    given = {name: default for name, (_, default) in parameters.items()}
    names = ", ".join(f"{name}=given['{name}']" for name in parameters)
    scope: dict[str, Any] = {"nn": nn, "given": given}
    exec(f"def start(self, d, {names}):\n    nn.Module.__init__(self)", scope)
    start = scope["start"]
    start.__annotations__ = {n: kind for n, (kind, _) in parameters.items() if kind is not None}
    return type("Mine", (nn.Module,), {"__init__": start, "forward": lambda self, x: x})


@pytest.mark.parametrize(
    ("name", "parameter", "words"),
    [
        ("dtype", (torch.dtype, torch.float32), "a record cannot hold dtype"),
        ("act", (nn.Module, nn.ReLU()), "a record cannot hold Module"),
        ("act", (Callable, torch.relu), "a record cannot hold Callable"),
        ("act", (None, torch.relu), "a record cannot hold builtin_function_or_method"),
        ("opt", (None, None), "could only ever be None; give it a type, as in opt: float | None"),
        ("_hidden", (int, 3), "begins with an underscore"),
        ("power", (float, "much"), "default is not of its type"),
        ("later", ("NotDefined", 3), "a record cannot hold NotDefined"),
    ],
)
def test_a_parameter_that_no_record_can_hold_is_named(
    name: str, parameter: tuple[object, object], words: str
) -> None:
    message = refused("norm", norm(fine=(int, 2), **{name: parameter}))
    assert message.startswith(f"Mine: constructor parameter '{name}'")
    assert words in message


def test_parameters_that_could_be_anything_are_named() -> None:
    class Mine(nn.Module):
        def __init__(self, d_model: int, mult: int = 4, **kw: object) -> None:
            super().__init__()

    class Sizes(nn.Module):
        def __init__(self, *sizes: int) -> None:
            super().__init__()

    assert refused("feed_forward", Mine).startswith("Mine: constructor parameter '**kw")
    assert "must take 1 size(s) first: d_model" in refused("feed_forward", Sizes)


def test_torch_s_own_norm_registers_as_it_is() -> None:
    bl.part("norm", "own-torch")(nn.RMSNorm)
    config = bl.presets.gpt2(**CONFIG).with_changes({"block.norm": {"kind": "own-torch"}})
    assert bl.Transformer(config)(torch.tensor([[1, 2]])).shape == (1, 2, 7)
    del nn.RMSNorm.Config


def test_what_is_no_module_is_named() -> None:
    def function(x: Tensor) -> Tensor:
        return x

    class Plain:
        def __init__(self, d: int) -> None:
            pass

    assert "function is no class" in refused("norm", function)
    assert "LayerNorm is no class" in refused("norm", nn.LayerNorm(3))
    assert "Plain must be a subclass of torch.nn.Module" in refused("norm", Plain)


@pytest.mark.parametrize(
    ("slot", "sizes", "arguments", "words"),
    [
        ("norm", "d", "x, y", "Mine.forward is called with (x) and takes (self, x, y)"),
        ("attention", "d_model", "x", "Mine.forward is called with (x, context)"),
        ("residual", "d_model", "x", "Mine.forward is called with (stream, branch)"),
        ("block", "d_model", "x", "Mine.forward is called with (x, context)"),
    ],
)
def test_a_forward_that_takes_something_else_is_named(
    slot: str, sizes: str, arguments: str, words: str
) -> None:
    scope: dict[str, Any] = {}
    exec(f"def forward(self, {arguments}): ...\ndef start(self, {sizes}): ...", scope)
    methods = {"__init__": scope["start"], "forward": scope["forward"]}
    assert words in refused(slot, type("Mine", (nn.Module,), methods))


def test_positions_are_told_what_they_must_be() -> None:
    class P(nn.Module):
        def __init__(self, d_model: int, context_length: int) -> None:
            super().__init__()

    class Idle(bl.parts.Positions):
        def forward(self, x: Tensor) -> Tensor:
            return x

    class WrongEmbed(bl.parts.Positions):
        def __init__(self, d_model: int, context_length: int) -> None:
            super().__init__(d_model, context_length)

        def embed(self) -> Tensor:
            return torch.zeros(1)

    assert "class P(bl.parts.Positions), with embed(positions), tables(" in refused("positions", P)
    assert "Idle would do nothing: positions act by embed(" in refused("positions", Idle)
    assert "WrongEmbed.embed is called with (positions)" in refused("positions", WrongEmbed)


def test_a_class_derived_from_ours_is_told_to_state_a_record() -> None:
    class Mine(bl.parts.RMSNorm):
        pass

    message = refused("norm", Mine, "mine")
    assert "class Config(RMSNorm.Config): kind: Literal['mine'] = 'mine'" in message

    class Alone(nn.Module):
        def __init__(self, d: int, config: object) -> None:
            super().__init__()

    assert "class Config(bl.parts.NormConfig)" in refused("norm", Alone)


def test_a_constructor_that_does_not_take_its_record_is_named() -> None:
    class Mine(nn.Module):
        class Config(bl.parts.NormConfig):
            kind: Literal["own"] = "own"

        def __init__(self, d: int) -> None:
            super().__init__()

    class NoClass(nn.Module):
        Config = "rms"

    assert "Mine has a Config, so its constructor is called with (d, config)" in refused(
        "norm", Mine
    )
    assert "NoClass.Config must be a NormConfig" in refused("norm", NoClass)


def failing(slot: str, module: type[nn.Module]) -> str:
    kind = f"own-{module.__name__}"
    bl.part(slot, kind)(module)
    config = bl.presets.gpt2(**CONFIG).with_changes({f"block.{slot}": {"kind": kind}})
    with pytest.raises(BlocklabError) as caught:
        bl.count(config)
    return one_line(caught.value)


def test_a_constructor_that_fails_is_named_with_its_line() -> None:
    class Forgets(nn.Module):
        def __init__(self, d_model: int, inner: int = 4) -> None:
            self.up = nn.Linear(d_model, inner)

    class ForgetsQuietly(nn.Module):
        def __init__(self, d: int) -> None:
            self.d = d

    class Odd(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            raise TypeError("two lines\nof it")

    begin = "its constructor must begin with super().__init__()"
    assert failing("feed_forward", Forgets) == f"Forgets: {begin}"
    assert failing("norm", ForgetsQuietly) == f"ForgetsQuietly: {begin}"
    message = failing("norm", Odd)
    assert message.startswith("Odd: its constructor fails: TypeError: two lines (line ")
    assert message.endswith("of test_own_part_contract.py)")


def test_memory_that_is_missing_is_no_fault_of_the_class() -> None:
    @bl.part("norm", "own-large")
    class Large(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        bl.parts.NormConfig.of_kind("own-large")().build(8)


def test_a_block_registers_in_a_script_that_imported_nothing_else() -> None:
    script = """
import blocklab as bl
from torch import nn
@bl.part("block", "own")
class Own(nn.Module):
    def __init__(self, d_model: int):
        super().__init__()
    def forward(self, x, context):
        return x
try:
    bl.part("blocks", "own")
except bl.BlocklabError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "did you mean 'block'" in done.stdout
    assert "norm, positions, residual" in done.stdout


def test_one_class_may_stand_under_two_kinds() -> None:
    module = norm(power=(float, 2.0))
    for kind in ("own-first", "own-second", "own-second"):
        bl.part("norm", kind)(module)
        assert bl.parts.NormConfig.of_kind(kind)(kind=kind).module is module


# Matrices that write to the residual stream.


class Writes(nn.Module):
    residual_writers: tuple[str, ...] = ("down.weight",)

    def __init__(self, d_model: int, inner: int = 16) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(d_model, inner), nn.Linear(inner, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


def with_own(slot: str, **initialization: object) -> bl.Transformer:
    config = bl.presets.gpt2(**CONFIG | {"d_model": 64}).with_changes(
        {f"block.{slot}" if slot != "block" else "block": {"kind": "own-writes"}}
        | {"initialization": initialization}
    )
    return bl.Transformer(config, seed=0)


def test_a_matrix_named_as_residual_writer_is_drawn_as_ours_are() -> None:
    bl.part("feed_forward", "own-writes")(Writes)
    deep = with_own("feed_forward", kind="depth", std=0.02).blocks[0].feed_forward
    assert deep.up.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert deep.down.weight.std().item() == pytest.approx(0.02 / (2 * 2) ** 0.5, rel=0.1)
    silent = with_own("feed_forward", kind="fan_in", residual_writers="zero").blocks[0].feed_forward
    assert silent.up.weight.any()
    assert not silent.down.weight.any()


def test_ours_keep_their_roles_inside_a_block_of_ones_own() -> None:
    @bl.part("block", "own-writes")
    class Block(nn.Module):
        def __init__(self, d_model: int, n_experts: int = 4) -> None:
            super().__init__()
            attention = bl.parts.CausalAttention.Config(n_heads=2)
            experts = bl.parts.Experts.Config(n_experts=n_experts, n_active=1)
            self.inner = nn.ModuleList([attention.build(d_model), experts.build(d_model)])

        def forward(self, x: Tensor, context: bl.parts.AttentionContext) -> Tensor:
            x = x + self.inner[0](x, context)
            return x + self.inner[1](x)

    model = with_own("block", kind="normal")
    roles = {name: spec.role for name, spec in model.config.block.parameters(64).items()}
    assert roles["inner.0.output.weight"] == "writer"
    assert roles["inner.1.experts_contract"] == "writer"
    assert roles["inner.1.experts_expand"] == "matrix"
    assert roles["inner.0.qkv.bias"] == "bias"
    silent = with_own("block", kind="normal", residual_writers="zero").blocks[0].inner
    assert silent[0].qkv.weight.any()
    assert not silent[0].output.weight.any()


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (("dwon.weight",), r"'dwon.weight' is no parameter of it; did you mean 'down.weight'"),
        (("down.bias",), r"'down.bias' has shape (8,); expected a matrix"),
    ],
)
def test_a_residual_writer_that_is_none_is_refused(named: tuple[str, ...], words: str) -> None:
    assert words in failing("feed_forward", type("Mine", (Writes,), {"residual_writers": named}))


def test_residual_writers_are_names() -> None:
    mine = type("Mine", (Writes,), {"residual_writers": "down.weight"})
    assert "Mine.residual_writers: expected a tuple" in refused("feed_forward", mine)
