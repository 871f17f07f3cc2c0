"""A .gguf file: metadata and tensors, parsed with every claim held against the file's length.

Plain floating-point tensors are read here; quantised ones are dequantised by the `gguf` package,
a few rows at a time. What the names mean is in `gguf_model`.
"""

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.exchange.tensor_file import BLOCK

Metadata: TypeAlias = dict[str, object]

_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_MOST_KEYS, _MOST_TENSORS, _MOST_STRINGS = 10_000, 100_000, 1_500_000
"""Far beyond any real file; a lying count must cost no time."""

_F32, _F16, _BF16 = 0, 1, 30
_PLAIN = {_F32: torch.float32, _F16: torch.float16, _BF16: torch.bfloat16}


@dataclass(frozen=True)
class _Entry:
    kind: int
    """GGML's number of the type."""
    shape: tuple[int, ...]
    start: int
    """In bytes from the start of the file."""
    row: int
    """Bytes of one row."""


class GgufFile:
    """One file, mapped into memory. Raises BlocklabError when its header does not fit it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise BlocklabError(f"{path}: there is no such file")
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                if size < 24:
                    raise self._bad(f"it ends after {size} bytes")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise BlocklabError(f"{path}: cannot be read ({error.strerror or error})") from None
        self._size = size
        try:
            self.metadata, self._entries = self._parsed()
        except (struct.error, UnicodeDecodeError) as error:
            raise self._bad(str(error)[:120]) from None

    def names(self) -> list[str]:
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """What it is read as: quantised tensors become float32."""
        return _PLAIN.get(self._entries[name].kind, torch.float32)

    def where(self, name: str) -> Path:
        return self.path

    def tensor(self, name: str) -> Tensor:
        entry = self._entries[name]
        return self._rows(entry, 0, _n_rows(entry.shape)).view(entry.shape)

    def copy_into(self, name: str, target: Tensor, skipped: int = 0) -> None:
        entry = self._entries[name]
        if len(entry.shape) == 1:
            target.copy_(self.tensor(name)[skipped:].view(target.shape))
            return
        each = _n_rows(entry.shape) // len(target)  # rows of the file in one of the target's
        step = max(1, BLOCK // (entry.shape[-1] * 4 * max(each, 1)))
        for first in range(0, len(target), step):
            piece = target[first : first + step]
            rows = self._rows(entry, skipped + first * each, len(piece) * each)
            piece.copy_(rows.view(piece.shape))

    def _rows(self, entry: _Entry, first: int, n: int) -> Tensor:
        """Rows (n, last dimension) as floating-point numbers."""
        start = entry.start + first * entry.row
        raw = np.frombuffer(self._map, dtype=np.uint8, count=n * entry.row, offset=start)
        if entry.kind in _PLAIN:
            # A copy: the map is read-only, and may begin at any byte.
            flat = torch.from_numpy(raw.copy()).view(_PLAIN[entry.kind])
            return flat.view(n, entry.shape[-1])
        dequantize, kinds = _package(self.path)
        return torch.from_numpy(dequantize(raw.reshape(n, entry.row), kinds(entry.kind)))

    def _parsed(self) -> tuple[Metadata, dict[str, _Entry]]:
        reader = _Reader(self._map, self._size)
        magic, version = reader.take("4sI")
        if magic != b"GGUF" or version not in (2, 3):
            raise self._bad(f"it begins with {magic!r}, version {version}")
        n_tensors, n_keys = reader.take("QQ")
        if n_tensors > _MOST_TENSORS or n_keys > _MOST_KEYS:
            raise self._bad(f"it claims {n_tensors:,} tensors and {n_keys:,} keys")
        metadata: Metadata = {}
        for _ in range(n_keys):
            key = reader.string()
            metadata[key] = reader.value(*reader.take("I"))
        infos = [self._info(reader) for _ in range(n_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 2**20:
            raise self._bad(f"general.alignment is {alignment!r}")
        base = -(-reader.at // alignment) * alignment
        entries: dict[str, _Entry] = {}
        for name, shape, kind, offset in infos:
            if name in entries:
                raise self._bad(f"tensor '{name[:80]}' stands there twice")
            entries[name] = self._entry(name, shape, kind, base + offset)
        self._refuse_overlaps(entries)
        return metadata, entries

    def _info(self, reader: "_Reader") -> tuple[str, tuple[int, ...], int, int]:
        name = reader.string()
        (n_dims,) = reader.take("I")
        if not 1 <= n_dims <= 4:
            raise self._bad(f"tensor '{name[:80]}' has {n_dims} dimensions")
        shape = reader.take(f"{n_dims}Q")[::-1]  # they count the innermost first
        kind, offset = reader.take("IQ")
        return name, shape, kind, offset

    def _entry(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> _Entry:
        block, size = self._block(name, kind)
        if not all(0 < n < 2**40 for n in shape) or shape[-1] % block:
            raise self._bad(f"tensor '{name[:80]}' has shape {shape}")
        row = shape[-1] // block * size
        end = start + row * _n_rows(shape)
        if end > self._size:
            raise self._bad(f"tensor '{name[:80]}' ends at byte {end:,} of {self._size:,}")
        return _Entry(kind, shape, start, row)

    def _block(self, name: str, kind: int) -> tuple[int, int]:
        """How many numbers are stored together, in how many bytes."""
        if kind in _PLAIN:
            return 1, _PLAIN[kind].itemsize
        _, kinds = _package(self.path)
        import gguf

        try:
            sizes: tuple[int, int] = gguf.GGML_QUANT_SIZES[kinds(kind)]
        except (ValueError, KeyError):
            raise self._bad(f"tensor '{name[:80]}' has the unknown type {kind}") from None
        return sizes

    def _refuse_overlaps(self, entries: Mapping[str, _Entry]) -> None:
        end = 0
        for name, entry in sorted(entries.items(), key=lambda item: item[1].start):
            if entry.start < end:
                raise self._bad(f"tensor '{name[:80]}' overlaps another")
            end = entry.start + entry.row * _n_rows(entry.shape)

    def _bad(self, reason: str) -> BlocklabError:
        return BlocklabError(f"{self.path}: not a whole GGUF file ({reason}); fetch it again")


class _Reader:
    """Reads forward, never past the end."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self._data, self._size = data, size
        self.at = 0
        self._n_strings = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{layout}", self._data, self.at)
        self.at += struct.calcsize(f"<{layout}")
        return found

    def string(self) -> str:
        (length,) = self.take("Q")
        if length > self._size - self.at:
            raise struct.error(f"a text of {length:,} bytes does not fit the file")
        raw = self._data[self.at : self.at + length]
        self.at += length
        return raw.decode("utf-8")

    def value(self, kind: int) -> object:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(*self.take("IQ"))
        if kind not in _NUMBERS:
            raise struct.error(f"metadata of the unknown type {kind}")
        return self.take(_NUMBERS[kind])[0]

    def _array(self, kind: int, length: int) -> list[object]:
        if kind == _STRING:
            self._n_strings += length
            if self._n_strings > _MOST_STRINGS or 8 * length > self._size - self.at:
                raise struct.error(f"a list of {length:,} texts does not fit the file")
            return [self.string() for _ in range(length)]
        if kind not in _NUMBERS:
            raise struct.error(f"a list of the type {kind} is not implemented")
        if length * struct.calcsize(f"<{_NUMBERS[kind]}") > min(self._size - self.at, BLOCK):
            raise struct.error(f"a list of {length:,} numbers does not fit the file")
        return list(self.take(f"{length}{_NUMBERS[kind]}"))


def _n_rows(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape[:-1], dtype=object)) if len(shape) > 1 else 1


Dequantize: TypeAlias = Callable[[Any, Any], "np.ndarray[Any, np.dtype[np.float32]]"]


def _package(path: Path) -> tuple[Dequantize, Callable[[int], Any]]:
    """The package's dequantiser and its numbers of types."""
    try:
        import gguf
    except ImportError:
        raise BlocklabError(
            f"{path}: its weights are quantised, which needs the gguf package; "
            "pip install 'blocklab[gguf]'"
        ) from None
    return _quietly(path, gguf.quants.dequantize), gguf.GGMLQuantizationType


def _quietly(path: Path, dequantize: Callable[..., Any]) -> Dequantize:
    """Dequantise; what damaged blocks hold may overflow, and an unknown kind is an error."""

    def run(raw: Any, kind: Any) -> "np.ndarray[Any, np.dtype[np.float32]]":
        try:
            with np.errstate(all="ignore"):
                found = dequantize(raw, kind)
        except NotImplementedError:
            raise BlocklabError(
                f"{path}: the package gguf cannot dequantise {kind.name}; use another quantisation"
            ) from None
        return np.ascontiguousarray(found, dtype=np.float32)

    return run
