"""The long experiment in small: its batches, its resuming, its refusal of another text."""

from pathlib import Path

import numpy as np
import pytest
import torch

import blocklab as bl
from blocklab.data.dataset import Dataset
from blocklab.errors import BlocklabError
from blocklab.reproduce import time_machine
from blocklab.reproduce.experiment import Place, published
from blocklab.reproduce.time_machine import Epoch


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Everything at a size that trains in a second."""

    def config(n_layers: int, residuals: str) -> bl.ModelConfig:
        shape = bl.presets.gpt2(
            d_model=16, n_heads=2, n_layers=n_layers, vocab_size=50, context_length=8
        )
        kind = "add" if residuals == "with" else "none"
        return shape.with_changes(
            {"dropout": 0.1, "tie_embeddings": False, "block.residual.kind": kind}
        )

    monkeypatch.setattr(time_machine, "published_config", config)
    monkeypatch.setattr(time_machine, "CONTEXT", 8)
    monkeypatch.setattr(time_machine, "BATCH", 4)
    monkeypatch.setattr(time_machine, "EPOCHS", 4)
    tokens = torch.randint(0, 50, (600,), generator=torch.Generator().manual_seed(0))
    return Dataset.from_tokens(tokens, 50)


def test_a_run_that_was_stopped_ends_as_one_that_was_not(small: Dataset, tmp_path: Path) -> None:
    straight = time_machine.trained(1, "with", small, tmp_path / "a", "a", lambda line: None)
    assert len(straight) == 4

    def stop(line: str) -> None:
        if "epoch 3 of 4" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        time_machine.trained(1, "with", small, tmp_path / "b", "b", stop)
    again = time_machine.trained(1, "with", small, tmp_path / "b", "b", lambda line: None)
    assert again == straight
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"run.json"}


def test_a_finished_run_is_read_and_not_trained_again(small: Dataset, tmp_path: Path) -> None:
    first = time_machine.trained(1, "without", small, tmp_path, "a", lambda line: None)

    def refuse(line: str) -> None:
        raise AssertionError(line)

    assert time_machine.trained(1, "without", small, tmp_path, "a", refuse) == first


def test_a_folder_with_another_run_is_refused(small: Dataset, tmp_path: Path) -> None:
    time_machine.trained(1, "with", small, tmp_path, "a", lambda line: None)
    with pytest.raises(BlocklabError, match="other settings"):
        time_machine.trained(1, "without", small, tmp_path, "a", lambda line: None)


def test_batches_are_the_published_ones() -> None:
    tokens = np.arange(40_741) % 50257
    windows = time_machine.WholeBatches(tokens, 128, 16, 123)
    each = windows.windows_per_epoch // 16
    assert each == 19
    for epoch in (0, 1):
        seen = np.concatenate(
            [windows._windows(step) for step in range(epoch * 19, epoch * 19 + 19)]
        )
        assert len(set(seen.tolist())) == 19 * 16
    assert windows._windows(0).tolist() != windows._windows(19).tolist()


def test_weights_are_drawn_as_a_plain_script_under_the_seed_would(small: Dataset) -> None:
    trainer = time_machine.published_trainer(2, "with", small)
    torch.manual_seed(123)
    plain = bl.Transformer(trainer.config)
    for (name, ours), theirs in zip(
        trainer.model.named_parameters(), plain.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs), name


def test_another_revision_of_the_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "time_machine.txt").write_text("Another text altogether. " * 50, encoding="utf-8")
    monkeypatch.setenv("BLOCKLAB_DATA", str(tmp_path))
    with pytest.raises(BlocklabError, match=r"another revision.*BLOCKLAB_DATA"):
        time_machine.published_text(lambda line: None)


def test_the_published_text_has_the_published_counts() -> None:
    import os

    folder = os.environ.get("BLOCKLAB_DATA")
    if not folder or not (Path(folder) / "time_machine.txt").is_file():
        pytest.skip("BLOCKLAB_DATA names no folder with time_machine.txt")
    dataset = time_machine.published_text(lambda line: None)
    rows = time_machine._text_rows(published("time-machine"), dataset)
    assert [row.word for row in rows] == ["match"] * 5


@pytest.mark.slow
def test_the_whole_experiment_judges_every_published_epoch(
    small: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_machine, "EPOCHS", 10)
    monkeypatch.setattr(time_machine, "published_text", lambda say: small)
    figures = published("time-machine")
    said: list[str] = []
    found = time_machine.time_machine(figures, Place(tmp_path, said.append))
    # Five of the text, 14 epochs and splits each way, two of the deeper models, and the picture.
    assert len(found.rows) == 5 + 2 * 14 + 2 + 1
    assert [chart.name for chart in found.charts] == [
        "time-machine-train",
        "time-machine-validation",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{n}-blocks-{kind}-residuals" for n in (4, 8) for kind in ("with", "without")
    }
    assert any("8 blocks without residuals: epoch 10" in line for line in said)


def test_the_picture_is_one_of_falling_through_and_of_stalling() -> None:
    falls = [Epoch(7.0, 7.0), Epoch(6.6, 6.6), Epoch(6.5, 6.5), *[Epoch(6.2, 6.4)] * 7]
    stalls = [Epoch(7.0, 7.0), Epoch(6.6, 6.6), *[Epoch(6.4, 6.7)] * 8]
    assert time_machine._falls_through(falls, stalls, 6.346).word == "match"
    assert time_machine._falls_through(stalls, stalls, 6.346).word == "off"
    assert time_machine._falls_through(falls, falls, 6.346).word == "off"
