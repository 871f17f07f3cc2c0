"""Checkpoint folders made by hand: no other library is needed to write or to damage them."""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 19,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def llama_tensors(tied: bool = False) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) / 2

    tensors = {"model.embed_tokens.weight": drawn(19, 8), "model.norm.weight": drawn(8)}
    for i in range(2):
        layer = f"model.layers.{i}"
        tensors |= {
            f"{layer}.input_layernorm.weight": drawn(8),
            f"{layer}.post_attention_layernorm.weight": drawn(8),
            f"{layer}.self_attn.q_proj.weight": drawn(8, 8),
            f"{layer}.self_attn.k_proj.weight": drawn(4, 8),
            f"{layer}.self_attn.v_proj.weight": drawn(4, 8),
            f"{layer}.self_attn.o_proj.weight": drawn(8, 8),
            f"{layer}.mlp.gate_proj.weight": drawn(12, 8),
            f"{layer}.mlp.up_proj.weight": drawn(12, 8),
            f"{layer}.mlp.down_proj.weight": drawn(8, 12),
        }
    return tensors if tied else tensors | {"lm_head.weight": drawn(19, 8)}


def write_config(folder: Path, **changes: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))


def write_llama(
    folder: Path, tensors: dict[str, torch.Tensor] | None = None, **changes: Any
) -> Path:
    """A whole checkpoint: `changes` go into config.json."""
    write_config(folder, **changes)
    safetensors.torch.save_file(tensors or llama_tensors(), folder / "model.safetensors")
    return folder


def write_sharded(folder: Path, files: dict[str, str] | None = None) -> Path:
    """The same in two shards; `files` replaces the names in the index."""
    write_config(folder)
    placed = {}
    items = list(llama_tensors().items())
    for n, part in enumerate((items[:9], items[9:]), start=1):
        file = f"model-{n:05d}-of-00002.safetensors"
        safetensors.torch.save_file(dict(part), folder / file)
        placed |= {name: file for name, _ in part}
    index = {"metadata": {}, "weight_map": placed | (files or {})}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
