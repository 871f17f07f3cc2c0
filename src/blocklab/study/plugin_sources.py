"""What a plugin's file imports of the user's own files, found by reading the import statements.

Read and not watched: an import inside a function counts, and so does one of a module that was
imported before.
"""

import ast
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import blocklab
from blocklab.errors import BlocklabError

_INSTALLED = tuple(
    Path(sysconfig.get_path(name)).resolve()
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_OURS = Path(blocklab.__file__).resolve().parent


@dataclass(frozen=True)
class Imported:
    """A file of the user's own that a plugin imports."""

    module: str
    file: Path
    content: bytes

    @property
    def place(self) -> str:
        """Where a copy lies beside a copy of the plugin: `helper.py`, `package/__init__.py`."""
        steps = self.module.split(".")
        return "/".join([*(steps if _is_package(self.file) else steps[:-1]), self.file.name])


def imported_by(plugin: Path, source: bytes, also: Iterable[str]) -> tuple[Imported, ...]:
    """The user's own files that a loaded plugin imports, at once or late, by module name.

    `also` names modules that are known to be imported. Raises BlocklabError where a file beside the
    plugin is not what an import of its name finds.
    """
    found: dict[str, Imported] = {}
    waiting = [*_names_in(source, ""), *also]
    while waiting:
        name = waiting.pop()
        if name in found or name == "__main__":
            continue
        file = _file_of(name)
        _require_found(plugin, name, file)
        if file is None or file == plugin or not _is_own(file):
            continue
        found[name] = Imported(name, file, file.read_bytes())
        if file.suffix == ".py":
            package = name if _is_package(file) else name.rpartition(".")[0]
            waiting += _names_in(found[name].content, package)
    return tuple(found[name] for name in sorted(found))


def is_own(name: str) -> bool:
    """Whether a module that is imported is a file of the user's own."""
    file = _file_of(name)
    return file is not None and _is_own(file)


def top_names_in(source: bytes) -> frozenset[str]:
    """The packages that a source imports from."""
    return frozenset(name for name in _names_in(source, "") if "." not in name)


def _names_in(source: bytes, package: str) -> Iterator[str]:
    """Every module that a source may import, with the packages it lies in."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # never imported yet, and its error is said when it is
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                try:
                    base = importlib.util.resolve_name("." * node.level + base, package)
                except ImportError:
                    continue
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            steps = name.split(".")
            yield from (".".join(steps[: n + 1]) for n in range(len(steps)))


def _file_of(name: str) -> Path | None:
    """The file that an import of this name reads or has read."""
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
        return Path(file).resolve() if file else None
    spec = _spec_of(name)
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None


def _spec_of(name: str) -> ModuleSpec | None:
    parent = name.rpartition(".")[0]
    if not parent:
        return PathFinder.find_spec(name)
    if parent in sys.modules:
        where = getattr(sys.modules[parent], "__path__", None)
    else:
        spec = _spec_of(parent)
        where = spec.submodule_search_locations if spec is not None else None
    return PathFinder.find_spec(name, list(where)) if where is not None else None


def _require_found(plugin: Path, name: str, file: Path | None) -> None:
    """A name that means one file here and another one in another process is nobody's."""
    if "." in name:
        return
    beside = plugin.parent / f"{name}.py", plugin.parent / name / "__init__.py"
    neighbour = next((path.resolve() for path in beside if path.is_file()), None)
    if neighbour is None or neighbour in (file, plugin):
        return
    if file is None or not file.is_file() or file.read_bytes() != neighbour.read_bytes():
        where = file or "a part of Python"
        raise BlocklabError(
            f"{plugin}: imports '{name}', which is {where} and not the file beside it; rename "
            f"{neighbour}"
        )


def _is_own(file: Path) -> bool:
    installed = {"site-packages", "dist-packages"} & {*file.parts}
    return (
        not installed
        and file.is_file()
        and not any(file.is_relative_to(place) for place in (*_INSTALLED, _OURS))
    )


def _is_package(file: Path) -> bool:
    return file.stem == "__init__"
