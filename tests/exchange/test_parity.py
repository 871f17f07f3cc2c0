"""The published checks: tiny checkpoints of other people's making, and a trained Llama's own words.

They need ../shared/parity beside the checkout, or the folder named by BLOCKLAB_PARITY.
"""

import json
import os
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import blocklab as bl

_NAMED = os.environ.get("BLOCKLAB_PARITY")
PARITY = Path(_NAMED) if _NAMED else Path(__file__).parents[2].parent / "shared" / "parity"

pytestmark = pytest.mark.skipif(
    not (PARITY / "check.py").is_file(), reason=f"{PARITY} is not here: no published checks"
)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_published_case_passes(
    dtype: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = str(Path(__file__).with_name("parity_adapter.py"))
    monkeypatch.setattr(sys, "argv", ["check.py", adapter, f"--dtype={dtype}"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(PARITY / "check.py"), run_name="__main__")
    assert ended.value.code == 0, capsys.readouterr().out


def _cases() -> list[Path]:
    return sorted((PARITY / "cases").iterdir()) if (PARITY / "cases").is_dir() else []


@pytest.mark.parametrize("folder", _cases(), ids=lambda folder: folder.name)
def test_the_newer_form_of_a_configuration_means_the_same(folder: Path, tmp_path: Path) -> None:
    for file in folder.glob("model*"):
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").write_text((folder / "config.v5.json").read_text())
    older, newer = bl.load(folder), bl.load(tmp_path)
    assert older.model.config == newer.model.config
    tokens = torch.arange(12)[None]
    assert torch.equal(older.model(tokens), newer.model(tokens))


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_trained_llama_writes_its_published_tokens(use_cache: bool) -> None:
    facts = json.loads((PARITY / "stories260K" / "facts.json").read_text())
    model = bl.load(PARITY / "stories260K" / "hf").model
    expected = facts["expected_ids"]
    written = bl.generate(
        model, torch.tensor([expected[:1]]), max_new_tokens=200, use_cache=use_cache
    )
    assert written[0].tolist() == expected


def test_the_trained_llama_finds_its_own_stories_as_likely_as_published() -> None:
    known = np.load(PARITY / "stories260K" / "ref.npz")
    model = bl.load(PARITY / "stories260K" / "hf", dtype="float64").model
    for n in range(5):
        ids = torch.from_numpy(known[f"doc{n}_ids"]).long()[None]
        with torch.no_grad():
            chances = model(ids)[0, :-1].log_softmax(-1)
        found = -chances.gather(-1, ids[0, 1:, None]).squeeze(-1)
        np.testing.assert_allclose(found.numpy(), known[f"doc{n}_nll"], rtol=0, atol=2e-3)
