"""What torchrun tells the processes that it starts."""

import os


def started_by_torchrun() -> bool:
    """Whether this process is one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "LOCAL_RANK" in os.environ
