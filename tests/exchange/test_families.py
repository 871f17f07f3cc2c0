"""Every family, in every form it has: transformers' logits in, transformers' logits out."""

import json
from pathlib import Path

import pytest
import torch

import blocklab as bl
from blocklab.exchange.meaning import differences
from tests.exchange.references import CASES, choose_exact_experts, ids, reference, save

transformers = pytest.importorskip("transformers")

CLOSE = {"rtol": 0, "atol": 5e-5}  # their norms and rotations compute in float32


def read_by_transformers(folder: Path):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", output_loading_info=True
    )
    choose_exact_experts(model.config)
    return model.eval(), report


@pytest.mark.parametrize("name", CASES)
def test_imported_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    theirs = reference(name)
    save(theirs, tmp_path)
    ours = bl.load(tmp_path).model
    assert ours.embedding.weight.dtype == torch.float64
    with torch.no_grad():
        for length in (12, 40):  # within and beyond the original context of stretched rotations
            expected = theirs(ids(length)).logits
            torch.testing.assert_close(ours(ids(length)), expected, **CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_transformers_reads_what_is_exported_and_gives_the_same_logits(
    tmp_path: Path, name: str
) -> None:
    save(reference(name), tmp_path / "theirs")
    ours = bl.load(tmp_path / "theirs").model
    bl.export_huggingface(ours, tmp_path / "ours")
    again, report = read_by_transformers(tmp_path / "ours")
    assert not report["missing_keys"], report
    assert not report["unexpected_keys"], report
    assert not report["mismatched_keys"], report
    with torch.no_grad():
        torch.testing.assert_close(again(ids()).logits, ours(ids()), **CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_export_then_transformers_then_import_is_the_identity(tmp_path: Path, name: str) -> None:
    save(reference(name), tmp_path / "theirs")
    ours = bl.load(tmp_path / "theirs").model
    bl.export_huggingface(ours, tmp_path / "ours")
    read_by_transformers(tmp_path / "ours")[0].save_pretrained(tmp_path / "again")
    again = bl.load(tmp_path / "again").model
    assert differences(ours.config, again.config) == []
    for (path, one), other in zip(ours.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other), path


@pytest.mark.parametrize("name", CASES)
def test_what_is_exported_is_read_back_as_it_was(tmp_path: Path, name: str) -> None:
    save(reference(name), tmp_path / "theirs")
    ours = bl.load(tmp_path / "theirs").model
    bl.export_huggingface(ours, tmp_path / "ours")
    again = bl.load(tmp_path / "ours").model
    assert differences(ours.config, again.config) == []
    assert torch.equal(ours(ids()), again(ids()))
    described = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert described["torch_dtype"] == "float64"


@pytest.mark.parametrize(
    "name", ["qwen2 sliding", "qwen2", "gemma2", "gemma3", "smollm3", "smollm3 sliding"]
)
def test_the_rule_from_before_layers_were_listed_gives_the_same(tmp_path: Path, name: str) -> None:
    """Transformers lists the types by the same rule where a configuration does not."""
    save(reference(name), tmp_path)
    path = tmp_path / "config.json"
    described = json.loads(path.read_text())
    listed = bl.load(tmp_path).model.config
    assert described.pop("layer_types")
    path.write_text(json.dumps(described))
    assert bl.load(tmp_path).model.config == listed
