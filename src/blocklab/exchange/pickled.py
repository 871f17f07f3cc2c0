"""Checkpoints from before safetensors: torch's zip of tensors, read without running anything.

A pickle can name any function, so its instructions are looked through first: only those that
rebuild tensors may be called, and every stored byte must really be in the file.
"""

import pickletools
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.exchange.tensor_file import InMemory

_CALLABLE = frozenset(
    {
        "collections OrderedDict",
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_parameter",
        *(f"torch {kind}Storage" for kind in ("Float", "Half", "BFloat16", "Double", "Long")),
        *(f"torch {kind}Storage" for kind in ("Int", "Short", "Char", "Byte", "Bool")),
    }
)
_INSTRUCTIONS = 64 * 2**20  # bytes of pickle; a real one has a few hundred for each tensor


def read_pickled(path: Path) -> InMemory:
    """The tensors of a `.bin` file. Raises BlocklabError for anything but a mapping of tensors."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check(path, archive)
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except zipfile.BadZipFile:
        raise _bad(path, "no zip archive; it may have been saved by a torch before 1.6") from None
    except BlocklabError:
        raise
    except Exception as error:  # torch's reader and unpickler raise whatever they meet
        raise _bad(path, str(error).splitlines()[0][:120] if str(error) else "damaged") from None
    if not isinstance(content, dict):
        raise _bad(path, f"it holds {type(content).__name__}, expected tensors by name")
    tensors: dict[str, Tensor] = {}
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise _bad(path, f"'{str(name)[:80]}' is {type(tensor).__name__}, not a tensor")
        tensors[name] = tensor.detach()
    return InMemory(path, tensors)


def _check(path: Path, archive: zipfile.ZipFile) -> None:
    size = path.stat().st_size
    members = archive.infolist()
    if any(m.compress_type != zipfile.ZIP_STORED or m.file_size > size for m in members):
        raise _bad(path, "its members are compressed or larger than the file")
    if sum(m.file_size for m in members) > size:
        raise _bad(path, "its members are larger than the file")
    pickles = [m for m in members if m.filename.endswith(".pkl")]
    if len(pickles) != 1 or pickles[0].file_size > _INSTRUCTIONS:
        raise _bad(path, "expected one data.pkl of moderate size")
    for opcode, argument, _ in pickletools.genops(archive.read(pickles[0])):
        named = opcode.name in ("GLOBAL", "INST")
        if opcode.name == "STACK_GLOBAL" or (named and argument not in _CALLABLE):
            raise _bad(path, f"it would call '{str(argument)[:80]}', which no tensor needs")


def _bad(path: Path, reason: str) -> BlocklabError:
    return BlocklabError(
        f"{path}: not a checkpoint that can be read safely ({reason}); "
        "convert it to safetensors with the program that wrote it"
    )
