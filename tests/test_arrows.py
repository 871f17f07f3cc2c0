"""Imports point one way: between files, and between rooms."""

import ast
from collections.abc import Iterator, Mapping, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
FILES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (SOURCE / "blocklab").rglob("*.py")
}


def imported_by(path: Path) -> Iterator[str]:
    """Every module of ours that a file imports, for its types alone or within a function too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FILES)
        elif isinstance(node, ast.ImportFrom) and node.module in FILES:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in FILES else node.module for name in inner)


ARROWS = {name: set(imported_by(path)) - {name} for name, path in FILES.items()}


def room_of(name: str) -> str:
    """The folder, `study`; of a file beside them its own name."""
    return ([*name.split("."), "blocklab"])[1]


def rooms() -> Mapping[str, Set[str]]:
    found: dict[str, set[str]] = {}
    for name, others in ARROWS.items():
        # What the package's first file names is the surface: it loads nothing.
        if name != "blocklab":
            found.setdefault(room_of(name), set()).update(map(room_of, others))
    return {room: others - {room} for room, others in found.items()}


@pytest.mark.parametrize("graph", [ARROWS | {"blocklab": set()}, rooms()], ids=["files", "rooms"])
def test_there_is_no_circle(graph: Mapping[str, Set[str]]) -> None:
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


@pytest.mark.parametrize(
    ("room", "may_see"),
    [
        ("parts", set()),
        ("data", set()),
        ("model", {"parts"}),
        ("inspect", {"model", "parts"}),
        ("generation", {"model", "parts"}),
        ("training", {"data", "inspect", "model", "parts"}),
    ],
)
def test_a_room_sees_those_below_it_alone(room: str, may_see: set[str]) -> None:
    folders = {path.name for path in (SOURCE / "blocklab").iterdir() if path.is_dir()}
    assert rooms()[room] & (folders - {"record"}) <= may_see


def test_nobody_imports_the_command_line() -> None:
    for name in sorted(name for name in FILES if room_of(name) not in ("cli", "__main__")):
        assert "cli" not in map(room_of, ARROWS[name]), name
