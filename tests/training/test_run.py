"""A run can be stopped, killed and resumed anywhere, and ends in the same bits."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import blocklab as bl
from blocklab.data.dataset import DataConfig, prepare
from blocklab.errors import BlocklabError, RunFailed
from blocklab.model.transformer import Transformer
from blocklab.training.checkpoint import load_checkpoint, read_metrics, save_checkpoint
from blocklab.training.config import TrainingConfig
from blocklab.training.run import RunSpec, Stopped, finished, train_run
from blocklab.training.trained import load_trained, weights_fingerprint
from tests.training.test_trainer import tiny


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    text = " ".join(f"{i} and {i * i} are two numbers." for i in range(3000))
    (folder / "text.txt").write_text(text, encoding="utf-8")
    config = DataConfig(corpus=str(folder / "text.txt"), tokenizer="bytes")
    return config, prepare(config, cache=folder / "cache")


def spec(dataset, **training):
    config, data = dataset
    recipe = {"steps": 12, "batch_size": 4, "learning_rate": 1e-2, "accumulation": 2} | training
    return RunSpec(
        model=tiny(vocab_size=256, dropout=0.1),
        training=TrainingConfig.parse(recipe),
        data=config,
        data_fingerprint=data.fingerprint,
        seed=3,
    )


def bits(folder: Path) -> tuple[bytes, list[dict[str, object]], object]:
    outcome = json.loads((folder / "run.json").read_text())["outcome"]
    return (
        (folder / "model.safetensors").read_bytes(),
        read_metrics(folder / "metrics.jsonl"),
        outcome["validation_loss"],
    )


def test_a_run_stopped_at_any_step_resumes_to_the_same_bits(dataset, tmp_path):
    run = spec(dataset)
    train_run(run, tmp_path / "whole", dataset[1])
    steps = 0

    def stop_every_third_step() -> bool:
        nonlocal steps
        steps += 1
        return steps % 3 == 0

    for _ in range(20):
        try:
            train_run(run, tmp_path / "stopped", dataset[1], should_stop=stop_every_third_step)
            break
        except Stopped:
            continue
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")


def test_a_run_that_passes_the_end_of_an_epoch_resumes_to_the_same_bits(dataset, tmp_path):
    long = spec(dataset, steps=dataset[1].train.shape[0] // (16 * 32) + 20, batch_size=32)
    stops = iter([False] * (long.training.steps - 10) + [True] + [False] * 1000)
    train_run(long, tmp_path / "whole", dataset[1])
    with pytest.raises(Stopped):
        train_run(long, tmp_path / "stopped", dataset[1], should_stop=lambda: next(stops))
    train_run(long, tmp_path / "stopped", dataset[1])
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")


def test_a_finished_run_is_read_and_not_trained_again(dataset, tmp_path):
    run = spec(dataset)
    outcome = train_run(run, tmp_path / "run", dataset[1])
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()}
    assert train_run(run, tmp_path / "run", dataset[1]) == outcome == finished(tmp_path / "run")
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()}


def test_a_finished_run_keeps_no_optimiser_state(dataset, tmp_path):
    train_run(spec(dataset), tmp_path / "run", dataset[1], checkpoint_seconds=0)
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "metrics.jsonl",
        "model.safetensors",
        "run.json",
        "validation.safetensors",
    }


def test_saving_takes_a_twentieth_of_the_time_at_most(dataset, tmp_path, monkeypatch):
    taken = []

    def slow(*given):
        taken.append(time.sleep(0.1))

    monkeypatch.setattr("blocklab.training.run.save_checkpoint", slow)
    train_run(spec(dataset), tmp_path / "run", dataset[1], checkpoint_seconds=1e-6)
    assert len(taken) == 1
    train_run(spec(dataset), tmp_path / "every", dataset[1], checkpoint_seconds=0)
    assert len(taken) == 1 + 11


def test_a_checkpoint_of_another_run_is_not_resumed(dataset, tmp_path):
    with pytest.raises(Stopped):
        train_run(spec(dataset), tmp_path / "run", dataset[1], should_stop=lambda: True)
    with pytest.raises(BlocklabError, match=r"training\.learning_rate is"):
        train_run(spec(dataset, learning_rate=1e-3), tmp_path / "run", dataset[1])


def test_every_step_is_one_line_of_metrics(dataset, tmp_path):
    train_run(spec(dataset, evaluate_every=5), tmp_path / "run", dataset[1])
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert [row["step"] for row in rows if "validation_loss" in row] == [5, 10]
    assert all(row["gradient_norm"] > 0 and row["learning_rate"] > 0 for row in rows)


def test_a_diverged_run_finishes_without_a_loss(dataset, tmp_path):
    wild = spec(dataset, learning_rate=1e30, clip=None, schedule={"kind": "constant", "warmup": 0})
    outcome = train_run(wild, tmp_path / "run", dataset[1])
    assert outcome.validation_loss is None
    assert outcome.diverged_at is not None
    assert outcome.diverged_in


def test_the_record_of_a_run_that_came_to_no_number_is_json_and_reads_as_it_was(dataset, tmp_path):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    config, start = spec(dataset).model, Transformer(spec(dataset).model, seed=1)
    with torch.no_grad():
        start.head.weight.fill_(math.nan)
    begun = {"model": config.plain(), "weights": weights_fingerprint(start)}
    run = RunSpec.parse(spec(dataset).plain() | begun)
    outcome = train_run(run, tmp_path / "run", dataset[1], start=start)
    assert (outcome.diverged_at, outcome.diverged_in) == (1, "loss")
    assert math.isnan(outcome.start_loss)
    stored = (tmp_path / "run" / "run.json").read_text()
    assert json.loads(stored, parse_constant=refuse)["outcome"]["start_loss"] is None
    assert repr(finished(tmp_path / "run")) == repr(outcome)


def test_a_run_that_ends_no_better_than_it_began_has_diverged(dataset, tmp_path):
    # One step up the gradient of a rate this large leaves the loss finite and worse.
    worse = spec(
        dataset, steps=2, learning_rate=3.0, clip=1.0, schedule={"kind": "constant", "warmup": 0}
    )
    outcome = train_run(worse, tmp_path / "run", dataset[1])
    assert (outcome.diverged_at, outcome.diverged_in) == (2, "final loss")


def test_what_a_stopped_run_had_taken_is_counted_when_it_is_resumed(dataset, tmp_path):
    run, folder = spec(dataset), tmp_path / "run"
    with pytest.raises(Stopped):
        train_run(run, folder, dataset[1], should_stop=lambda: True)
    saved = load_checkpoint(folder)
    took = {"train_seconds": 1000.0, "inspect_seconds": 70.0, "compile_seconds": 5.0}
    save_checkpoint(folder, saved.step, saved.tensors, saved.state | took)
    outcome = train_run(run, folder, dataset[1])
    assert 1000 < outcome.seconds < 1100
    assert 70 <= outcome.inspect_seconds < 80
    assert outcome.compile_seconds == 5
    assert outcome.tokens_per_second == pytest.approx(outcome.tokens / outcome.seconds)


def test_trained_weights_may_end_above_their_low_beginning_but_not_above_chance(dataset, tmp_path):
    train_run(spec(dataset, steps=60), tmp_path / "start", dataset[1])
    start = load_trained(tmp_path / "start").model
    begun = {"weights": weights_fingerprint(start)}
    constant = {"schedule": {"kind": "constant", "warmup": 0}, "steps": 2, "clip": 1.0}
    found = {}
    for rate in (3e-2, 3.0):
        plain = spec(dataset, learning_rate=rate, **constant).plain()
        run = RunSpec.parse(plain | begun)
        found[rate] = train_run(run, tmp_path / str(rate), dataset[1], start=start)
    spoilt, lost = found.values()
    assert spoilt.start_loss < spoilt.validation_loss < math.log(256)
    assert spoilt.diverged_at is None
    assert (lost.diverged_at, lost.diverged_in) == (2, "final loss")


def test_nobody_else_trains_in_a_run_s_folder(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("blocklab.training.run_folder.PATIENCE", 0.0)
    folder, refusals, kept = tmp_path / "run", [], []

    def another_comes(step, total, loss):
        with pytest.raises(BlocklabError, match="another process is training in") as refusal:
            train_run(spec(dataset), folder, dataset[1], keep=kept.append)
        refusals.append(refusal.value)

    train_run(spec(dataset), folder, dataset[1], on_step=another_comes)
    assert [error.exit_code for error in refusals] == [2] * 12
    assert kept == []
    assert not (folder / ".lock").exists()


def test_a_run_that_another_process_finished_meanwhile_is_read(dataset, tmp_path, monkeypatch):
    run, folder = spec(dataset), tmp_path / "run"
    looks = iter([None])

    def not_yet(*given):
        return next(looks, finished(folder))

    train_run(run, folder, dataset[1])
    monkeypatch.setattr("blocklab.training.run.finished_run", not_yet)
    before = (folder / "run.json").stat().st_mtime_ns
    assert train_run(run, folder, dataset[1]) == finished(folder)
    assert (folder / "run.json").stat().st_mtime_ns == before


def test_another_finished_run_is_not_taken_for_this_one(dataset, tmp_path):
    train_run(spec(dataset), tmp_path / "run", dataset[1])
    with pytest.raises(
        BlocklabError, match=r"finished run of another recipe: training\.learning_r"
    ):
        train_run(spec(dataset, learning_rate=1e-3), tmp_path / "run", dataset[1])


@pytest.mark.parametrize("when", ["added", "replaced", "stopped"])
def test_rows_that_are_not_the_run_s_own_make_no_record(dataset, tmp_path, when):
    folder, run = tmp_path / "run", spec(dataset)
    metrics = folder / "metrics.jsonl"

    def another_writes(step, total, loss):
        if step == 5:
            own = metrics.read_text().splitlines(keepends=True)
            other = '{"step": 3, "train_loss": 1.0}\n'
            metrics.write_text("".join([*own, other] if when == "added" else [*own[:-1], other]))

    if when != "stopped":
        arguments = {"on_step": another_writes}
    else:
        stops = iter([False] * 4 + [True])
        with pytest.raises(Stopped):
            train_run(run, folder, dataset[1], should_stop=lambda: next(stops))
        metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[1:]))
        arguments = {"on_step": lambda *given: pytest.fail("it went on")}
    with pytest.raises(RunFailed, match="not those of steps 1 to"):
        train_run(run, folder, dataset[1], **arguments)
    assert not (folder / "run.json").exists()


def test_nothing_is_kept_in_the_folder_of_another_run(dataset, tmp_path):
    with pytest.raises(Stopped):
        train_run(spec(dataset), tmp_path / "run", dataset[1], should_stop=lambda: True)
    kept = []
    with pytest.raises(BlocklabError, match="stopped run of another recipe"):
        train_run(spec(dataset, clip=9.0), tmp_path / "run", dataset[1], keep=kept.append)
    assert kept == []
    train_run(spec(dataset), tmp_path / "run", dataset[1], keep=kept.append)
    assert kept == [tmp_path / "run"]


KILLED = """
import sys
from pathlib import Path
from blocklab.data.dataset import Dataset
from blocklab.training.run import RunSpec, train_run
import torch
torch.set_num_threads(1)
spec = RunSpec.model_validate_json(Path(sys.argv[1]).read_text())
train_run(spec, Path(sys.argv[2]), Dataset.open(sys.argv[3]), checkpoint_seconds=0.01)
"""


@pytest.mark.slow
def test_a_run_killed_at_twenty_random_moments_resumes_to_the_same_bits(dataset, tmp_path):
    run = spec(dataset, steps=600)
    (tmp_path / "spec.json").write_text(run.model_dump_json())
    arguments = [sys.executable, "-c", KILLED, tmp_path / "spec.json"]

    def start(folder: str) -> "subprocess.Popen[bytes]":
        command = [*map(str, arguments), str(tmp_path / folder), str(dataset[1].folder)]
        return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})

    assert start("whole").wait() == 0
    moments, kills = random.Random(20), 0
    while not (tmp_path / "killed" / "run.json").exists() and kills < 20:
        process = start("killed")
        metrics = tmp_path / "killed" / "metrics.jsonl"
        size = metrics.stat().st_size if metrics.exists() else -1
        while (
            process.poll() is None and (metrics.stat().st_size if metrics.exists() else -1) == size
        ):
            time.sleep(0.005)
        time.sleep(moments.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert start("killed").wait() == 0
    assert kills >= 5
    assert bits(tmp_path / "killed") == bits(tmp_path / "whole")


@bl.part("norm", "tests-warming")
class Warming(nn.Module):
    """Keeps count of its training passes, and changes after some: state that is no parameter."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += 1
        gain = self.gain if self.seen < 9 else self.gain * 0.5
        return gain * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def test_the_state_that_a_part_keeps_in_buffers_is_the_run_s(dataset, tmp_path):
    plain = spec(dataset).plain()
    model = tiny(vocab_size=256).with_changes({"block.norm": {"kind": "tests-warming"}})
    run = RunSpec.parse(plain | {"model": model.plain()})
    train_run(run, tmp_path / "whole", dataset[1])
    stops = iter([False] * 5 + [True] + [False] * 100)
    with pytest.raises(Stopped):
        train_run(run, tmp_path / "stopped", dataset[1], should_stop=lambda: next(stops))
    train_run(run, tmp_path / "stopped", dataset[1])
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")
    trained = load_trained(tmp_path / "whole").model
    assert {float(b) for name, b in trained.named_buffers() if name.endswith("seen")} == {24.0}
    other = Transformer(model, seed=1)
    before = weights_fingerprint(other)
    next(b for name, b in other.named_buffers() if name.endswith("seen")).add_(1)
    assert weights_fingerprint(other) != before
