"""Where a model is trained: the processor, or an accelerator that PyTorch finds here."""

import torch

from blocklab.errors import BlocklabError

PROCESSOR = "cpu"


def available_devices() -> tuple[str, ...]:
    """Names of the devices that can be trained on here, the processor first."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return (PROCESSOR,) if found is None else (PROCESSOR, found.type)


def usable_device(name: str) -> torch.device:
    """The device of this name. Raises BlocklabError where there is none."""
    there = available_devices()
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in there:
        raise BlocklabError(f"device '{name}': not there; this machine has {', '.join(there)}")
    return device


def wait_for(device: torch.device) -> None:
    """Until everything that was asked of the device is done: for clocks."""
    if device.type != PROCESSOR:
        torch.accelerator.synchronize(device)


def with_random_numbers(device: torch.device) -> list[torch.device]:
    """Devices whose generator must be put back beside the processor's."""
    return [device] if device.type == "cuda" else []
