"""A run's folder as a model, and training that goes on from weights there are."""

import pytest
import torch

import blocklab as bl
from blocklab.data.dataset import DataConfig, prepare
from blocklab.errors import BlocklabError
from blocklab.training.config import TrainingConfig
from blocklab.training.run import RunSpec, Stopped, train_run
from blocklab.training.trained import load_trained, weights_fingerprint
from tests.training.test_trainer import tiny


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    text = " ".join(f"{i} and {i * i} are two numbers." for i in range(1000))
    (folder / "text.txt").write_text(text, encoding="utf-8")
    config = DataConfig(corpus=str(folder / "text.txt"), tokenizer="bytes")
    return config, prepare(config, cache=folder / "cache")


def spec(dataset, weights=None, **changes):
    config, data = dataset
    return RunSpec(
        model=tiny(vocab_size=256, dropout=0.1, **changes),
        training=TrainingConfig(steps=6, batch_size=4, learning_rate=1e-2),
        data=config,
        data_fingerprint=data.fingerprint,
        seed=3,
        weights=weights,
    )


def test_a_runs_model_is_the_one_it_trained(dataset, tmp_path):
    outcome = train_run(spec(dataset), tmp_path / "run", dataset[1])
    trained = load_trained(tmp_path / "run")
    assert not trained.model.training
    trainer = bl.Trainer(trained.model.config, corpus=dataset[1], batch_size=4)
    trainer.model.load_state_dict(trained.model.state_dict())
    assert trainer.evaluate() == pytest.approx(outcome.validation_loss, abs=1e-7)


def test_the_fingerprint_knows_every_bit_name_and_type_and_no_place():
    model = bl.Transformer(tiny(vocab_size=32), seed=0)
    same = bl.Transformer(tiny(vocab_size=32), seed=0)
    found = weights_fingerprint(model)
    assert weights_fingerprint(same) == found
    assert weights_fingerprint(same.double()) != found
    with torch.no_grad():
        weight = model.blocks[0].attention.output.weight
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    assert weights_fingerprint(model) != found


def test_training_begins_with_the_very_weights_it_was_given(dataset, tmp_path):
    start = bl.Transformer(tiny(vocab_size=256, dropout=0.1), seed=99)
    run = spec(dataset, weights_fingerprint(start))
    trainer = bl.Trainer(run.model, corpus=dataset[1], training=run.training, seed=3)
    trainer.model.load_state_dict(start.state_dict())
    rows = []
    train_run(run, tmp_path / "run", dataset[1], start=start, on_step=lambda *row: rows.append(row))
    assert [loss for _, _, loss in rows] == [step.train_loss for step in trainer.steps(6)]


def test_a_stopped_run_from_weights_resumes_to_the_same_bits(dataset, tmp_path):
    start = bl.Transformer(tiny(vocab_size=256, dropout=0.1), seed=99)
    run = spec(dataset, weights_fingerprint(start))
    train_run(run, tmp_path / "whole", dataset[1], start=start)
    stops = iter([False, False, True])
    with pytest.raises(Stopped):
        train_run(
            run, tmp_path / "on", dataset[1], start=start, should_stop=lambda: next(stops, False)
        )
    train_run(run, tmp_path / "on", dataset[1], start=start)
    assert (tmp_path / "on/model.safetensors").read_bytes() == (
        tmp_path / "whole/model.safetensors"
    ).read_bytes()


def test_weights_and_their_fingerprint_go_together_and_sizes_must_fit(dataset, tmp_path):
    start = bl.Transformer(tiny(vocab_size=256, dropout=0.1), seed=99)
    with pytest.raises(BlocklabError, match="fingerprint go together"):
        train_run(spec(dataset), tmp_path / "a", dataset[1], start=start)
    with pytest.raises(BlocklabError, match="fingerprint go together"):
        train_run(spec(dataset, "x"), tmp_path / "b", dataset[1])
    deeper = spec(dataset, "x", n_layers=3)
    with pytest.raises(BlocklabError, match=r"blocks\.\d\..*: the model has shape .*weights None"):
        train_run(deeper, tmp_path / "c", dataset[1], start=start)
