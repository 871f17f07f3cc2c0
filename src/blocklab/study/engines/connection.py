"""To a Ray cluster: found, refused in a sentence where there is none, and let go again."""

import contextlib
import importlib
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import blocklab
from blocklab.errors import BlocklabError
from blocklab.interrupts import patient

CONNECTS_WITHIN = 5.0
"""Seconds that the address of a cluster may take to be reached."""


def ray_library() -> Any:
    """The package, which is an extra. Raises BlocklabError where it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise BlocklabError("--ray: Ray is not installed; pip install 'blocklab[ray]'") from None


@contextlib.contextmanager
def connected(address: str, say: Callable[[str], object] | None = None) -> Iterator[None]:
    """Connect to the Ray cluster at an address while this lasts; who was connected stays so.

    An address is what `ray.init` takes: `auto`, `HOST:PORT`, `ray://HOST:PORT`, or `local` for a
    cluster of this machine alone. Raises BlocklabError where there is none.
    """
    ray = ray_library()
    if ray.is_initialized():
        yield
        return
    if say is not None:
        say(f"connecting to Ray at {address}")
    _require_listener(address)
    # What Ray says of its use is sent to its makers; nobody was asked here.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    code = Path(blocklab.__file__).parent
    try:
        ray.init(
            address=address,
            namespace="blocklab",
            runtime_env={"py_modules": [str(code)]},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise _no_cluster(address, error) from None
    try:
        yield
    finally:
        with patient():
            ray.shutdown()


def _require_listener(address: str) -> None:
    """Ray would wait for minutes where nobody listens."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECTS_WITHIN).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from None


def _no_cluster(address: str, error: Exception) -> BlocklabError:
    return BlocklabError(
        f"--ray {address}: no cluster there ({in_a_line(error)}); `ray start --head` starts one, "
        "and `--ray local` one of this machine alone"
    )


def in_a_line(error: Exception, *, last: bool = False) -> str:
    """What an error says: Ray's errors come with traces and logs of other processes, in colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip() or type(error).__name__
    lines = [line.strip() for line in text.splitlines()]
    if last:
        return lines[-1]
    return f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") else lines[0]
