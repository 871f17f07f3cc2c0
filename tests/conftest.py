"""Tests press Ctrl-C, also where a shell's background job has it ignored."""

import contextlib
import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)
