"""GGUF files as llama.cpp's converter would write them, by the gguf package."""

from pathlib import Path

import numpy as np
import torch

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def theirs(name: str) -> str:
    """model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight."""
    stem, _, leaf = name.rpartition(".")
    if stem in NAMES:
        return f"{NAMES[stem]}.{leaf}"
    _, _, layer, inner = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[inner]}.{leaf}"


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row 2 j + p of a head is row p * half + j of the checkpoint's."""
    size = len(rows) // heads
    order = [
        h * size + p * size // 2 + j for h in range(heads) for j in range(size // 2) for p in (0, 1)
    ]
    return rows[order]


def write(
    path: Path,
    tensors: dict[str, torch.Tensor],
    sizes: dict,
    architecture: str = "llama",
    kind: int = 0,
    **more: object,
) -> Path:
    import gguf

    f32, kind = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType(kind)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(sizes["num_hidden_layers"])
    writer.add_context_length(sizes["max_position_embeddings"])
    writer.add_embedding_length(sizes["hidden_size"])
    writer.add_feed_forward_length(sizes["intermediate_size"])
    writer.add_head_count(sizes["num_attention_heads"])
    writer.add_head_count_kv(sizes["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(sizes["rms_norm_eps"])
    writer.add_rope_freq_base(sizes["rope_theta"])
    if "head_dim" in sizes:
        writer.add_key_length(sizes["head_dim"])
        writer.add_value_length(sizes["head_dim"])
    for key, value in more.items():
        writer.add_key_value(key.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    for name, tensor in tensors.items():
        values = tensor.float().numpy()
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = sizes["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            values = interleaved(values, heads)
        if architecture == "gemma" and "norm" in name:
            values = values + 1
        stored = f32 if values.ndim == 1 else kind
        raw = values if stored == f32 else gguf.quants.quantize(values, stored)
        writer.add_tensor(theirs(name), raw, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
