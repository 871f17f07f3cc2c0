"""Tensors in files, read without copying: safetensors, checked before anything is allocated.

A header is a claim. Every size and offset in it is held against the file's real length first, so
that a lying file costs nothing. Not for the meaning of names: that is a family's business.
"""

import mmap
import struct
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeGuard

import torch
from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.exchange.json_file import LIMIT, parse_json_object

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
BLOCK = 32 * 2**20
"""Bytes of a file that are mapped in at once while a tensor is copied."""


class TensorSource(Protocol):
    """Named tensors, wherever they lie."""

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> torch.dtype: ...

    def where(self, name: str) -> Path:
        """The file that holds it."""
        ...

    def tensor(self, name: str) -> Tensor:
        """The whole tensor, read-only."""
        ...

    def copy_into(self, name: str, target: Tensor, skipped: int = 0) -> None:
        """Copy all but the first `skipped` rows into `target`, which has as many numbers."""
        ...


@dataclass(frozen=True)
class _Entry:
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """In bytes from the start of the file."""
    size: int


class SafetensorsFile:
    """One .safetensors file, mapped into memory; only what is copied is ever read.

    Raises BlocklabError when the header does not fit the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise BlocklabError(f"{path}: there is no such file")
        try:
            with path.open("rb") as file:
                self._size = file.seek(0, 2)
                file.seek(0)
                self._entries = self._header(file.read(8), file.read)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise BlocklabError(f"{path}: cannot be read ({error.strerror or error})") from None

    def names(self) -> list[str]:
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return self._entries[name].dtype

    def where(self, name: str) -> Path:
        return self.path

    def tensor(self, name: str) -> Tensor:
        entry = self._entries[name]
        return self._mapped(entry, entry.start, entry.size).view(entry.shape)

    def copy_into(self, name: str, target: Tensor, skipped: int = 0) -> None:
        entry = self._entries[name]
        passed = skipped * entry.size // entry.shape[0] if skipped else 0
        start, size = entry.start + passed, entry.size - passed
        row = size // max(len(target), 1)
        rows = max(1, BLOCK // max(row, 1))
        for first in range(0, len(target), rows):
            piece = target[first : first + rows]
            begin = start + first * row
            piece.copy_(self._mapped(entry, begin, len(piece) * row).view(piece.shape))
            self._forget(begin, len(piece) * row)

    def _mapped(self, entry: _Entry, start: int, size: int) -> Tensor:
        if not size:
            return torch.empty(0, dtype=entry.dtype)
        raw = _without_warning(memoryview(self._map)[start : start + size])
        # A file may begin its data anywhere; what is not aligned has to be copied.
        aligned = raw if raw.data_ptr() % entry.dtype.itemsize == 0 else raw.clone()
        return aligned.view(entry.dtype)

    def _forget(self, start: int, size: int) -> None:
        """Give pages that were copied back to the system, lest the file be in memory twice."""
        if hasattr(mmap, "MADV_DONTNEED"):
            first = start // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, first, start + size - first)

    def _header(self, length: bytes, read: "_Read") -> dict[str, _Entry]:
        if len(length) < 8:
            raise self._bad(f"it ends after {self._size} bytes")
        (n,) = struct.unpack("<Q", length)
        if n > min(self._size - 8, LIMIT):
            raise self._bad(f"its header claims {n:,} bytes of {self._size:,}")
        header = parse_json_object(read(n), f"{self.path}: header")
        header.pop("__metadata__", None)
        entries = {name: self._entry(name, value, 8 + n) for name, value in header.items()}
        end = 8 + n
        for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].size)):
            if entry.start != end:
                raise self._bad(f"tensor '{name[:80]}' overlaps another or leaves a gap")
            end += entry.size
        if end != self._size:
            raise self._bad(f"its tensors end at byte {end:,} of {self._size:,}")
        return entries

    def _entry(self, name: str, value: object, base: int) -> _Entry:
        short = name[:80]
        if not isinstance(value, dict):
            raise self._bad(f"tensor '{short}' is not described by an object")
        dtype = DTYPES.get(str(value.get("dtype")))
        shape, offsets = value.get("shape"), value.get("data_offsets")
        if dtype is None:
            raise self._bad(f"tensor '{short}' has dtype {str(value.get('dtype'))[:20]!r}")
        if not _are_wholes(shape) or len(shape) > 8:
            raise self._bad(f"tensor '{short}' has shape {str(shape)[:60]}")
        if not _are_wholes(offsets) or len(offsets) != 2:
            raise self._bad(f"tensor '{short}' has data_offsets {str(offsets)[:60]}")
        start, end = offsets
        if not start <= end <= self._size - base:
            raise self._bad(f"tensor '{short}' lies at bytes {start} to {end}, beyond the file")
        size = dtype.itemsize
        for length in shape:
            size *= length
        if size != end - start:
            raise self._bad(
                f"tensor '{short}' of shape {tuple(shape)} needs {size} bytes, has {end - start}"
            )
        return _Entry(dtype, tuple(shape), base + start, size)

    def _bad(self, reason: str) -> BlocklabError:
        return BlocklabError(
            f"{self.path}: not a whole safetensors file ({reason}); fetch or save it again"
        )


class _Read(Protocol):
    def __call__(self, size: int, /) -> bytes: ...


def _are_wholes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**63 for n in value
    )


def _without_warning(part: memoryview) -> Tensor:
    """The bytes as a tensor. Torch would warn that they are read-only; nothing writes to them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(part, dtype=torch.uint8)


class Shards:
    """Several sources as one. Raises BlocklabError when two hold the same name."""

    def __init__(self, sources: Mapping[str, TensorSource]) -> None:
        self._of: dict[str, TensorSource] = {}
        for file, source in sources.items():
            for name in source.names():
                if name in self._of:
                    raise BlocklabError(f"{file}: holds '{name}', which another shard holds too")
                self._of[name] = source

    def names(self) -> list[str]:
        return list(self._of)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._of[name].shape(name)

    def dtype(self, name: str) -> torch.dtype:
        return self._of[name].dtype(name)

    def where(self, name: str) -> Path:
        return self._of[name].where(name)

    def tensor(self, name: str) -> Tensor:
        return self._of[name].tensor(name)

    def copy_into(self, name: str, target: Tensor, skipped: int = 0) -> None:
        self._of[name].copy_into(name, target, skipped)


class InMemory:
    """Tensors that are there already, of one file."""

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        self.path, self._tensors = path, tensors

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        return self._tensors[name].dtype

    def where(self, name: str) -> Path:
        return self.path

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]

    def copy_into(self, name: str, target: Tensor, skipped: int = 0) -> None:
        target.copy_(self._tensors[name][skipped:].reshape(target.shape))


def same_numbers(source: TensorSource, one: str, other: str) -> bool:
    """Whether two tensors of a source are equal, looked at piece by piece."""
    if source.shape(one) != source.shape(other):
        return False
    a, b = source.tensor(one).flatten(), source.tensor(other).flatten()
    return all(torch.equal(x, y) for x, y in _paired_pieces(a, b))


def _paired_pieces(a: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    size = BLOCK // a.dtype.itemsize
    for first in range(0, len(a), size):
        yield a[first : first + size], b[first : first + size]
