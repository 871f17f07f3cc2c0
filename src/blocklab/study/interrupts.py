"""Ctrl-C while other processes are started, or are given the time to save."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Have Ctrl-C wait until this is over, and what is started here never hear of it.

    It reaches the whole process group, and only the main process decides what follows. A process
    inherits the mask of signals from its first moment on; that half of one is started would leave
    it to nobody.
    """
    heard: list[FrameType | None] = []
    with _interrupts_go_to(lambda number, frame: heard.append(frame)):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if heard:
        signal.raise_signal(signal.SIGINT)


def patient() -> contextlib.AbstractContextManager[None]:
    """Let the workers save: a second Ctrl-C while they do is not for them."""
    return _interrupts_go_to(signal.SIG_IGN)


@contextlib.contextmanager
def _interrupts_go_to(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers,
) -> Iterator[None]:
    """Where this is the main thread, for no other hears of Ctrl-C, and the handler Python's."""
    own = threading.current_thread() is threading.main_thread()
    if not own or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
