"""A YAML file in which a key is given twice says two things: neither may be dropped unsaid."""

from pathlib import Path

import pytest

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.yaml_file import parse_yaml, read_yaml


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
    assert parse_yaml('{1: a, "1": b}') == {1: "a", "1": "b"}


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
