"""Files in which a user registers parts of their own."""

import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.record import Record


def load_plugins(files: Iterable[Path]) -> dict[str, str]:
    """Import each file once; gives the fingerprint of its source by its name.

    The source decides the results of the runs that use it, so the fingerprint is part of their
    records. Raises BlocklabError naming the file when it cannot be imported, or when two files
    have one name.
    """
    fingerprints: dict[str, str] = {}
    for file in files:
        path = Path(file).resolve()
        try:
            source = path.read_bytes()
        except OSError as error:
            raise BlocklabError(f"{file}: cannot be read: {error.strerror}") from None
        fingerprint = hashlib.blake2b(source, digest_size=8).hexdigest()
        if fingerprints.setdefault(path.name, fingerprint) != fingerprint:
            raise BlocklabError(f"{file}: another plugin is called {path.name} too; rename one")
        name = _module_name(path.name, fingerprint)
        if name not in sys.modules:
            _import(path, name)
    return fingerprints


def used_by(config: ModelConfig, fingerprints: Mapping[str, str]) -> dict[str, str]:
    """Those of the plugins whose parts stand in a model: the others decide nothing of its runs."""
    layers = (config.layer(i) for i in range(config.n_layers) if config.layers)
    modules = {module for record in (config, *layers) for module in _modules(record)}
    return {
        name: fingerprint
        for name, fingerprint in fingerprints.items()
        if _module_name(name, fingerprint) in modules
    }


def _modules(value: object) -> Iterator[str]:
    """Where the classes of a record and of all records in it are defined."""
    if isinstance(value, Record):
        yield type(value).__module__
        for name in type(value).model_fields:
            yield from _modules(getattr(value, name))
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _modules(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _modules(inner)


def _module_name(file: str, fingerprint: str) -> str:
    return f"blocklab_plugin_{Path(file).stem}_{fingerprint}"


def _import(path: Path, name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BlocklabError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise BlocklabError(f"{path}: {type(error).__name__}: {error}") from error
