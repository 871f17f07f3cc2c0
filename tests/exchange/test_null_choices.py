"""What a config leaves to a rule is exported as what the rule says."""

import json

import pytest
import torch

import blocklab as bl


@pytest.mark.parametrize(
    ("n_active", "family", "normalized"), [(1, "qwen3_moe", False), (2, "mixtral", True)]
)
def test_how_experts_are_weighed_is_written_as_it_is(tmp_path, n_active, family, normalized):
    config = bl.presets.modern(d_model=32, n_layers=1, n_heads=2, vocab_size=40, context_length=16)
    experts = {"kind": "experts", "n_experts": 4, "n_active": n_active, "d_ff": 24}
    qk_norm = {"block.attention.qk_norm": {"kind": "rms"}} if family == "qwen3_moe" else {}
    config = config.with_changes({"block.feed_forward": experts, **qk_norm})
    model = bl.Transformer(config, seed=1).eval()
    folder = bl.export_huggingface(model, tmp_path / "out")
    described = json.loads((folder / "config.json").read_text())
    assert described["model_type"] == family
    assert described.get("norm_topk_prob", True) is normalized
    again = bl.load(folder).model
    assert again.config.block.feed_forward.normalized is normalized
    tokens = torch.randint(0, 40, (2, 9), generator=torch.Generator().manual_seed(1))
    assert torch.equal(again(tokens), model(tokens))
