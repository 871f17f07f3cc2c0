"""What torchrun tells the processes that it starts."""

import os
import sys
from typing import NoReturn


def started_by_torchrun() -> bool:
    """Whether this process is one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "LOCAL_RANK" in os.environ


def leave(code: int) -> NoReturn:
    """End one of several processes that has said all it has to say.

    Threads that still speak to the others abort, now and then, a process that ends as usual.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
