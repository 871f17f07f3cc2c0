"""Models in .gguf files, as llama.cpp's converter writes them.

The architecture is the one that the file's metadata names. Differences to the checkpoints they
were converted from are undone: the interleaved rotation of `llama`, and Gemma's gains, which
stand there with one added.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blocklab.errors import BlocklabError, nearest
from blocklab.exchange.conventions import within_rows
from blocklab.exchange.fields import Fields
from blocklab.exchange.gguf_file import GgufFile
from blocklab.exchange.gguf_tokenizer import gguf_tokenizer
from blocklab.exchange.loaded import Loaded
from blocklab.exchange.names import Names, Place, Rows, Stored, Whole, stored_tensors
from blocklab.exchange.weights import check_tensors, filled
from blocklab.model.config import ModelConfig


@dataclass(frozen=True)
class _Interleaved:
    """Queries and keys with the two halves of each head's rotation side by side; then values."""

    names: tuple[str, str, str]

    def stored(self, place: Place) -> Iterator[Stored]:
        n_heads, n_kv_heads, head_dim = place.heads()
        for t, heads in zip(
            Rows(self.names, cut="heads").stored(place), (n_heads, n_kv_heads, 0), strict=True
        ):
            yield Stored(t.name, t.shape, _turned(t.view, heads, head_dim) if heads else t.view)


def _turned(view: Any, heads: int, head_dim: int) -> Any:
    def interleaved(parameter: Tensor) -> Tensor:
        rows: Tensor = view(parameter)
        halves = rows.view(heads, 2, head_dim // 2, *rows.shape[1:])
        return halves.transpose(1, 2)  # (heads, head_dim / 2, 2, …)

    return interleaved


_QKV = ("blk.{i}.attn_q", "blk.{i}.attn_k", "blk.{i}.attn_v")
_COMMON: Names = {
    "embedding": Whole("token_embd"),
    "blocks.{i}.norm.attention": Whole("blk.{i}.attn_norm"),
    "blocks.{i}.attention.output": Whole("blk.{i}.attn_output"),
    "blocks.{i}.norm.feed_forward": Whole("blk.{i}.ffn_norm"),
    "blocks.{i}.feed_forward.expand": Rows(("blk.{i}.ffn_gate", "blk.{i}.ffn_up")),
    "blocks.{i}.feed_forward.contract": Whole("blk.{i}.ffn_down"),
    "final_norm": Whole("output_norm"),
    "head": Whole("output"),
}


@dataclass(frozen=True)
class _Architecture:
    qkv: _Interleaved | Rows
    activation: str = "silu"
    scaled_embedding: bool = False
    """Whether looked-up vectors are multiplied by sqrt(d_model)."""

    def names(self) -> Names:
        return _COMMON | {"blocks.{i}.attention.qkv": self.qkv}


ARCHITECTURES = {
    "llama": _Architecture(_Interleaved(_QKV)),
    "qwen2": _Architecture(Rows(_QKV, cut="heads")),
    "gemma": _Architecture(Rows(_QKV, cut="heads"), activation="gelu_tanh", scaled_embedding=True),
}


def load_gguf(path: Path, dtype: torch.dtype) -> Loaded:
    """The model in `path`, dequantised to `dtype`.

    Raises BlocklabError for an architecture, a field or a quantisation that is not implemented,
    and for files that are damaged or lie.
    """
    found = _described(path)
    file, config = found.file, found.config
    if config.n_layers > len(file.names()):
        raise BlocklabError(
            f"{path}: {found.name}.block_count is {config.n_layers}, but there are only "
            f"{len(file.names())} tensors"
        )
    wanted = stored_tensors(ARCHITECTURES[found.name].names(), config)
    check_tensors(wanted, file, path, (r"^rope_freqs\.weight$",))
    model = filled(config, wanted, file, dtype)
    tokenizer, before, said, more = gguf_tokenizer(file.metadata, path)
    notes = [*found.notes, *more]
    conventions = said.within(config.rows, notes)
    start_ids = within_rows("bos_token_id", before, config.rows, notes)
    return Loaded(
        model,
        tokenizer,
        f"{path} ({found.name})",
        start_ids,
        conventions.stop_ids,
        tuple(notes),
        conventions,
    )


def gguf_config(path: Path) -> ModelConfig:
    """What the header of `path` describes. Raises BlocklabError as `load_gguf` does of it."""
    return _described(path).config


class _Described(NamedTuple):
    file: GgufFile
    name: str
    """Of the architecture."""
    config: ModelConfig
    notes: tuple[str, ...]


def _described(path: Path) -> _Described:
    file = GgufFile(path)
    name = str(file.metadata.get("general.architecture"))
    if name not in ARCHITECTURES:
        raise BlocklabError(
            f"{path}: general.architecture '{name[:80]}' is not implemented; "
            f"{nearest(name, ARCHITECTURES)}"
        )
    if file.metadata.get("split.count", 1) not in (0, 1):
        raise BlocklabError(f"{path}: split.count: one of several files; merge them first")
    fields = _fields(file, f"{name}.")
    config = _config(fields, file, ARCHITECTURES[name])
    return _Described(file, name, config, tuple(fields.notes))


def _fields(file: GgufFile, prefix: str) -> Fields:
    """The architecture's own fields; those of other sections describe, and compute nothing."""
    own = {
        key.removeprefix(prefix): value
        for key, value in file.metadata.items()
        if key.startswith(prefix)
    }
    return Fields(own, str(file.path), prefix)


def _config(f: Fields, file: GgufFile, architecture: _Architecture) -> ModelConfig:
    there = set(file.names())
    d_model = f.whole("embedding_length")
    n_heads = f.whole("attention.head_count")
    head_dim = f.whole("attention.key_length", max(1, d_model // n_heads))
    f.expect("attention.value_length", head_dim)
    f.expect("rope.dimension_count", head_dim)
    f.expect("expert_count", 0)
    f.expect("expert_used_count", 0)
    f.expect("attention.layer_norm_epsilon")
    # Whatever part of a sequence a file is tuned for, only its sizes describe the model.
    f.ignore("rope.scaling.finetuned", "tensor_data_layout")
    context_length = f.whole("context_length")
    table = file.shape("token_embd.weight")[0] if "token_embd.weight" in there else None
    data = {
        "vocab_size": f.whole("vocab_size", table),
        "context_length": context_length,
        "d_model": d_model,
        "n_layers": f.n_layers("block_count"),
        "tie_embeddings": "output.weight" not in there,
        "embedding": {"scale": d_model**0.5 if architecture.scaled_embedding else 1.0},
        "positions": {
            "kind": "rotary",
            "base": f.number("rope.freq_base", 10_000.0),
            "scaling": _scaling(f, file, context_length),
        },
        "block": {
            "norm": {"kind": "rms", "eps": f.number("attention.layer_norm_rms_epsilon")},
            "attention": {
                "n_heads": n_heads,
                "n_kv_heads": f.whole("attention.head_count_kv", n_heads),
                "head_dim": head_dim,
                "qkv_bias": "blk.0.attn_q.bias" in there,
                "out_bias": "blk.0.attn_output.bias" in there,
            },
            "feed_forward": {
                "kind": "gated",
                "d_ff": f.whole("feed_forward_length"),
                "activation": architecture.activation,
                "bias": "blk.0.ffn_gate.bias" in there,
            },
        },
    }
    f.refuse_unread()
    return ModelConfig.parse(data, at=str(file.path))


def _scaling(f: Fields, file: GgufFile, context_length: int) -> dict[str, Any]:
    factor = f.optional_number("rope.scaling.factor")
    # A factor by itself stretches linearly, as llama.cpp reads it; 0 is how it writes none.
    kind = f.text("rope.scaling.type", "linear" if factor not in (None, 0, 1) else "none")
    original = f.whole("rope.scaling.original_context_length", context_length)
    if "rope_freqs.weight" in file.names():
        # One divisor for each frequency, computed by the converter (Llama 3.1).
        if kind != "none" or file.shape("rope_freqs.weight")[-1] > 4096:
            raise f.refused("rope.scaling.type", kind, "none beside rope_freqs.weight")
        divisors = file.tensor("rope_freqs.weight").flatten().tolist()
        same = {"short": divisors, "long": divisors, "original_context": context_length}
        return {"kind": "longrope", "amplitude": 1.0, **same}
    if kind == "none":
        return {"kind": "none"}
    if kind == "linear" and factor is not None:
        return {"kind": "linear", "factor": factor}
    if kind == "yarn" and factor is not None:
        return {"kind": "yarn", "factor": factor, "original_context": original}
    raise f.refused("rope.scaling.type", kind, "none, linear or yarn, with a factor")
