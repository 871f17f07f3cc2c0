"""Tiny random checkpoints written by transformers, one for each thing a family can be."""

from pathlib import Path
from typing import Any

import torch

_SMALL = {
    "vocab_size": 83,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 10_000.0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10_000.0,
}
_FACTORS = {"short_factor": [1.0, 1.1, 1.3, 1.2], "long_factor": [1.5, 2.0, 3.0, 4.0]}
_PHI = {"original_max_position_embeddings": 16, "pad_token_id": 0}
_GEMMA = {"head_dim": 12, "num_hidden_layers": 4}
_MOE = {
    "moe_intermediate_size": 24,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "head_dim": 12,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {}),
    "gpt2 by layer": ("GPT2", {"scale_attn_by_inverse_layer_idx": True, "n_inner": 40}),
    "gpt2 unscaled": ("GPT2", {"scale_attn_weights": False, "tie_word_embeddings": False}),
    "llama": ("Llama", {}),
    "llama biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 12}),
    "llama tied": ("Llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "llama linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5000.0}},
    ),
    "llama dynamic": (
        "Llama",
        {
            "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0},
            "max_position_embeddings": 16,
        },
    ),
    "llama llama3": ("Llama", {"rope_parameters": _LLAMA3, "head_dim": 16}),
    "llama yarn": ("Llama", {"rope_parameters": _YARN, "head_dim": 16}),
    "llama yarn as stated": (
        "Llama",
        {
            "rope_parameters": _YARN
            | {"beta_fast": 8.0, "beta_slow": 0.5, "attention_factor": 1.3, "truncate": False},
            "head_dim": 16,
        },
    ),
    "llama yarn mscale": (
        "Llama",
        {"rope_parameters": _YARN | {"mscale": 0.7, "mscale_all_dim": 1.2}, "head_dim": 16},
    ),
    "mistral": ("Mistral", {"sliding_window": 6, "head_dim": 12}),
    "mistral whole": ("Mistral", {"sliding_window": None}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": 6, "head_dim": 12}),
    "mixtral top 1": ("Mixtral", {"num_local_experts": 3, "num_experts_per_tok": 1}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2 sliding": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 12}),
    "qwen3 sliding": (
        "Qwen3",
        {
            "head_dim": 12,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3_moe": ("Qwen3Moe", {**_MOE, "norm_topk_prob": True}),
    "qwen3_moe mixed": (
        "Qwen3Moe",
        {**_MOE, "norm_topk_prob": False, "mlp_only_layers": [0], "attention_bias": True},
    ),
    "qwen3_moe sparse": (
        "Qwen3Moe",
        {**_MOE, "decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 7},
    ),
    "gemma": ("Gemma", {"head_dim": 12, "num_key_value_heads": 1}),
    "gemma2": ("Gemma2", {**_GEMMA, "sliding_window": 6, "query_pre_attn_scalar": 20}),
    "gemma2 uncapped": (
        "Gemma2",
        {
            **_GEMMA,
            "sliding_window": 6,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "attention_bias": True,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
        },
    ),
    "gemma3": (
        "Gemma3Text",
        {**_GEMMA, "num_hidden_layers": 7, "sliding_window": 5, "query_pre_attn_scalar": 20},
    ),
    "gemma3 stretched": (
        "Gemma3Text",
        {
            **_GEMMA,
            "sliding_window": 5,
            "final_logit_softcapping": 3.0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            },
        },
    ),
    "gpt_neox": ("GPTNeoX", {"intermediate_size": 72}),
    "gpt_neox in series": (
        "GPTNeoX",
        {
            "use_parallel_residual": False,
            "attention_bias": False,
            "hidden_act": "gelu_new",
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5000.0,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "olmo2": ("Olmo2", {}),
    "olmo2 biases": ("Olmo2", {"attention_bias": True, "rms_norm_eps": 1e-4}),
    "opt": ("OPT", {}),
    "opt post-norm": ("OPT", {"do_layer_norm_before": False, "activation_function": "gelu"}),
    "opt plain": ("OPT", {"enable_bias": False, "_remove_final_layer_norm": True}),
    "phi3": ("Phi3", {**_PHI, "sliding_window": 6}),
    "phi3 longrope": (
        "Phi3",
        {**_PHI, "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, **_FACTORS}},
    ),
    "phi3 partial": (
        "Phi3",
        {
            **_PHI,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
                "short_factor": [1.0, 1.2],
                "long_factor": [2.0, 4.0],
            },
            "tie_word_embeddings": True,
        },
    ),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5}),
    "smollm3 sliding": (
        "SmolLM3",
        {
            "num_hidden_layers": 4,
            "no_rope_layers": [1, 0, 1, 0],
            "use_sliding_window": True,
            "sliding_window": 5,
            "tie_word_embeddings": False,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
}

_OWN_SIZES = {
    "GPT2": {"vocab_size": 83, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64},
    "OPT": {
        "vocab_size": 83,
        "hidden_size": 32,
        "word_embed_proj_dim": 32,
        "ffn_dim": 56,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    },
}
_NO_TOKENS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
_OWN_SIZES["GPTNeoX"] = {k: v for k, v in _SMALL.items() if k != "num_key_value_heads"}
_MODELS = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}


def is_newer() -> bool:
    """Whether this is a transformers that states rotations in one place."""
    import transformers

    return int(transformers.__version__.split(".")[0]) >= 5


def choose_exact_experts(config: Any) -> None:
    """Of the ways to compute experts that newer versions have, the one that knows float64."""
    if is_newer():
        config._experts_implementation = "eager"


def older(changes: dict[str, Any]) -> dict[str, Any]:
    """The same with the rotation stated as older versions do."""
    said = dict(changes)
    rope = dict(said.pop("rope_parameters", {}))
    if "full_attention" in rope:
        said["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = dict(rope["full_attention"])
    for name in ("rope_theta", "partial_rotary_factor"):
        if name in rope:
            said[name] = rope.pop(name)
    if "partial_rotary_factor" in said and "use_parallel_residual" in said:
        said["rotary_pct"] = said["partial_rotary_factor"]  # GPT-NeoX's word for it
    if rope.get("rope_type", "default") != "default":
        said["rope_scaling"] = rope
    if rope.get("rope_type") == "longrope":
        rope["type"] = rope.pop("rope_type")
    return said


def reference(name: str, seed: int = 0) -> Any:
    """The case's model in float64 and evaluation mode, no parameter left at 0 or 1."""
    import transformers

    family, changes = CASES[name]
    sizes = _OWN_SIZES[family] | _NO_TOKENS if family in _OWN_SIZES else _SMALL
    changes = changes if is_newer() else older(changes)
    config = getattr(transformers, f"{family}Config")(**(sizes | changes))
    config._attn_implementation = "eager"  # the only one that caps scores
    choose_exact_experts(config)
    model_class = getattr(transformers, _MODELS.get(family, f"{family}ForCausalLM"))
    model = model_class(config).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator).double()
            # Gains near 1 or, as Gemma stores them, near 0; biases as large as what they add to.
            parameter.copy_(0.2 * drawn + (0.5 if parameter.ndim == 1 else 0.0))
    return model


def save(model: Any, folder: Path, **options: Any) -> None:
    model.save_pretrained(folder, **options)


def ids(length: int = 40, batch: int = 2) -> torch.Tensor:
    return torch.randint(83, (batch, length), generator=torch.Generator().manual_seed(1))
