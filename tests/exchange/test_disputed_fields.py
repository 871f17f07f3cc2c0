"""Fields that transformers passes over, or reads otherwise from one version to the next."""

import json
from pathlib import Path
from typing import Any

import pytest

from blocklab.errors import BlocklabError
from blocklab.exchange.load import load_config
from blocklab.model.config import ModelConfig

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 24,
}
GEMMA = {"model_type": "gemma", "head_dim": 12, "num_key_value_heads": 2}
GEMMA3 = {**GEMMA, "model_type": "gemma3_text", "sliding_window": 6}
NEOX = {"model_type": "gpt_neox"}
LISTED = {"layer_types": ["sliding_attention", "full_attention"] * 2}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12}


def read(folder: Path, described: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(SIZES | described))
    return load_config(folder)


@pytest.mark.parametrize(
    ("described", "named"),
    [
        (GEMMA | {"hidden_activation": "relu"}, "hidden_activation is 'relu'"),
        (
            GEMMA | {"hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh"},
            "hidden_activation is 'gelu_pytorch_tanh'",
        ),
        (GEMMA | {"hidden_activation": "gelu"}, "hidden_activation is 'gelu'"),
        (GEMMA3 | {"_sliding_window_pattern": 2}, "_sliding_window_pattern is 2"),
        (
            GEMMA3 | {"sliding_window_pattern": 2, "_sliding_window_pattern": 3},
            "_sliding_window_pattern is 3",
        ),
        (GEMMA3 | {"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_scaling.type"),
        (GEMMA3 | {"rope_scaling": YARN | {"truncate": False}}, "rope_scaling.truncate"),
        (
            GEMMA3 | {"rope_parameters": {"full_attention": YARN | {"truncate": False}}},
            "rope_parameters.full_attention.truncate",
        ),
        (
            GEMMA3 | {"rope_parameters": {"sliding_attention": YARN | {"truncate": False}}},
            "rope_parameters.sliding_attention.truncate",
        ),
        (
            GEMMA3 | {"rope_parameters": {"rope_theta": 50.0, "full_attention": YARN}},
            "rope_parameters.rope_theta is 50.0",
        ),
        (NEOX | {"rope_theta": 500.0}, "rope_theta is 500.0"),
        (NEOX | {"rope_theta": 500.0, "rotary_emb_base": 77.0}, "rotary_emb_base is 77.0"),
        (NEOX | {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        (
            NEOX | {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_theta is 500.0",
        ),
    ],
)
def test_what_is_read_in_two_ways_is_refused_by_its_name(tmp_path, described, named) -> None:
    with pytest.raises(BlocklabError) as caught:
        read(tmp_path, described)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("described", "same"),
    [
        (GEMMA | {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}, GEMMA),
        (GEMMA | {"hidden_activation": None}, GEMMA),
        (GEMMA3 | {"_sliding_window_pattern": 6}, GEMMA3),
        (GEMMA3 | LISTED | {"_sliding_window_pattern": 2}, GEMMA3 | LISTED),
        (
            GEMMA3 | {"rope_scaling": YARN | {"type": "yarn", "truncate": True}},
            GEMMA3 | {"rope_parameters": {"full_attention": YARN}},
        ),
        (
            GEMMA3
            | {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": None,
                    "full_attention": YARN,
                }
            },
            GEMMA3 | {"rope_parameters": {"full_attention": YARN}},
        ),
        (
            NEOX | {"rope_theta": 500.0, "rotary_emb_base": 500.0},
            NEOX | {"rope_parameters": {"rope_theta": 500.0}},
        ),
        (
            NEOX | {"partial_rotary_factor": 0.5, "rotary_pct": 0.5},
            NEOX | {"rope_parameters": {"partial_rotary_factor": 0.5}},
        ),
        (
            NEOX | {"rope_theta": 500.0, "rope_parameters": {"rope_theta": 500.0}},
            NEOX | {"rotary_emb_base": 500.0},
        ),
    ],
)
def test_what_all_versions_read_alike_is_read(tmp_path: Path, described, same) -> None:
    assert read(tmp_path, described) == read(tmp_path, same)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "smollm3", "llama", "phi3"])
def test_null_heads_for_keys_are_as_many_as_heads(tmp_path: Path, family: str) -> None:
    """A missing number is another matter: some families have a usual one."""
    described = {"model_type": family, "num_key_value_heads": None, "num_attention_heads": 8}
    assert read(tmp_path, described).block.attention.n_kv_heads == 8
