"""Files in which a user registers parts of their own."""

import hashlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from blocklab.errors import BlocklabError


def load_plugins(files: Iterable[Path]) -> dict[str, str]:
    """Import each file once; gives the fingerprint of its source by its name.

    The source decides the results of the runs that use it, so the fingerprint is part of their
    records. Raises BlocklabError naming the file when it cannot be imported.
    """
    fingerprints = {}
    for file in files:
        path = Path(file).resolve()
        try:
            source = path.read_bytes()
        except OSError as error:
            raise BlocklabError(f"{file}: cannot be read: {error.strerror}") from None
        fingerprint = hashlib.blake2b(source, digest_size=8).hexdigest()
        name = f"blocklab_plugin_{path.stem}_{fingerprint}"
        if name not in sys.modules:
            _import(path, name)
        fingerprints[path.name] = fingerprint
    return fingerprints


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
