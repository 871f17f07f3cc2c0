"""The losses of two tiny models, step by step, as they have always been.

When one changes on purpose, raise `RESULTS` in training/run.py, so that no stored run is taken for
a new one, and write the file again: python -m tests.training.test_golden_losses
"""

import json
from pathlib import Path

import pytest
import torch

import blocklab as bl
from blocklab.training.config import TrainingConfig
from blocklab.training.run import RESULTS

GOLDEN = Path(__file__).with_name("golden_losses.json")
STEPS = 8


def losses(name):
    config = bl.presets.preset(name)(
        d_model=32, n_layers=2, n_heads=2, vocab_size=97, context_length=16
    )
    if name == "modern":
        config = config.with_changes({"block.feed_forward.d_ff": 64})
    recipe = TrainingConfig(steps=STEPS, batch_size=4, learning_rate=1e-2)
    trainer = bl.Trainer(config, corpus=torch.arange(5000).pow(2) % 97, training=recipe, seed=11)
    trained = trainer.run()
    return [step.train_loss for step in trained.metrics] + [trainer.evaluate()]


@pytest.mark.parametrize("name", ["gpt2", "modern"])
def test_losses_are_as_they_have_always_been(name):
    stored = json.loads(GOLDEN.read_text())
    assert stored["results"] == RESULTS
    # Processors round differently; a change of method shows far above this.
    assert losses(name) == pytest.approx(stored[name], abs=2e-4)


if __name__ == "__main__":
    found = {name: losses(name) for name in ("gpt2", "modern")}
    GOLDEN.write_text(json.dumps({"results": RESULTS} | found, indent=1) + "\n")
