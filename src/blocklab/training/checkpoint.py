"""What a run keeps on disk while it trains: checkpoints, and the metrics of every step.

A checkpoint is one safetensors file; its header holds the step, a JSON state and a checksum. The
one before it is kept, and used when the newest is damaged. What goes into a checkpoint is the
caller's business.
"""

import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import safetensors
import torch
from torch import Tensor

from blocklab.errors import BlocklabError, RunFailed
from blocklab.files import refused, remove_partial, write_atomically
from blocklab.training.strict_json import restored, strict
from blocklab.training.tensors import write_tensors

JsonObject: TypeAlias = dict[str, Any]
"""Whatever JSON can say under names."""

NEWEST = "checkpoint.safetensors"
PREVIOUS = "checkpoint.previous.safetensors"
DAMAGED = "checkpoint.damaged.safetensors"

METRICS = "metrics.jsonl"
"""What a run measures, a row a step."""


@dataclass(frozen=True)
class Checkpoint:
    """What was saved after `step` steps. `note` says when it is not the newest that was written."""

    step: int
    tensors: dict[str, Tensor]
    state: JsonObject
    note: str | None = None


class _Damaged(Exception):
    """The file is not what was written."""


def save_checkpoint(
    folder: Path, step: int, tensors: Mapping[str, Tensor], state: JsonObject
) -> None:
    """Save under `folder`, made if missing; the checkpoint before becomes the previous one.

    `state` is what JSON can say. A tensor with several names (tied) is stored once.
    Raises RunFailed when the disk refuses; the newest checkpoint before then still loads.
    """
    stored, aliases = _distinct(tensors)
    newest = folder / NEWEST
    try:
        about = json.dumps({"step": step, "state": state, "aliases": aliases})
    except (TypeError, ValueError) as error:
        raise BlocklabError(f"{newest}: the state is not JSON ({error})") from None
    metadata = {"blocklab": about, "checksum": _checksum(about, stored)}
    remove_partial(folder, NEWEST)
    write_tensors(newest, stored, metadata, previous=folder / PREVIOUS)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None where there is none.

    A damaged newest one is set aside, so that the next save cannot put it over the good previous
    one. Raises BlocklabError, naming the file, when nothing whole is left.
    """
    newest, previous = folder / NEWEST, folder / PREVIOUS
    remove_partial(folder, NEWEST)
    try:
        return _read(newest)
    except FileNotFoundError:
        if not previous.exists():
            return None
        fault = f"{newest}: was being replaced when the process ended"
    except _Damaged as error:
        fault = f"{newest}: damaged ({error})"
    try:
        found = _read(previous)
    except (FileNotFoundError, _Damaged) as error:
        lost = f"damaged ({error})" if isinstance(error, _Damaged) else "missing"
        raise BlocklabError(
            f"{fault}, and {previous.name} is {lost}; remove both to start again from step 0"
        ) from None
    with suppress(OSError):
        os.replace(newest, folder / DAMAGED)
    note = f"{fault}; continuing from {previous.name}, step {found.step}"
    return Checkpoint(found.step, found.tensors, found.state, note)


def remove_checkpoints(folder: Path) -> None:
    """Remove every checkpoint in `folder`, and what killed processes left of any file."""
    remove_partial(folder)
    for name in (NEWEST, PREVIOUS, DAMAGED):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def _distinct(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, ready to be stored, and the name it is stored under for its other names."""
    first: dict[tuple[object, ...], str] = {}
    stored: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    for name, tensor in tensors.items():
        same = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and same in first:
            aliases[name] = first[same]
        else:
            first[same] = name
            stored[name] = tensor.detach().cpu().contiguous()
    return stored, aliases


def _checksum(about: str, tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 of everything that is stored; at 7 GB/s it costs less than the write."""
    found = zlib.crc32(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found = zlib.crc32(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"


def _read(path: Path) -> Checkpoint:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _checksum(metadata["blocklab"], tensors) != metadata["checksum"]:
            raise _Damaged("checksum does not match")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunFailed(f"{path}: cannot be read ({error.strerror or error})") from error
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise _Damaged(str(error)) from None
    about = json.loads(metadata["blocklab"])
    tensors |= {name: tensors[target] for name, target in about["aliases"].items()}
    return Checkpoint(about["step"], tensors, about["state"])


class MetricsFile:
    """One object of `strict_json` a line. Rows have a `step`, counted in steps done."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def append(self, row: JsonObject) -> None:
        """Add a row, for whoever reads along. It is certain to be on disk after `flush`."""
        line = json.dumps(strict(row), allow_nan=False) + "\n"
        try:
            if self._file is None:
                self.truncate_to(math.inf)
                self._file = open(self.path, "ab")  # noqa: SIM115
            self._file.write(line.encode())
            self._file.flush()
        except OSError as error:
            raise refused(self.path, error) from error

    def flush(self) -> None:
        """Wait until every row is on disk. Do so before the checkpoint that counts on them."""
        try:
            if self._file is not None:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise refused(self.path, error) from error

    def truncate_to(self, step: float) -> None:
        """Drop the rows after `step`, and a last line that a killed process left half-written.

        Where there is no file yet, there is an empty one then.
        """
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None
        content = _content(self.path)
        kept = [line for line, row in _rows(self.path, content) if row.get("step", 0) <= step]
        wanted = b"".join(line + b"\n" for line in kept)
        if wanted != content or not self.path.exists():
            write_atomically(self.path, wanted)


def read_metrics(path: Path) -> list[JsonObject]:
    """The rows of a metrics file; none where there is no file. Skips a half-written last line."""
    return [restored(row) for _, row in _rows(path, _content(path))]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise RunFailed(f"{path}: cannot be read ({error.strerror or error})") from error


def _rows(path: Path, content: bytes) -> Iterable[tuple[bytes, JsonObject]]:
    lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            yield line, json.loads(line)
        except ValueError:
            if number != len(lines):
                raise BlocklabError(
                    f"{path}: line {number} is not JSON; remove it, or the run's folder"
                ) from None
