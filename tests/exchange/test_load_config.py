"""A checkpoint's configuration alone is that of the model it holds."""

from pathlib import Path

import pytest

import blocklab as bl
from blocklab.data.dataset import DataConfig, prepare
from blocklab.errors import BlocklabError
from blocklab.exchange.load import load_config
from blocklab.training.run import RunSpec, train_run
from tests.exchange.folders import LLAMA, llama_tensors, write_llama
from tests.exchange.gguf_files import write
from tests.exchange.references import CASES, reference, save


@pytest.mark.parametrize("name", CASES)
def test_of_every_family_it_is_what_the_whole_checkpoint_gives(tmp_path: Path, name: str) -> None:
    pytest.importorskip("transformers")
    save(reference(name), tmp_path)
    assert load_config(tmp_path) == bl.load(tmp_path).model.config


def test_it_needs_no_weights(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "hf")
    whole = bl.load(folder).model.config
    (folder / "model.safetensors").unlink()
    assert load_config(folder) == whole


def test_of_a_gguf_file_it_is_what_the_whole_file_gives(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    path = write(tmp_path / "model.gguf", llama_tensors(), LLAMA)
    assert load_config(path) == bl.load(path).model.config


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one step whose tokenizer decided the vocabulary."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} sheep and {n * n} wolves\n" for n in range(400)))
    data = DataConfig(corpus=str(text), tokenizer="bpe:300")
    dataset = prepare(data, cache=tmp_path / "cache")
    spec = RunSpec(
        model=bl.presets.modern(d_model=32, n_layers=1, n_heads=2, context_length=16),
        training=bl.TrainingConfig(steps=1, batch_size=2),
        data=data,
        data_fingerprint=dataset.fingerprint,
        seed=0,
    )
    train_run(spec, tmp_path / "out", dataset)
    return tmp_path / "out"


def test_of_a_run_the_vocabulary_is_read_off_its_table(run: Path) -> None:
    found = load_config(run)
    assert found == bl.load(run).model.config
    assert found.vocab_size == 300


def test_what_is_no_model_is_refused_as_by_load(run: Path, tmp_path: Path) -> None:
    for source in (tmp_path, tmp_path / "nowhere", tmp_path / "text.txt"):
        with pytest.raises(BlocklabError) as ours:
            load_config(source)
        with pytest.raises(BlocklabError) as whole:
            bl.load(source)
        assert str(ours.value) == str(whole.value)
    (run / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(BlocklabError, match=r"model\.safetensors: cannot be read"):
        load_config(run)
