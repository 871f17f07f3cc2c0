"""Ctrl-C: who hears of it while processes are started, save, or end."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], object] | signal.Handlers


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Have Ctrl-C wait until this is over, and what is started here never hear of it.

    It reaches the whole process group, and only the main process decides what follows. A process
    inherits the mask of signals from its first moment on; that half of one is started would leave
    it to nobody.
    """
    heard: list[FrameType | None] = []
    with interrupts_go_to(lambda number, frame: heard.append(frame)) as too_late:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if heard or too_late:
        signal.raise_signal(signal.SIGINT)


def patient() -> contextlib.AbstractContextManager[object]:
    """Let the workers save: a second Ctrl-C while they do is not for them."""
    return interrupts_go_to(signal.SIG_IGN)


@contextlib.contextmanager
def interrupts_go_to(handler: Handler) -> Iterator[bool]:
    """Where this is the main thread, for no other hears of Ctrl-C, and the handler Python's.

    Gives whether one came before `handler` could hear of it.
    """
    own = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not own or before is None:
        yield False
        return
    too_late = hand_over(handler)
    try:
        yield too_late
    finally:
        hand_over(before)


def hand_over(handler: Handler | int) -> bool:
    """To whoever hears of Ctrl-C from now on, however nervous the hand.

    One that is pending goes to the handler before, which may raise it in the middle of this: it
    is not raised further, and True says that there was one.
    """
    pending = False
    while True:
        try:
            signal.signal(signal.SIGINT, handler)
            return pending
        except KeyboardInterrupt:
            pending = True
