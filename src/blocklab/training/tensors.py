"""Tensors to a safetensors file, from where they lie in memory.

The library's own writer puts a second and a third copy of everything beside what it stores (or,
from 0.8 on, files of its own beside ours, which a killed process leaves behind). The format is a
length, a header in JSON and the tensors' bytes; it is read with the library.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.files import new_file

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
}


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    previous: Path | None = None,
) -> None:
    """Put the tensors at `path`, old content or new, never half; what stood there at `previous`.

    They must be contiguous and on the processor; what several share is stored as often. Raises
    RunFailed when the disk refuses, BlocklabError for a type that the format lacks.
    """
    with new_file(path, previous=previous) as partial, partial.open("xb") as file:
        _write(file, tensors, metadata or {})


def _write(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    # Wide numbers first: so each begins at a multiple of its size, as readers map them.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, tensor in ordered:
        if tensor.dtype not in _NAMES:
            raise BlocklabError(f"'{name}': {tensor.dtype} has no name in the safetensors format")
        end = start + tensor.nbytes
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    about = json.dumps(header, separators=(",", ":")).encode()
    about += b" " * (-len(about) % 8)
    file.write(len(about).to_bytes(8, "little"))
    file.write(about)
    for _, tensor in ordered:
        file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
