"""A run that is trained elsewhere leaves the folder that it would have left here."""

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from blocklab.errors import RunFailed
from blocklab.study.engines import travelling
from blocklab.study.engines.engine import Job
from blocklab.study.engines.travelling import (
    files_of,
    packed,
    scratch_folder,
    train_away,
    travelled_text,
    unpack,
)
from blocklab.study.plugins import load_plugins
from blocklab.training.checkpoint import read_metrics
from blocklab.training.run import finished, train_run
from tests.study.engines.small_runs import small_run, small_text

PLUGIN = """
import torch
import blocklab as bl

@bl.part("norm", "far")
class Far(torch.nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()

    def forward(self, x):
        return x / 2
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return small_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(autouse=True)
def other_machine(tmp_path, monkeypatch):
    """A cache without the text, and everything that is said at once."""
    monkeypatch.setenv("BLOCKLAB_CACHE", str(tmp_path / "elsewhere"))
    monkeypatch.setattr("blocklab.study.engines.engine.REPORT_EVERY_SECONDS", 0.0)


def job(text, folder, steps=12, checkpoint_seconds=60.0, **other):
    spec = small_run(text, steps, **other).model_dump_json()
    return Job(spec, folder, text[1].folder, (), checkpoint_seconds)


def away(asked, report=lambda step, loss: False, keep=lambda files: None):
    return train_away(packed(asked), lambda: files_of(asked.dataset), report, keep)


def bits(folder):
    files = files_of(folder)
    return files["model.safetensors"], files["validation.safetensors"]


def test_it_comes_back_with_the_files_of_a_run_trained_here(text, tmp_path):
    asked = job(text, tmp_path / "away")
    back = away(asked)
    unpack(back.files, asked.folder)
    train_run(small_run(text, 12), tmp_path / "here", text[1])
    assert bits(asked.folder) == bits(tmp_path / "here")
    assert {p.name for p in asked.folder.iterdir()} == {
        p.name for p in (tmp_path / "here").iterdir()
    }
    assert finished(asked.folder)
    assert back.seconds > 0 and back.refused is None


def test_wherever_it_is_stopped_it_goes_on_elsewhere_to_the_same_bits(text, tmp_path):
    asked, stops = job(text, tmp_path / "away"), []
    while finished(asked.folder) is None:
        begun_at = len(stops)
        stops.append(0)

        def stop_after_three(step, loss):
            stops[-1] += 1
            return stops[-1] == 3

        unpack(away(asked, stop_after_three).files, asked.folder)
        assert begun_at < 10
    assert len(stops) == 4
    train_run(small_run(text, 12), tmp_path / "here", text[1])
    assert bits(asked.folder) == bits(tmp_path / "here")


def test_what_it_saves_on_its_way_is_kept_and_gone_on_from(text, tmp_path):
    kept = []
    asked = job(text, tmp_path / "away", checkpoint_seconds=0.0)
    away(asked, keep=kept.append)
    assert len(kept) == 11  # a finished run needs no checkpoint
    unpack(kept[6], asked.folder)  # the machine is lost
    heard = []
    unpack(away(asked, lambda step, loss: bool(heard.append(step))).files, asked.folder)
    assert heard[0] in (7, 8)
    train_run(small_run(text, 12), tmp_path / "here", text[1])
    assert bits(asked.folder) == bits(tmp_path / "here")
    assert not list(asked.folder.glob("checkpoint*"))


def test_a_text_travels_to_a_machine_once(text, tmp_path):
    asked, sent = job(text, tmp_path / "away", steps=1), []

    def files():
        sent.append(text[1].folder)
        return files_of(text[1].folder)

    for _ in range(2):
        train_away(packed(asked), files, lambda step, loss: False, lambda files: None)
    assert len(sent) == 1
    damaged = tmp_path / "elsewhere" / "datasets" / text[1].fingerprint / "train.bin"
    damaged.write_bytes(damaged.read_bytes()[:-2])
    train_away(packed(asked), files, lambda step, loss: False, lambda files: None)
    assert len(sent) == 2


def test_a_text_that_another_process_makes_is_waited_for(text, tmp_path):
    asked, sent = job(text, tmp_path / "away", steps=1), []

    def slowly():
        sent.append(time.sleep(0.3))
        return files_of(text[1].folder)

    opened = []
    begin = [
        threading.Thread(target=lambda: opened.append(travelled_text(asked.dataset.name, slowly)))
        for _ in range(3)
    ]
    for thread in begin:
        thread.start()
    for thread in begin:
        thread.join()
    assert len(opened) == 3 and len(sent) == 1


def test_folders_of_killed_processes_go_and_those_at_work_stay(tmp_path):
    script = """
import time
from blocklab.study.engines.travelling import scratch_folder
with scratch_folder() as folder:
    (folder / "checkpoint").write_text("large")
    print(folder, flush=True)
    time.sleep(60)
"""
    killed, at_work = (
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    left, kept = (Path(process.stdout.readline().strip()) for process in (killed, at_work))
    killed.kill()
    killed.communicate()
    try:
        with scratch_folder() as own:
            assert not left.exists()
            assert (kept / "checkpoint").exists()
            assert own.is_dir()
        assert not own.exists()
    finally:
        at_work.kill()
        at_work.communicate()


def test_parts_of_ones_own_travel_too(text, tmp_path):
    (tmp_path / "far.py").write_text(PLUGIN)
    asked = job(text, tmp_path / "away", steps=2)
    spec = json.loads(asked.spec)
    spec["model"]["block"]["norm"] = {"kind": "far"}
    spec["plugins"] = load_plugins([tmp_path / "far.py"])
    asked = replace(asked, spec=json.dumps(spec), plugins=(tmp_path / "far.py",))
    back = away(asked)
    assert back.refused is None
    assert "run.json" in back.files
    assert json.loads(back.files["run.json"])["spec"]["model"]["block"]["norm"]["kind"] == "far"
    spec["plugins"] = {"far.py": "before it was edited"}
    back = away(replace(asked, spec=json.dumps(spec)))
    assert "was edited while its runs were trained" in back.refused


def test_another_torch_is_refused_for_its_losses_would_not_be_comparable(text, tmp_path):
    back = away(job(text, tmp_path / "away", torch="2.0"))
    assert "the study is of 2.0" in back.refused
    assert not back.files


def test_a_failing_disk_elsewhere_is_a_failed_run(text, tmp_path, monkeypatch):
    def full(*_, **__):
        raise RunFailed("no room")

    monkeypatch.setattr(travelling, "train_run", full)
    with pytest.raises(RunFailed, match="no room"):
        away(job(text, tmp_path / "away"))


@pytest.mark.parametrize("what", ["a checkpoint", "the end"])
def test_a_kill_while_it_is_written_here_leaves_what_can_be_gone_on_from(
    what, text, tmp_path, monkeypatch
):
    asked = job(text, tmp_path / "away", checkpoint_seconds=0.0)
    kept = []
    end = away(asked, keep=kept.append).files
    came = end if what == "the end" else kept[-1]
    write = travelling.write_atomically
    for written in range(len(came)):
        folder, left = tmp_path / f"killed-{written}", [written]
        unpack(kept[2], folder)

        def write_until_killed(path, data, left=left):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            write(path, data)

        monkeypatch.setattr(travelling, "write_atomically", write_until_killed)
        with pytest.raises(KeyboardInterrupt):
            unpack(came, folder)
        monkeypatch.setattr(travelling, "write_atomically", write)
        assert finished(folder) is None
        unpack(away(replace(asked, folder=folder)).files, folder)
        assert bits(folder) == (end["model.safetensors"], end["validation.safetensors"])
        assert len(read_metrics(folder / "metrics.jsonl")) == 12


def test_what_is_half_written_stays_behind(tmp_path):
    (tmp_path / ".partial-1-run.json").write_text("{")
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "checkpoint.previous.safetensors").write_text("")
    (tmp_path / "folder").mkdir()
    assert files_of(tmp_path) == {"metrics.jsonl": b""}
    assert files_of(Path(tmp_path / "nowhere")) == {}
