"""A tiny text and tiny runs of it, for whoever trains them somewhere."""

from pathlib import Path

from blocklab.data.dataset import DataConfig, Dataset, prepare
from blocklab.training.config import TrainingConfig
from blocklab.training.run import RunSpec
from tests.training.test_trainer import tiny

TEXT = " ".join(f"{i} and {i * i} are two numbers." for i in range(3000))


def small_text(folder: Path) -> tuple[DataConfig, Dataset]:
    """The text, prepared under `folder`."""
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    config = DataConfig(corpus=str(folder / "text.txt"), tokenizer="bytes")
    return config, prepare(config, cache=folder / "cache")


def small_run(text: tuple[DataConfig, Dataset], steps: int, seed: int = 3, **other) -> RunSpec:
    config, data = text
    recipe = {"steps": steps, "batch_size": 4, "learning_rate": 1e-2}
    return RunSpec(
        model=tiny(vocab_size=256),
        training=TrainingConfig.parse(recipe),
        data=config,
        data_fingerprint=data.fingerprint,
        seed=seed,
        **other,
    )
