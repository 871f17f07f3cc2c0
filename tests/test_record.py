"""Records: what a path may change, what is lost (nothing), and how an error names its place."""

from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given
from pydantic import ValidationError
from torch import nn

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.record import Record, Tagged, changed, with_changes
from tests.model.strategies import configs, for_every_config

GPT2 = bl.presets.gpt2(d_model=16, n_heads=2, n_layers=3, vocab_size=11, context_length=8)


def holds_every_field(record: Record, dumped: dict[str, Any], at: str = "") -> None:
    assert set(dumped) == set(type(record).model_fields), at
    for name in type(record).model_fields:
        value, said = getattr(record, name), dumped[name]
        if isinstance(value, Record):
            holds_every_field(value, said, f"{at}{name}.")
        elif name == "layers":
            assert said == [{"at": e.at, **e.changes} for e in value]
        else:
            # A file knows no tuples.
            assert said == (list(value) if isinstance(value, tuple) else value), f"{at}{name}"


@for_every_config
@given(configs())
def test_the_dump_holds_every_field_of_every_record(config: ModelConfig) -> None:
    """So changing any leaf changes the dump, also in parts whose field says only their slot."""
    holds_every_field(config, config.plain())
    holds_every_field(config, config.model_dump(mode="json"))


@for_every_config
@given(configs(), configs())
def test_configs_differ_exactly_when_their_dumps_do(one: ModelConfig, two: ModelConfig) -> None:
    assert (one == two) == (one.plain() == two.plain())
    for field in ModelConfig.model_fields:
        mixed = one.model_copy(update={field: getattr(two, field)})
        assert (mixed == one) == (mixed.plain() == one.plain()), field


@for_every_config
@given(configs())
def test_two_configs_with_one_dump_are_equal_and_build_alike(config: ModelConfig) -> None:
    again = ModelConfig.parse(yaml.safe_load(yaml.safe_dump(config.plain())))
    assert again == config
    assert again.parameters() == config.parameters()


@pytest.mark.parametrize("name", bl.presets.names())
def test_every_preset_survives_yaml(name: str, tmp_path: Path) -> None:
    config = bl.presets.preset(name)()
    config.to_yaml(tmp_path / "model.yaml")
    assert ModelConfig.from_yaml(tmp_path / "model.yaml") == config


PRESET_FILE = """
preset: llama-3-8b
d_model: 256
n_layers: 2
n_kv_heads: 1
vocab_size: null
block: {norm: {eps: 0.5}}
block.feed_forward.activation: relu
blocks.1.attention.window: 4
"""


def test_a_models_file_may_name_a_preset_and_what_differs(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(PRESET_FILE)
    sized = bl.presets.preset("llama-3-8b")(d_model=256, n_layers=2, n_kv_heads=1)
    assert ModelConfig.from_yaml(file) == sized.with_changes(
        {
            "vocab_size": None,
            "block.norm.eps": 0.5,
            "block.feed_forward.activation": "relu",
            "blocks.1.attention.window": 4,
        }
    )
    file.write_text("preset: gpt2_medium\nn_heads: null\n")
    assert ModelConfig.from_yaml(file) == bl.presets.preset("gpt2-medium")()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("llama-3-8b", "llama-3-8", "unknown preset 'llama-3-8'; did you mean 'llama-3-8b'"),
        ("n_layers", "n_layer", "unknown key 'n_layer'; did you mean 'n_layers'"),
        ("n_kv_heads", "n_kv_head", "unknown key 'n_kv_head'; did you mean 'n_kv_heads'"),
        ("d_model: 256", "d_model: wide", "d_model: 'wide' does not fit"),
        ("d_model: 256", "d_model: 0", "d_model: 0 does not fit"),
        ("n_kv_heads: 1", "n_kv_heads: [1]", r"block\.attention\.n_kv_heads: \[1\] does not fit"),
        ("eps: 0.5", "epsilon: 0.5", r"block\.norm\.epsilon: unknown key 'epsilon'"),
        ("blocks.1", "blocks.one", r"blocks\.one\.attention\.window: expected blocks\.NUMBER"),
    ],
)
def test_what_is_wrong_in_a_file_with_a_preset_is_named(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(PRESET_FILE.replace(old, new))
    with pytest.raises(BlocklabError, match=rf"model\.yaml: .*{message}"):
        ModelConfig.from_yaml(file)


def test_a_presets_size_that_is_no_number_is_refused_by_its_path() -> None:
    with pytest.raises(BlocklabError, match="d_model: 'wide' does not fit"):
        bl.presets.gpt2(d_model="wide")


def test_yaml_reads_off_as_false_and_it_still_means_off(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text("block: {parallel: off}\n")
    assert yaml.safe_load(file.read_text())["block"]["parallel"] is False
    assert ModelConfig.from_yaml(file).block.parallel == "off"


def test_yaml_that_is_no_config_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    with pytest.raises(BlocklabError, match=r"model\.yaml: cannot be read"):
        ModelConfig.from_yaml(file)
    for text, message in [
        ("[1, 2]", "expected a mapping"),
        ("a: [", "cannot be read as YAML"),
        ("block: {norm: {kind: rmz}}", r"block\.norm: unknown norm kind 'rmz'"),
        ("variants: {}", "describes a study, not a model"),
    ]:
        file.write_text(text)
        with pytest.raises(BlocklabError, match=rf"model\.yaml: .*{message}"):
            ModelConfig.from_yaml(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layer": 2}, r"^n_layer: unknown key 'n_layer'; did you mean 'n_layers'\?"),
        ({"n_heads": 2}, r"'n_heads'; did you mean 'block\.attention\.n_heads'\?$"),
        ({"block.n_heads": 2}, r"'n_heads'; did you mean 'block\.attention\.n_heads'\?$"),
        ({"eps": 1.0}, r"'eps'; did you mean 'block\.norm\.eps'\?$"),
        ({"block.norm.epsilon": 1}, r"^block\.norm\.epsilon: .*'epsilon'; did you mean 'eps'\?"),
        ({"block.norm": {"epsilon": 1}}, r"^block\.norm\.epsilon: .*did you mean 'eps'\?"),
        ({"block.norm": {"kind": "rms", "ep": 1}}, r"^block\.norm: unknown key 'ep'.*'eps'\?"),
        ({"block.norm.kind": "rsm"}, r"^block\.norm\.kind: unknown norm kind 'rsm'.*'rms'\?"),
        ({"block.norm": "rsm"}, r"^block\.norm: unknown norm kind 'rsm'.*'rms'\?"),
        ({"block.norm": 3}, r"^block\.norm: expected a mapping with 'kind'"),
        ({"block.norm.kind": 3}, r"^block\.norm\.kind: expected the name of a kind, found 3"),
        ({"block.norm.eps": -1}, r"^block\.norm\.eps: -1 does not fit: .*greater than 0"),
        ({"block.norm.eps": float("nan")}, r"^block\.norm\.eps: nan does not fit"),
        ({"d_model.x": 1}, r"^d_model\.x: 'd_model' has no parts, it is 16"),
        ({"final_norm": "rsm"}, r"^final_norm: unknown norm kind 'rsm'"),
        ({"final_norm": {"kind": "rms", "eps": -1}}, r"^final_norm\.eps: -1 does not fit"),
        ({"blocks.1.norm.kind": "rsm"}, r"^layers at '1': block\.norm\.kind: .*'rsm'"),
        ({"blocks.1.norm.ep": 1}, r"^layers at '1': block\.norm\.ep: unknown key 'ep'"),
        ({"blocks.1": 1}, r"^blocks\.1: expected blocks\.NUMBER\.PATH"),
        ({"blocks.7.norm.eps": 1.0}, r"^layers at '7': picks none of 3 layers"),
        ({"dropout": 1.0}, r"^dropout: 1\.0 does not fit"),
        ({"n_layers": True, "vocab_size": "many"}, r"vocab_size: 'many' does not fit"),
    ],
    ids=str,
)
def test_a_bad_change_names_its_whole_path(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BlocklabError, match=message):
        GPT2.with_changes(changes)


def test_many_problems_are_told_three_at_a_time() -> None:
    changes = dict.fromkeys(("d_model", "n_layers", "vocab_size", "context_length"), -1)
    three = r"^vocab_size: .*; context_length: .*; d_model: .* \(and 1 more\)$"
    with pytest.raises(BlocklabError, match=three) as caught:
        GPT2.with_changes(changes)
    assert "\n" not in str(caught.value)


def test_a_change_makes_a_new_config_and_leaves_the_old_one() -> None:
    before = GPT2.plain()
    new = GPT2.with_changes({"block.norm.eps": 0.5, "n_layers": 2})
    assert (new.block.norm.eps, new.n_layers) == (0.5, 2)
    assert GPT2.plain() == before
    with pytest.raises(ValidationError):
        new.n_layers = 3  # type: ignore[misc]


def test_a_change_of_kind_keeps_shared_fields_and_takes_defaults_for_the_others() -> None:
    given_ = GPT2.with_changes({"block.norm.eps": 0.25, "block.norm.unit_offset": True})
    rms = given_.with_changes({"block.norm.kind": "rms"}).block.norm
    assert rms == bl.parts.RMSNorm.Config(eps=0.25, bias=True, unit_offset=True)
    tanh = given_.with_changes({"block.norm.kind": "dyt"}).block.norm
    assert tanh == bl.parts.DynamicTanh.Config(bias=True)
    gated = GPT2.with_changes(
        {"block.feed_forward": {"d_ff": 24}, "block.feed_forward.kind": "gated"}
    )
    assert gated.block.feed_forward == bl.parts.Gated.Config(
        d_ff=24, activation="gelu_tanh", bias=True
    )


def test_a_change_of_initialization_takes_that_kinds_own_rule_for_writers() -> None:
    depth = GPT2.with_changes({"initialization.kind": "depth"})
    spec = depth.parameters()["blocks.0.attention.output.weight"]
    assert depth.initialization.std_of(spec, 3) == pytest.approx(0.02 / 6**0.5)


def test_a_mapping_without_kind_updates_and_one_with_kind_replaces() -> None:
    start = GPT2.with_changes({"block.norm.eps": 0.25})
    updated = start.with_changes({"block.norm": {"bias": False}}).block.norm
    assert updated == bl.parts.LayerNorm.Config(eps=0.25, bias=False)
    replaced = start.with_changes({"block.norm": {"kind": "layer", "bias": False}}).block.norm
    assert replaced == bl.parts.LayerNorm.Config(bias=False)


def test_changes_are_made_in_order_and_checked_once_at_the_end() -> None:
    """Neither half of this change would do by itself."""
    with pytest.raises(BlocklabError):
        GPT2.with_changes({"d_model": 9})
    assert GPT2.with_changes({"d_model": 9, "block.attention.n_heads": 3}).d_model == 9


@pytest.mark.parametrize("before", [None, "same", {"kind": "layer"}])
def test_a_part_that_was_null_or_a_word_is_set_path_by_path(before: object) -> None:
    start = GPT2.with_changes({"final_norm": before})
    new = start.with_changes({"final_norm.kind": "rms", "final_norm.eps": 0.5})
    assert new.final_norm.kind == "rms"
    assert new.final_norm.eps == 0.5
    heads = GPT2.with_changes(
        {"block.attention.qk_norm.kind": "rms", "block.attention.qk_norm.eps": 0.5}
    )
    assert heads.block.attention.qk_norm == bl.parts.RMSNorm.Config(eps=0.5)


@pytest.fixture
def _own_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds whose fields have the names of ours and take less, or have names of their own."""
    kinds = {slot: dict(of_slot) for slot, of_slot in Tagged._kinds.items()}
    monkeypatch.setattr(Tagged, "_kinds", kinds)

    @bl.part("feed_forward", "own-strict")
    class Strict(nn.Module):
        def __init__(
            self,
            d_model: int,
            d_ff: int = 128,
            activation: Literal["relu", "tanh"] = "relu",
            bias: float = 0.25,
        ) -> None:
            super().__init__()

    @bl.part("norm", "own-power")
    class Power(nn.Module):
        def __init__(self, d: int, steepness: float = 0.5) -> None:
            super().__init__()


@pytest.mark.usefixtures("_own_kinds")
def test_a_value_that_the_new_kind_does_not_take_gives_way_to_its_default() -> None:
    """Null is no width there, silu no activation, and a switch no number."""
    assert GPT2.block.feed_forward.plain() == {
        "kind": "mlp", "d_ff": None, "activation": "gelu_tanh", "bias": True,
    }  # fmt: skip
    strict = GPT2.with_changes({"block.feed_forward.kind": "own-strict"}).block.feed_forward
    assert (strict.d_ff, strict.activation, strict.bias) == (128, "relu", 0.25)
    fitting = {"block.feed_forward.d_ff": 40, "block.feed_forward.activation": "relu"}
    kept = GPT2.with_changes({**fitting, "block.feed_forward.kind": "own-strict"})
    assert (kept.block.feed_forward.d_ff, kept.block.feed_forward.activation) == (40, "relu")
    one = GPT2.with_changes({"blocks.1.feed_forward.kind": "own-strict"})
    assert one.layer(1).block.feed_forward == strict


@pytest.mark.usefixtures("_own_kinds")
def test_a_mistake_before_a_change_of_kind_is_still_named() -> None:
    wrong = {"block.feed_forward.d_ff": "wide", "block.feed_forward.kind": "own-strict"}
    with pytest.raises(BlocklabError, match=r"block\.feed_forward\.d_ff: 'wide' does not fit"):
        GPT2.with_changes(wrong)


@pytest.mark.usefixtures("_own_kinds")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"block.norm.steepness": 0.6},
            r"^block\.norm\.steepness: unknown key 'steepness'; "
            r"own-power has it: set block\.norm\.kind=own-power first$",
        ),
        (
            {"block.norm": {"steepness": 0.6}},
            r"own-power has it: set block\.norm\.kind=own-power first$",
        ),
        (
            {"block.norm": {"kind": "rms", "steepness": 0.6}},
            r"own-power has it: set kind=own-power",
        ),
        (
            {"blocks.1.norm.steepness": 0.6},
            r"own-power has it: set block\.norm\.kind=own-power first$",
        ),
        (
            {"positions.base": 0.6},
            r"sinusoidal, rotary.* have it: set positions\.kind=sinusoidal first$",
        ),
        ({"block.norm.nothing": 0.6}, r"unknown key 'nothing'; .*\(valid: bias, eps"),
    ],
    ids=str,
)
def test_a_key_of_another_kind_is_told_from_one_of_none(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BlocklabError, match=message):
        GPT2.with_changes(changes)


class Inner(Record):
    size: int = 1


class Outer(Record):
    inner: Inner = Inner()
    many: tuple[Inner, ...] = ()


@pytest.mark.parametrize("make", [lambda data: Outer(**data), Outer.parse])
def test_construction_and_parsing_both_keep_the_path_of_a_nested_error(make: Any) -> None:
    """Pydantic must validate nested records itself: their own constructor knows no path."""
    with pytest.raises(BlocklabError, match=r"^inner\.size: 'x' does not fit"):
        make({"inner": {"size": "x"}})
    with pytest.raises(BlocklabError, match=r"^many\.1\.size: 'x' does not fit"):
        make({"many": [{"size": 1}, {"size": "x"}]})
    with pytest.raises(BlocklabError, match=r"^many\.0: unknown key 'sise'; did you mean 'size'"):
        make({"many": [{"sise": 1}]})


def test_an_error_is_prefixed_by_the_place_the_record_stands_at() -> None:
    with pytest.raises(BlocklabError, match=r"^training\.inner\.size: 'x' does not fit"):
        Outer.parse({"inner": {"size": "x"}}, at="training")
    with pytest.raises(BlocklabError, match=r"^training\.inner\.size: 'x' does not fit"):
        with_changes(Outer(), {"inner.size": "x"}, at="training")


def test_direct_construction_of_a_part_raises_our_error() -> None:
    with pytest.raises(BlocklabError, match=r"^eps: -1 does not fit"):
        bl.parts.RMSNorm.Config(eps=-1)
    with pytest.raises(BlocklabError, match=r"unknown key 'epsilon'; did you mean 'eps'"):
        bl.parts.RMSNorm.Config(epsilon=1)
    assert Outer(inner={"size": 3}).inner == Inner(size=3)


def test_a_single_change_is_not_checked_until_the_end() -> None:
    unchecked = changed(Outer(), "inner.size", "x")
    assert unchecked.inner.size == "x"  # type: ignore[attr-defined]
    with pytest.raises(BlocklabError):
        with_changes(Outer(), {"inner.size": "x"})
