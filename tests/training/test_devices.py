"""Training on an accelerator is the same training; where there is none, that is said or skipped."""

import pytest
import torch

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.study.engines.engine import MOST_ON_AN_ACCELERATOR, default_workers
from blocklab.training.config import TrainingConfig
from blocklab.training.devices import available_devices, usable_device
from blocklab.training.numerics import Numerics, fastest
from blocklab.training.run import RunSpec, Stopped, train_run
from blocklab.training.trainer import Trainer
from tests.training.test_numerics import config, tokens

on_each_accelerator = pytest.mark.parametrize(
    "device",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                name not in available_devices(), reason=f"no {name} on this machine"
            ),
        )
        for name in ("cuda", "mps")
    ],
)


def trainer(numerics, **changes):
    recipe = TrainingConfig(steps=20, batch_size=8, learning_rate=3e-3, inspect_every=5)
    return Trainer(config(**changes), corpus=tokens(), training=recipe, numerics=numerics)


def run_of(data, device):
    """The run that a trainer makes, on another device."""
    return RunSpec(
        model=data.config,
        training=data.training,
        data={"corpus": "tokens"},
        data_fingerprint="",
        seed=0,
        numerics=Numerics(device=device),
    )


@on_each_accelerator
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_there_is_training_here(device, dtype):
    here = trainer(Numerics(dtype=dtype))
    there = trainer(Numerics(device=device, dtype=dtype))
    assert {p.device.type for p in there.model.parameters()} == {device}
    close = 1e-4 if dtype == "float32" else 2e-2
    assert there.evaluate() == pytest.approx(here.evaluate(), abs=1e-4)
    for _ in range(5):
        mine, theirs = here.measured_step(), there.measured_step()
        assert theirs.train_loss == pytest.approx(mine.train_loss, abs=close)
        assert theirs.gradient_norm == pytest.approx(mine.gradient_norm, rel=10 * close)


@on_each_accelerator
def test_dropout_there_leaves_every_global_generator_alone(device):
    module = torch.get_device_module(device)
    before = torch.random.get_rng_state(), module.get_rng_state()
    first, second = (trainer(Numerics(device=device), dropout=0.2).step() for _ in range(2))
    assert first == second
    for now, then in zip(
        (torch.random.get_rng_state(), module.get_rng_state()), before, strict=True
    ):
        assert torch.equal(now, then)


@on_each_accelerator
def test_a_run_there_is_stopped_goes_on_and_is_read_here(device, tmp_path):
    data = trainer(Numerics())
    spec = run_of(data, device)
    stops = iter([False, False, True])
    with pytest.raises(Stopped):
        train_run(spec, tmp_path / "a", data.dataset, should_stop=lambda: next(stops))
    went_on = train_run(spec, tmp_path / "a", data.dataset)
    whole = train_run(spec, tmp_path / "b", data.dataset)
    assert went_on.validation_loss == pytest.approx(whole.validation_loss, abs=1e-5)
    assert went_on.peak_memory > 0


@on_each_accelerator
def test_a_model_there_writes_what_it_writes_here(device):
    model = bl.Transformer(config(**{"initialization.head_std": 1.0}), seed=0)
    prompt = torch.arange(5)[None]
    here = bl.generate(model, prompt, max_new_tokens=12)
    there = bl.generate(model.to(device), prompt.to(device), max_new_tokens=12)
    assert torch.equal(there.cpu(), here)


@pytest.mark.parametrize("name", ["cuda:99x", "tpu", "meta", "cpu:7", "cuda"])
def test_a_device_that_is_not_there_is_named_with_those_that_are(name):
    with pytest.raises(BlocklabError, match=rf"device '{name}': not there; this machine has cpu"):
        usable_device(name)
    with pytest.raises(BlocklabError, match="not there"):
        trainer(Numerics(device=name))


def test_the_device_with_the_fastest_step_is_taken_and_one_that_fails_is_not():
    times = {"cpu": 1.0, "cuda": 0.5, "slow": 3.0}

    def clock(numerics):
        if numerics.device == "broken":
            raise RuntimeError("out of memory")
        return times[numerics.device]

    def chosen_from(*devices):
        return fastest(clock, rows=64, vocab_size=1000, threads=1, devices=devices).device

    assert chosen_from("cpu", "slow", "cuda") == "cuda"
    assert chosen_from("cpu", "slow", "broken") == "cpu"
    assert chosen_from("broken", "slow") == "slow"
    with pytest.raises(RuntimeError, match="out of memory"):
        chosen_from("broken")


def test_a_processor_that_is_hopeless_beside_an_accelerator_is_asked_once():
    asked = []

    def clock(numerics):
        asked.append(numerics.device)
        return {"cpu": 30.0, "cuda": 0.1}[numerics.device]

    assert fastest(clock, rows=64, vocab_size=1000, devices=("cpu", "cuda")).device == "cuda"
    assert asked.count("cpu") == 1


def test_a_study_takes_the_device_that_trains_most_runs():
    def chosen_with(workers):
        return fastest(
            lambda numerics: {"cpu": 10.0, "cuda": 5.0}[numerics.device],
            rows=64,
            vocab_size=1000,
            devices=("cpu", "cuda"),
            at_once=lambda device: {"cpu": workers, "cuda": 4}[device],
        ).device

    assert [chosen_with(2), chosen_with(64)] == ["cuda", "cpu"]


def test_a_run_for_a_device_that_is_not_there_is_refused_before_it_begins(tmp_path):
    data = trainer(Numerics())
    spec = run_of(data, "tpu")
    with pytest.raises(BlocklabError, match="device 'tpu': not there"):
        train_run(spec, tmp_path / "a", data.dataset)
    assert not (tmp_path / "a").exists()


def test_a_device_that_cannot_be_moved_to_changes_nothing():
    learning = trainer(Numerics())
    with pytest.raises(BlocklabError, match="not there"):
        learning.seconds_of_a_step(Numerics(device="tpu"))
    assert learning.numerics.device == learning.device.type == "cpu"
    learning.step()


def test_few_processes_share_an_accelerator(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert default_workers(1, accelerated=False) == 64
    assert default_workers(16, accelerated=False) == 4
    assert default_workers(128, accelerated=False) == 1
    assert default_workers(1, accelerated=True) == MOST_ON_AN_ACCELERATOR
