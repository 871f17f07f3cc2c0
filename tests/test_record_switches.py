"""Switches and numbers: true is not 1, in no field of any record."""

from collections.abc import Sequence
from typing import Any, Literal

import pytest

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.record import Record


class Inner(Record):
    size: int = 1


class Numbers(Record):
    whole: int | None = None
    real: float = 1.0
    many: tuple[float, ...] = ()
    listed: Sequence[int] = ()
    named: dict[str, int] | None = None
    either: bool | float = 1.0
    word: Literal["off"] | int = "off"
    one: Literal[1, 2] = 1
    switch: bool = False
    perhaps: bool | None = None
    auto: Literal[True, "auto"] = "auto"
    inner: Inner = Inner()
    anything: Any = None


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"whole": True}, "whole"),
        ({"real": False}, "real"),
        ({"many": [1.0, True]}, r"many\.1"),
        ({"listed": [True]}, r"listed\.0"),
        ({"named": {"a": True}}, r"named\.a"),
        ({"word": True}, r"word\.int"),
        ({"one": True}, "one"),
        ({"inner": {"size": True}}, r"inner\.size"),
    ],
    ids=str,
)
def test_a_switch_is_no_number(fields: dict[str, object], path: str) -> None:
    with pytest.raises(BlocklabError, match=rf"{path}: \w+ does not fit: it is a switch, expected"):
        Numbers.parse(fields)


@pytest.mark.parametrize("name", ["switch", "perhaps", "auto"])
@pytest.mark.parametrize("number", [0, 1, 1.0])
def test_a_number_is_no_switch(name: str, number: float) -> None:
    with pytest.raises(BlocklabError, match=f"^{name}: {number} does not fit: it is a number"):
        Numbers.parse({name: number})


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"either": True}, bool),
        ({"either": 1}, float),
        ({"either": 0.5}, float),
        ({"word": "off"}, str),
        ({"word": 1}, int),
        ({"whole": 3.0}, int),
        ({"real": 1}, float),
        ({"switch": True}, bool),
        ({"switch": "on"}, bool),
        ({"auto": True}, bool),
        ({"anything": True}, bool),
        ({"anything": 1}, int),
    ],
    ids=str,
)
def test_a_field_that_takes_a_value_keeps_what_it_is(fields: dict[str, Any], kind: type) -> None:
    (name,) = fields
    assert type(getattr(Numbers.parse(fields), name)) is kind


@pytest.mark.parametrize(
    "path", ["block.attention.window", "n_layers", "block.norm.eps", "blocks.1.attention.window"]
)
def test_a_switch_in_place_of_a_models_number_is_named(path: str) -> None:
    inner = path.replace("blocks.1", "block").replace(".", r"\.")
    with pytest.raises(BlocklabError, match=rf"{inner}: True does not fit: it is a switch"):
        bl.presets.gpt2(n_layers=3).with_changes({path: True})
