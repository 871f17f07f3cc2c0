"""Truncated, lying and hostile files: an error in under a second, never a crash or a huge claim.

The fuzzers damage whole checkpoints at random. A short run is in every test run; the slow one takes
as many seconds as BLOCKLAB_FUZZ_SECONDS says, ten minutes by default.
"""

import json
import os
import random
import resource
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import blocklab as bl
from blocklab.exchange.tensor_file import SafetensorsFile
from tests.exchange import gguf_files
from tests.exchange.folders import (
    LLAMA,
    llama_tensors,
    write_config,
    write_llama,
    write_sharded,
)


def refusal(folder: Path) -> str:
    began = time.monotonic()
    with pytest.raises(bl.BlocklabError) as caught:
        bl.load(folder)
    assert time.monotonic() - began < 1.0
    return str(caught.value)


def write_header(
    folder: Path, header: object, data: bytes = b"", claimed: int | None = None
) -> Path:
    write_config(folder)
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = struct.pack("<Q", len(text) if claimed is None else claimed)
    (folder / "model.safetensors").write_bytes(length + text + data)
    return folder


def entry(shape: list, start: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "data", "reason"),
    [
        ({"a": entry([2], 0, 8)}, b"1234", "beyond the file"),
        ({"a": entry([2], 0, 8)}, b"1" * 12, "end at byte"),
        ({"a": entry([3], 0, 8)}, b"1" * 8, "needs 12 bytes, has 8"),
        ({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, b"1" * 12, "overlaps"),
        ({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, b"1" * 12, "gap"),
        ({"a": entry([2**40, 2**40], 0, 8)}, b"1" * 8, "needs"),
        ({"a": entry([-2], 0, 8)}, b"1" * 8, "shape"),
        ({"a": entry([True, 2], 0, 8)}, b"1" * 8, "shape"),
        ({"a": entry([2.0], 0, 8)}, b"1" * 8, "shape"),
        ({"a": entry([1] * 9, 0, 4)}, b"1" * 4, "shape"),
        ({"a": entry([2], 8, 0)}, b"1" * 8, "beyond"),
        ({"a": entry([2], -8, 0)}, b"1" * 8, "data_offsets"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}, b"1" * 8, "data_offsets"),
        ({"a": entry([2], 0, 8, "Q4")}, b"1" * 8, "dtype"),
        ({"a": [1, 2]}, b"", "object"),
        ([1], b"", "expected a JSON object"),
        (b"{", b"", "not valid JSON"),
        (b"[" * 100_000, b"", "not valid JSON"),
        (b'{"a":1,"a":2}', b"", "stands there twice"),
        (b"\xff\xfe{}", b"", "not valid JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", b"", "JSON"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header, data, reason) -> None:
    message = refusal(write_header(tmp_path, header, data))
    assert reason in message
    assert "model.safetensors" in message


@pytest.mark.parametrize("claimed", [3, 10**6, 2**40, 2**64 - 1])
def test_a_header_longer_than_its_file_is_refused(tmp_path: Path, claimed: int) -> None:
    assert "model.safetensors" in refusal(write_header(tmp_path, {}, claimed=claimed))


def test_a_huge_header_is_refused_unread(tmp_path: Path) -> None:
    write_config(tmp_path)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 2**33))
        file.truncate(2**34)  # sparse: it takes no room
    assert "claims 8,589,934,592 bytes" in refusal(tmp_path)


def test_a_configuration_that_is_none_is_refused(tmp_path: Path) -> None:
    write_llama(tmp_path)
    for content in (b"", b"3", b"{", b"[" * 10**6, b'{"model_type": 3}', b" " * 2**25):
        (tmp_path / "config.json").write_bytes(content)
        assert "config.json" in refusal(tmp_path)


@pytest.mark.parametrize("cut", [0, 4, 8, 100, 1000, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = write_llama(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    assert "model.safetensors" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "intermediate_size", "head_dim"])
def test_a_size_that_lies_costs_no_memory(tmp_path: Path, name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    message = refusal(write_llama(tmp_path, **{name: 2**30}))
    assert "shape" in message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_a_number_of_experts_that_lies_costs_no_time(tmp_path: Path) -> None:
    changes = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    message = refusal(write_llama(tmp_path, num_local_experts=2**30, **changes))
    assert "needs more than the" in message


@pytest.mark.parametrize("shape", [(), (0, 8), (19, 0), (19,)])
def test_a_tied_head_and_a_table_of_no_shape_are_refused(tmp_path: Path, shape) -> None:
    tables = ("lm_head.weight", "model.embed_tokens.weight")
    tensors = llama_tensors() | {name: torch.zeros(shape) for name in tables}
    message = refusal(write_llama(tmp_path, tensors, tie_word_embeddings=True))
    assert f"'model.embed_tokens.weight' has shape {shape}" in message


def test_tensors_that_begin_at_odd_bytes_are_read_all_the_same(tmp_path: Path) -> None:
    """The format pads its header to eight bytes, and other writers may not."""
    header = json.dumps({"a": entry([3], 0, 12), "b": entry([2], 12, 20, "I64")}).encode()
    header = header.replace(b'"I64"', b'"F32"')
    header += b" " * (1 - len(header) % 2)
    values = struct.pack("<5f", 1, 2, 3, 4, 5)
    path = tmp_path / "odd.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + values)
    target = torch.empty(3)
    file = SafetensorsFile(path)
    file.copy_into("a", target)
    assert target.tolist() == [1.0, 2.0, 3.0]
    assert file.tensor("b").tolist() == [4.0, 5.0]


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"GGUF", "ends after 4 bytes"),
        (b"GGML" + bytes(40), "begins with"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version 1"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**60, 0), "claims"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**60), "claims"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 9999), "buffer"),
        (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 2**62), "does not fit"),
        (
            struct.pack("<4sIQQ", b"GGUF", 3, 0, 1)
            + _string(b"k")
            + struct.pack("<IIQ", 9, 8, 2**40),
            "does not fit",
        ),
        (
            struct.pack("<4sIQQ", b"GGUF", 3, 0, 1)
            + _string(b"k")
            + struct.pack("<IIQ", 9, 4, 2**40),
            "does not fit",
        ),
        (
            struct.pack("<4sIQQ", b"GGUF", 3, 0, 1)
            + _string(b"k")
            + struct.pack("<IIQ", 9, 9, 2**40),
            "not implemented",
        ),
        (
            struct.pack("<4sIQQ", b"GGUF", 3, 1, 0)
            + _string(b"t")
            + struct.pack("<IQQIQ", 2, 2**39, 2**39, 0, 0),
            "ends at byte",
        ),
        (
            struct.pack("<4sIQQ", b"GGUF", 3, 1, 0)
            + _string(b"t")
            + struct.pack("<IQIQ", 1, 8, 0, 2**63),
            "ends at byte",
        ),
        (
            struct.pack("<4sIQQ", b"GGUF", 3, 1, 0)
            + _string(b"t")
            + struct.pack("<IQIQ", 9, 8, 0, 0),
            "dimensions",
        ),
        (
            struct.pack("<4sIQQ", b"GGUF", 3, 1, 0)
            + _string(b"t")
            + struct.pack("<IQIQ", 1, 8, 9999, 0),
            "unknown type",
        ),
    ],
)
def test_a_gguf_header_that_lies_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert reason in refusal(path)


# Fuzzing


def _damage(data: bytes, rng: random.Random) -> bytes:
    """A few bytes flipped, cut out, doubled or put in; most of them near the start."""
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if not damaged:
            break
        end = len(damaged) if rng.random() < 0.3 else min(len(damaged), 400)
        place = rng.randrange(end)
        kind = rng.randrange(5)
        if kind == 0:
            damaged[place] = rng.randrange(256)
        elif kind == 1:
            damaged[place] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del damaged[place : place + rng.choice((1, 3, 8, 1000))]
        elif kind == 3:
            damaged[place:place] = rng.choice((b"9", b"-", b"\x00" * 8, b"\xff" * 8, b'"', b"[{"))
        else:
            digits = [i for i in range(end) if chr(damaged[i]).isdigit()]
            if digits:
                damaged[rng.choice(digits)] = ord(rng.choice("0123456789"))
    return bytes(damaged)


def _pickled(folder: Path) -> Path:
    write_config(folder)
    torch.save(llama_tensors(), folder / "pytorch_model.bin")
    return folder


def _with_tokenizer(folder: Path) -> Path:
    write_llama(folder)
    bl.load_tokenizer("bytes").save(folder / "tokenizer.json")
    said = {
        "generation_config.json": {"eos_token_id": [3, 4], "temperature": 0.5},
        "tokenizer_config.json": {"eos_token": {"content": "a"}, "chat_template": "{{ b }}"},
        "special_tokens_map.json": {"bos_token": "b", "additional_special_tokens": ["c"]},
    }
    for name, content in said.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def _gguf(folder: Path) -> Path:
    pytest.importorskip("gguf")
    folder.mkdir()
    said = {
        "model": "gpt2",
        "tokens": ["a", "b", "ab", "<s>"],
        "token_type": [1, 1, 1, 3],
        "merges": ["a b"],
        "eos_token_id": 3,
    }
    more = {f"tokenizer__ggml__{key}": value for key, value in said.items()}
    return gguf_files.write(folder / "model.gguf", llama_tensors(), LLAMA, **more)


WRITERS: dict[str, Callable[[Path], Path]] = {
    "safetensors": write_llama,
    "shards": write_sharded,
    "pickle": _pickled,
    "tokenizer": _with_tokenizer,
    "gguf": _gguf,
}


def _fuzz(source: Path, seed: int) -> Iterator[tuple[str, float]]:
    """Endless damage to a whole checkpoint: what was done, and how long loading took."""
    rng = random.Random(seed)
    folder = source if source.is_dir() else source.parent
    files = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    while True:
        path = rng.choice(list(files))
        damaged = _damage(files[path], rng)
        path.write_bytes(damaged)
        began = time.monotonic()
        try:
            bl.load(source)
        except bl.BlocklabError:
            pass
        except BaseException as error:
            (folder / f"failing-{path.name}").write_bytes(damaged)
            raise AssertionError(f"{path.name}: {type(error).__name__}: {error}") from error
        yield path.name, time.monotonic() - began
        path.write_bytes(files[path])


@pytest.mark.parametrize("kind", WRITERS)
def test_damage_is_refused_or_harmless(tmp_path: Path, kind: str) -> None:
    fuzzing = _fuzz(WRITERS[kind](tmp_path / kind), seed=0)
    for _ in range(150):
        name, seconds = next(fuzzing)
        assert seconds < 1.0, name


@pytest.mark.slow
def test_ten_minutes_of_damage_are_refused_or_harmless(tmp_path: Path) -> None:
    began, allowed = time.monotonic(), float(os.environ.get("BLOCKLAB_FUZZ_SECONDS", "600"))
    seed = int(began * 1000)
    fuzzers = [_fuzz(write(tmp_path / kind), seed) for kind, write in WRITERS.items()]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while time.monotonic() - began < allowed:
        for fuzzing in fuzzers:
            name, seconds = next(fuzzing)
            assert seconds < 1.0, f"{name} (seed {seed})"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB
