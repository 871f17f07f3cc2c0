"""A Python file of the user's own, imported by its path: a plugin, or a learner's module.

Where its neighbours are found, and what it brought, is the business of whoever imports it.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from blocklab.errors import BlocklabError
from blocklab.parts.contract import in_file


def imported_file(path: Path, name: str) -> ModuleType:
    """The module that a file is, executed anew and known to Python as `name` from then on.

    Raises BlocklabError naming the file, and where in it, when it is no Python file, when it fails,
    and when it ends the process.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BlocklabError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Before it runs, as an import does: a dataclass looks its annotations up in its module.
    sys.modules[name] = module
    try:
        with _no_bytecode():
            spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        if not isinstance(error, Exception | SystemExit):
            raise
        raise refusal(path, error) from error
    return module


def refusal(path: Path, error: BaseException) -> BlocklabError:
    """What an error raised in a user's file comes to, in a line that names the file."""
    if isinstance(error, BlocklabError):
        said = str(error)
        return BlocklabError(said if said.startswith(str(path)) else f"{path}: {said}")
    if isinstance(error, SystemExit):
        return BlocklabError(
            f'{path}: ends the process; put what a script does under if __name__ == "__main__":'
        )
    return BlocklabError(f"{path}: {in_file(error, str(path.absolute()))}")


@contextlib.contextmanager
def _no_bytecode() -> Iterator[None]:
    """Leave nothing beside the user's files; of two edits in a second the first would be kept."""
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before
