"""The process that workers are copies of, where that is possible.

It has imported once what all of them need, begins with whoever asks first and ends with the process
that it belongs to. It is a copy itself of a process that has computed nothing yet; after that it
has to import for itself, for the threads that computed would be missing in a copy.
"""

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import BaseContext
from typing import NoReturn

from blocklab.interrupts import undisturbed

PRELOADED = "blocklab.study.engines.preloaded"
"""What the server has imported."""


def begin_as_copy() -> None:
    """Make the server a copy of this process, which has computed nothing yet: all is imported once.

    Where there is one already, or none can be, it does nothing.
    """
    importlib.import_module(PRELOADED)
    resource_tracker.ensure_running()  # starts in the same way, and stays a program of its own
    with _copies_for_programs():
        process_context()


def process_context() -> BaseContext:
    """How workers are started: as copies of the server, otherwise each imports for itself.

    Gives the server something to do at once where there is none yet, and does not wait for it.
    """
    if not sys.platform.startswith("linux"):
        return multiprocessing.get_context("spawn")  # others' libraries do not outlive a fork
    forkserver.set_forkserver_preload([PRELOADED])
    resource_tracker.ensure_running()  # begun later, it would unblock the signal for the server
    try:
        with without_main_module(), undisturbed(), _own_search_path():
            forkserver.ensure_running()
    except OSError:
        # No socket can be made where temporary files go, or a parent's server was inherited.
        return multiprocessing.get_context("spawn")
    return multiprocessing.get_context("forkserver")


@contextlib.contextmanager
def _own_search_path() -> Iterator[None]:
    """Have a server that is started here import what this process would, its blocklab too."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextlib.contextmanager
def without_main_module() -> Iterator[None]:
    """Let processes start without importing the caller's script again.

    They need nothing of it, and a script without a main guard would start itself over.
    """
    main = sys.modules["__main__"]
    hidden: list[str] = [name for name in ("__file__", "__spec__") if name in vars(main)]
    kept = {name: main.__dict__.pop(name) for name in hidden}
    main.__spec__ = None
    try:
        yield
    finally:
        del main.__spec__
        main.__dict__.update(kept)


@contextlib.contextmanager
def _copies_for_programs() -> Iterator[None]:
    """`multiprocessing` starts its server as a new interpreter, and has no place to say how."""
    before = util.spawnv_passfds
    util.spawnv_passfds = _copy  # type: ignore[assignment]
    try:
        yield
    finally:
        util.spawnv_passfds = before


def _copy(program: bytes, arguments: Sequence[str], files: Sequence[int]) -> int:
    process = os.fork()
    if process == 0:
        _serve(arguments[-1], files)
    return process


def _serve(command: str, files: Sequence[int]) -> NoReturn:
    """Do what the new interpreter would have been told, with the files that it would have had."""
    try:
        for file in map(int, os.listdir("/proc/self/fd")):
            if file > 2 and file not in files:
                with contextlib.suppress(OSError):  # the listing's own is closed already
                    os.close(file)
        # A handler of the owner's would be everybody's: nobody could end a worker.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        exec(command, {})
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)
