"""The process that workers are copies of, where that is possible.

It has imported once what all of them need, begins with whoever asks first and ends with the process
that it belongs to. Nothing here imports torch, so that the server can do so while its owner does.
"""

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext

from blocklab.interrupts import undisturbed

PRELOADED = "blocklab.study.engines.preloaded"
"""What the server has imported."""


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
