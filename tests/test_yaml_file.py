"""YAML says what is meant: no key twice, and no number, date or switch that nobody wrote."""

import math
from pathlib import Path

import pytest
import yaml

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.yaml_file import parse_yaml, read_yaml, write_yaml


@pytest.mark.parametrize(
    ("text", "key", "line", "first"),
    [
        ("n_layers: 2\nd_model: 8\nn_layers: 4\n", "n_layers", 3, 1),
        ('a: 1\n"a": 2\n', "a", 2, 1),
        ("{a: 1, b: 2, a: 3}", "a", 1, 1),
        ("block:\n  norm: {kind: rms}\n  norm: {kind: layer}\n", "norm", 3, 2),
        ("layers:\n- {at: 1}\n- at: 1\n  x: 2\n  x: 2\n", "x", 5, 4),
        ("? [1]\n: {a: 1}\n? [1]\n: {b: 1, b: 2}\n", "b", 4, 4),
        ("8: a\n8: b\n", "8", 2, 1),
        ('8: a\n"8": b\n', "8", 2, 1),
    ],
)
def test_a_key_given_twice_is_named_with_both_lines(
    text: str, key: str, line: int, first: int
) -> None:
    told = rf"^line {line}: '{key}' is given twice, first in line {first}; keep one$"
    with pytest.raises(BlocklabError, match=told):
        parse_yaml(text)


def test_what_is_merged_in_may_be_said_again() -> None:
    text = "base: &base {a: 1, b: 2}\nmore: {<<: *base, b: 3}\n"
    assert parse_yaml(text) == {"base": {"a": 1, "b": 2}, "more": {"a": 1, "b": 3}}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    with pytest.raises(BlocklabError, match=r"study\.yaml: cannot be read: No such file"):
        read_yaml(file)
    for text in (b"a: [", b"a: \xff", b"!!python/name:os.system x"):
        file.write_bytes(text)
        with pytest.raises(BlocklabError, match=r"study\.yaml: cannot be read as YAML"):
            read_yaml(file)


def test_a_models_file_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text("preset: modern\nblock.norm.kind: layer\nblock.norm.kind: rms\n")
    with pytest.raises(BlocklabError, match=r"model\.yaml: line 3: 'block\.norm\.kind' is given"):
        bl.ModelConfig.from_yaml(file)


TEXT = [
    "1:4",
    "-1:4",
    "190:20:30",
    "1:30.5",
    "on",
    "off",
    "yes",
    "No",
    "2026-01-01",
    "2026-01-01T10:00:00Z",
    "=",
    "0o10",
    "1__0",
    "1_",
    "_1",
    "0x",
    "1e",
    "1,000",
    "1.2.3",
    ".",
    "+",
    "none",
    "None",
    "y",
]


@pytest.mark.parametrize("word", TEXT)
def test_a_word_that_yaml_1_1_would_make_something_else_of_is_text(word: str) -> None:
    for text in (f"x: {word}", f"{{x: {word}}}", f"x: [{word}]"):
        if "," not in word or text == f"x: {word}":
            assert parse_yaml(text) in ({"x": word}, {"x": [word]})


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("010", 10),
        ("-010", -10),
        ("08", 8),
        ("007.25", 7.25),
        ("0x10", 16),
        ("-0x1F", -31),
        ("0b11", 3),
        ("400_000", 400_000),
        ("1_0", 10),
        ("+5", 5),
        ("1e-3", 0.001),
        ("1E5", 1e5),
        ("-2.5e3", -2500.0),
        ("1.0e-05", 1e-5),
        (".5", 0.5),
        ("-.5", -0.5),
        ("1.", 1.0),
        ("1_000.5", 1000.5),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
    ],
)
def test_numbers_switches_and_null_are_read_as_they_are_written(word: str, value: object) -> None:
    found = parse_yaml(f"x: {word}")
    assert found == {"x": value}
    assert isinstance(found, dict)
    assert type(found["x"]) is type(value)


def test_a_key_is_the_name_that_is_written() -> None:
    text = "{off: 1, 8: 2, 1e-3: 3, null: 4, 2026-01-01: 5, 1:4 : 6, 010: 7}"
    assert list(parse_yaml(text)) == ["off", "8", "1e-3", "null", "2026-01-01", "1:4", "010"]  # type: ignore[call-overload]
    assert parse_yaml("a: &eight 8\n*eight : b\n") == {"a": 8, "8": "b"}


OTHER = ["010", "1e-3", ".5", "null", "~", "true", "<<", "8", "1_0", ""]


@pytest.mark.parametrize("value", [*TEXT, *OTHER])
def test_text_that_looks_like_another_value_comes_back_as_text(value: str) -> None:
    assert parse_yaml(write_yaml({"x": value, value: [value]})) == {"x": value, value: [value]}


@pytest.mark.parametrize("value", [1e-3, 1e-5, 1e22, 0.1, -3, 400_000, True, None, math.inf])
def test_other_values_come_back_as_they_were(value: object) -> None:
    assert parse_yaml(write_yaml({"x": value})) == {"x": value}
    assert parse_yaml(yaml.safe_dump({"x": value})) == {"x": value}


def test_what_no_reader_survives_is_no_yaml() -> None:
    for text in ("x: " + "1" * 5000, "x: " + "[" * 5000):
        with pytest.raises(BlocklabError, match="cannot be read as YAML"):
            parse_yaml(text)


@pytest.mark.parametrize(
    ("at", "layers"), [("1:4", {1, 2, 3}), ("010", {10}), ('"::5"', {0, 5, 10}), ("-1", {11})]
)
def test_the_layers_of_an_exception_are_those_written(
    at: str, layers: set[int], tmp_path: Path
) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(
        f"preset: modern\nn_layers: 12\nlayers: [{{at: {at}, block.attention.window: 8}}]\n"
    )
    config = bl.ModelConfig.from_yaml(file)
    windows = {i for i in range(12) if config.layer(i).block.attention.window == 8}
    assert windows == layers


def test_on_and_off_are_switches_where_a_switch_stands(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(
        "preset: gpt2\ntie_embeddings: off\nhead.bias: yes\nblock.parallel: off\n"
        "block.attention.qkv_bias: no\n"
    )
    config = bl.ModelConfig.from_yaml(file)
    assert (config.tie_embeddings, config.head.bias) == (False, True)
    assert (config.block.parallel, config.block.attention.qkv_bias) == ("off", False)
    file.write_text("preset: gpt2\nblock.attention.window: on\n")
    with pytest.raises(BlocklabError, match=r"block\.attention\.window: 'on' does not fit"):
        bl.ModelConfig.from_yaml(file)


def test_two_angles_merge_as_a_key_and_are_a_word_as_a_value() -> None:
    assert parse_yaml("<<") == "<<"
    assert parse_yaml("{a: <<, b: [<<]}") == {"a": "<<", "b": ["<<"]}
    assert parse_yaml(write_yaml({"a": "<<"})) == {"a": "<<"}
    with pytest.raises(BlocklabError, match=r"^cannot be read as YAML: line 1, column \d+: .+$"):
        parse_yaml("{<<: 5}")


@pytest.mark.parametrize("record", [bl.Study, bl.ModelConfig])
def test_what_is_no_path_is_refused_as_such(record: type[bl.Study] | type[bl.ModelConfig]) -> None:
    with pytest.raises(BlocklabError, match="from_yaml: expected a name or a path, found 5"):
        record.from_yaml(5)  # type: ignore[arg-type]
