"""Where a model is trained: the processor, or an accelerator that PyTorch finds here."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from blocklab.errors import BlocklabError

PROCESSOR = "cpu"


def available_devices() -> tuple[str, ...]:
    """Names of the devices that can be trained on here, the processor first."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return (PROCESSOR,) if found is None else (PROCESSOR, found.type)


def usable_device(name: str) -> torch.device:
    """The device of a name: cpu, cuda, cuda:1, mps … Raises BlocklabError where there is none."""
    there = available_devices()
    kind, _, index = name.partition(":")
    known = kind in there
    if known and index:
        count = torch.accelerator.device_count() if kind != PROCESSOR else 0
        known = index.isdecimal() and int(index) < count
    if not known:
        raise BlocklabError(f"device '{name}': not there; this machine has {', '.join(there)}")
    return torch.device(name)


def names_of(devices: tuple[str, ...]) -> tuple[str, ...]:
    """What the accelerators among them call themselves."""
    cuda = [name for name in devices if torch.device(name).type == "cuda"]
    return tuple(torch.cuda.get_device_name(name) for name in cuda)


def wait_for(device: torch.device) -> None:
    """Until everything that was asked of the device is done: for clocks."""
    if device.type != PROCESSOR:
        torch.accelerator.synchronize(device)


@contextmanager
def random_numbers(device: torch.device, seed: int) -> Iterator[None]:
    """Inside, the processor's and the device's generators start from `seed`; after it they are
    where they were.
    """
    mps = torch.mps.get_rng_state() if device.type == "mps" else None
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # Not torch.manual_seed: it would reseed every device there is.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        if mps is not None:
            torch.mps.manual_seed(seed)
        try:
            yield
        finally:
            if mps is not None:
                torch.mps.set_rng_state(mps)
