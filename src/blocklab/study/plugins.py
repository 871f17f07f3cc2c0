"""Files in which a user registers parts of their own, and what those import of the user's files."""

import hashlib
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import ModuleType

from blocklab.errors import BlocklabError
from blocklab.files import write_atomically
from blocklab.model.config import ModelConfig
from blocklab.own_file import imported_file, refusal
from blocklab.parts.activation import ACTIVATIONS, Activation
from blocklab.parts.contract import is_ours
from blocklab.record import Record, Tagged
from blocklab.study.plugin_sources import Imported, imported_by, is_own, top_names_in

Kinds = dict[tuple[str, str], type[Tagged]]
"""Records by slot and kind."""


@dataclass(frozen=True, eq=False)
class _Plugin:
    """A file that was loaded, with all that its loading brought."""

    path: Path
    source: bytes
    imported: tuple[Imported, ...]
    modules: Mapping[str, ModuleType]
    """Of what it imports, those that are loaded."""
    kinds: Kinds
    activations: Mapping[str, Activation]

    @property
    def fingerprint(self) -> str:
        """Of all its sources, and of what is made of them here."""
        digest = hashlib.blake2b(self.source, digest_size=8, salt=_CONTRACT)
        for file in self.imported:
            own = hashlib.blake2b(file.content).hexdigest()
            digest.update(f"\0{file.place}\0{own}".encode())
        return digest.hexdigest()

    def is_at(self, path: Path, source: bytes) -> bool:
        """Whether loading this file would bring the same again."""
        return (path.name, source) == (self.path.name, self.source) and all(
            _content(_beside(path, file)) == file.content for file in self.imported
        )

    def begin(self) -> None:
        """Make its names mean its own again, whatever was loaded since."""
        sys.modules.update(self.modules)
        for (slot, kind), record in self.kinds.items():
            Tagged._kinds.setdefault(slot, {})[kind] = record
        ACTIVATIONS.update(self.activations)


_CONTRACT = b"2"
"""Raised whenever parts of a user's own begin with other values, or are called otherwise."""

_LOADED: dict[Path, _Plugin] = {}
_LOADING: set[Path] = set()
_FOLDERS: list[str] = []
"""Of plugins, as they stand at the end of the search path."""


def load_plugins(files: Iterable[Path]) -> dict[str, str]:
    """Import each file once; gives the fingerprint of its sources by its name.

    The sources decide the results of the runs that use them, so the fingerprint is part of their
    records: the file's and those of the user's own modules that it imports. Modules beside a file
    can be imported by it, then and later. Raises BlocklabError naming the file when it cannot be
    imported, when two files have one name, or when two import different files of one name.
    """
    plugins: dict[str, _Plugin] = {}
    for file in files:
        plugin = _loaded(Path(file))
        other = plugins.setdefault(plugin.path.name, plugin)
        if other.fingerprint != plugin.fingerprint:
            raise BlocklabError(
                f"{file}: another plugin is called {other.path.name} too; rename one"
            )
    for one, other in combinations(plugins.values(), 2):
        _require_no_confusion(one, other)
    for plugin in plugins.values():
        plugin.begin()
    return {name: plugin.fingerprint for name, plugin in plugins.items()}


def used_by(config: Record, fingerprints: Mapping[str, str]) -> dict[str, str]:
    """Those of the plugins that registered something a record holds: the others decide nothing of
    its runs.
    """
    kinds, words = _said_in(config)
    return {
        name: fingerprint
        for name, fingerprint in fingerprints.items()
        if (plugin := _named(name, fingerprint))
        and (kinds.keys() & plugin.kinds.keys() or words & plugin.activations.keys())
    }


def require_given(config: Record, fingerprints: Mapping[str, str], at: str) -> None:
    """Raise BlocklabError where a part of the user's own comes from none of the given plugins.

    Runs are trained by other processes, which know nothing of what a script defined. `at` says
    whose record it is.
    """
    plugins = [found for found in (_named(*given) for given in fingerprints.items()) if found]
    for (slot, kind), record in _said_in(config)[0].items():
        package = record.__module__.split(".")[0]
        if is_ours(record) or any(
            (slot, kind) in plugin.kinds or package in top_names_in(plugin.source)
            for plugin in plugins
        ):
            continue
        raise BlocklabError(
            f"{at}: {slot} '{kind}' is a part of your own, and the processes that train need the "
            "file that defines it: run_study(…, plugins=[__file__]) for one in this script, which "
            'then runs its study under if __name__ == "__main__":'
        )


def require_unchanged(expected: Mapping[str, str], loaded: Mapping[str, str]) -> None:
    """Raise BlocklabError where a plugin that a run's record names is not what was loaded."""
    for name, fingerprint in expected.items():
        if loaded.get(name) != fingerprint:
            raise BlocklabError(
                f"{name}: it, or a file that it imports, was edited while its runs were trained; "
                "start again, and the runs that use it are trained anew"
            )


def sources_of(files: Iterable[Path]) -> dict[str, bytes]:
    """Plugins with all they import of the user's files, by the path of each in a folder of copies.

    A plugin that imports none lies there by its name, any other in a folder of its own.
    """
    copies: dict[str, bytes] = {}
    for plugin in map(_loaded, map(Path, files)):
        folder = f"{plugin.path.stem}/" if plugin.imported else ""
        copies[f"{folder}{plugin.path.name}"] = plugin.source
        copies |= {f"{folder}{file.place}": file.content for file in plugin.imported}
    return copies


def write_copies(copies: Mapping[str, bytes], folder: Path) -> None:
    """Write what `sources_of` gave, over earlier copies. Raises RunFailed when the disk refuses."""
    for place, content in copies.items():
        write_atomically(folder / place, content)
    for plugin in copies_in(folder):
        other = f"{plugin.stem}/{plugin.name}" if plugin.parent == folder else plugin.name
        if other in copies and plugin.relative_to(folder).as_posix() not in copies:
            plugin.unlink()  # from when it imported nothing yet, or no longer does


def copies_in(folder: Path) -> tuple[Path, ...]:
    """The plugins in a folder of copies."""
    alone, others = folder.glob("*.py"), folder.glob("*/*.py")
    return tuple(sorted([*alone, *(file for file in others if file.stem == file.parent.name)]))


def _said_in(config: Record) -> tuple[Kinds, frozenset[str]]:
    """The kinds in a record and in all records in it, and every word that it says."""
    layers: Iterable[Record] = ()
    if isinstance(config, ModelConfig) and config.layers:
        layers = [config.layer(i) for i in range(config.n_layers)]
    values = [value for record in (config, *layers) for value in _values(record)]
    records = (value for value in values if isinstance(value, Tagged))
    return (
        {(record.slot, record.kind): type(record) for record in records},
        frozenset(value for value in values if isinstance(value, str)),
    )


def _values(value: object) -> Iterator[object]:
    """A value and everything in it."""
    yield value
    inner: Iterable[object] = ()
    if isinstance(value, Record):
        inner = (getattr(value, name) for name in type(value).model_fields)
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, tuple | list):
        inner = value
    for one in inner:
        yield from _values(one)


def _named(name: str, fingerprint: str) -> _Plugin | None:
    """The plugin that was loaded under this name with these sources."""
    found = (plugin for plugin in _LOADED.values() if plugin.path.name == name)
    return next((plugin for plugin in found if plugin.fingerprint == fingerprint), None)


def _loaded(file: Path) -> _Plugin:
    path = file.resolve()
    try:
        source = path.read_bytes()
    except OSError as error:
        raise BlocklabError(f"{file}: cannot be read: {error.strerror}") from None
    known = (_LOADED.get(path), *_LOADED.values())
    plugin = next((one for one in known if one and one.is_at(path, source)), None)
    if plugin is None:
        plugin = _LOADED[path] = _import(path, source)
    return plugin


def _import(path: Path, source: bytes) -> _Plugin:
    """Execute a plugin's file, the modules beside it within reach."""
    if path in _LOADING:
        raise BlocklabError(
            'asks for itself while it is imported; put what a script does under if __name__ == "'
            '__main__":'
        )
    name = f"blocklab_plugin_{path.stem}_{hashlib.blake2b(source, digest_size=8).hexdigest()}"
    _forget(path)
    _search_last(path.parent)
    kinds, activations, before = _kinds(), dict(ACTIVATIONS), dict(sys.modules)
    _LOADING.add(path)
    try:
        imported_file(path, name)
        new = [n for n, m in sys.modules.items() if before.get(n) is not m and n != name]
        imported = imported_by(path, source, filter(is_own, new))
    except BaseException as error:
        for new_name in sys.modules.keys() - before.keys():
            if is_own(new_name):
                del sys.modules[new_name]
        if not isinstance(error, Exception | SystemExit):
            raise
        raise refusal(path, error) from error
    finally:
        _LOADING.discard(path)
    loaded = {
        file.module: sys.modules[file.module] for file in imported if file.module in sys.modules
    }
    own = {name, *loaded}
    return _Plugin(
        path,
        source,
        imported,
        loaded,
        {
            key: record
            for key, record in _kinds().items()
            if kinds.get(key) is not record or record.__module__ in own
        },
        {
            key: function
            for key, function in ACTIVATIONS.items()
            if activations.get(key) is not function or getattr(function, "__module__", "") in own
        },
    )


def _kinds() -> Kinds:
    return {
        (slot, kind): r for slot, of_slot in Tagged._kinds.items() for kind, r in of_slot.items()
    }


def _forget(path: Path) -> None:
    """Let a plugin import its own neighbours: not what others have under their names, nor what
    was edited since. What it registered before makes room for what it registers now.
    """
    importlib.invalidate_caches()
    for plugin in _LOADED.values():
        for file in plugin.imported:
            beside = _beside(path, file)
            if beside != file.file or _content(beside) != file.content:
                sys.modules.pop(file.module, None)
        if plugin.path.name == path.name:
            for name in plugin.activations:
                ACTIVATIONS.pop(name, None)


def _search_last(folder: Path) -> None:
    """Find modules in this folder where nothing else has their name, before other plugins' ones."""
    sys.path[:] = [place for place in sys.path if place not in _FOLDERS]
    if str(folder) in _FOLDERS:
        _FOLDERS.remove(str(folder))
    if str(folder) not in sys.path:
        _FOLDERS.insert(0, str(folder))
    sys.path += _FOLDERS


def _require_no_confusion(one: _Plugin, other: _Plugin) -> None:
    there = {file.module: file for file in other.imported}
    for file in one.imported:
        namesake = there.get(file.module)
        if namesake is not None and namesake.content != file.content:
            raise BlocklabError(
                f"{one.path} imports {file.file} and {other.path} imports {namesake.file}: "
                f"two files called {file.module}; rename one"
            )


def _beside(plugin: Path, file: Imported) -> Path:
    """Where a plugin at this path finds a file: beside it, or where it was found before."""
    beside = plugin.parent / file.place
    return beside.resolve() if beside.is_file() else file.file


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None
