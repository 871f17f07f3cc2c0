"""A finished run of our own is a model like any other."""

import json
from pathlib import Path

import pytest
import torch

import blocklab as bl
from blocklab.data.dataset import DataConfig, prepare
from blocklab.training.run import RunSpec, train_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on a text of its own."""
    root = tmp_path_factory.mktemp("run")
    text = root / "text.txt"
    text.write_text("".join(f"{n} sheep and {n * n} wolves\n" for n in range(400)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLOCKLAB_CACHE", str(root / "cache"))
        data = DataConfig(corpus=str(text), tokenizer="bpe:300")
        dataset = prepare(data)
    model = bl.presets.modern(d_model=32, n_layers=1, n_heads=2, context_length=16)
    spec = RunSpec(
        model=model,
        training=bl.TrainingConfig(steps=2, batch_size=2),
        data=data,
        data_fingerprint=dataset.fingerprint,
        seed=0,
    )
    train_run(spec, root / "out", dataset)
    return root


def test_a_run_loads_with_its_weights_and_its_tokenizer(run: Path, monkeypatch) -> None:
    monkeypatch.setenv("BLOCKLAB_CACHE", str(run / "cache"))
    loaded = bl.load(run / "out")
    assert not loaded.model.training
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("12 sheep")) == "12 sheep"
    assert loaded.stop_ids == (loaded.tokenizer.end_of_text,)
    assert loaded.model.config.vocab_size == loaded.tokenizer.vocab_size
    stored = (run / "out" / "model.safetensors").read_bytes()
    weight = loaded.model.blocks[0].attention.qkv.weight.detach().numpy().tobytes()
    assert weight in stored


def test_without_its_corpus_the_tokenizer_is_missed_and_that_is_said(
    run: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("BLOCKLAB_CACHE", str(tmp_path))
    loaded = bl.load(run / "out")
    assert loaded.tokenizer is None
    assert "bpe:300" in loaded.notes[0]


def test_a_run_leaves_in_hugging_faces_layout(run: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("BLOCKLAB_CACHE", str(run / "cache"))
    loaded = bl.load(run / "out")
    bl.export_huggingface(loaded.model, tmp_path / "hf", tokenizer=loaded.tokenizer)
    again = bl.load(tmp_path / "hf")
    tokens = torch.tensor([loaded.tokenizer.encode("7 sheep and")])
    assert torch.equal(again.model(tokens), loaded.model(tokens))


def test_a_run_that_is_not_finished_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes(b"")
    with pytest.raises(bl.BlocklabError, match="not finished"):
        bl.load(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"spec": 3}', '{"spec": {"model": {"x": 1}}}']
)
def test_a_damaged_record_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(bl.BlocklabError, match=r"run\.json"):
        bl.load(tmp_path)


def test_a_run_whose_weights_are_not_its_records_is_refused(run: Path, tmp_path: Path) -> None:
    record = json.loads((run / "out" / "run.json").read_text())
    record["spec"]["model"]["d_model"] = 64
    (tmp_path / "run.json").write_text(json.dumps(record))
    (tmp_path / "model.safetensors").symlink_to(run / "out" / "model.safetensors")
    with pytest.raises(bl.BlocklabError, match=r"model\.safetensors.*shape"):
        bl.load(tmp_path)


def test_a_study_says_that_it_has_runs(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("question: which?")
    with pytest.raises(bl.BlocklabError, match="study"):
        bl.load(tmp_path)
