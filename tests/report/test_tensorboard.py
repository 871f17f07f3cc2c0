"""Event files, read back by TensorBoard's own reader."""

import math

import pytest

from blocklab.errors import BlocklabError, RunFailed
from blocklab.report import tensorboard
from blocklab.report.tensorboard import FINAL, EventFolder, LoggedRun, scalars
from blocklab.training.checkpoint import METRICS, MetricsFile

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

LOOK = {
    "gradient_norm": {"embedding": 0.5, "blocks.0": 2.0},
    "update_ratio": {"embedding": 0.01, "blocks.0": 0.02},
    "stream_rms": (1.0, 3.0),
    "position_similarity": (0.25,),
    "largest_attention_logit": (None,),
}


def row(step, loss, **more):
    measured = {"learning_rate": 0.01, "gradient_norm": 1.5, "log_z": 4.0}
    return {"step": step, "train_loss": loss, **measured, **more}


def log(folder, *rows):
    file = MetricsFile(folder / METRICS)
    for one in rows:
        file.append(one)
    file.flush()


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def curves(folder):
    """Every curve of one run's events: tag to [(step, value)]."""
    read = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, event.value) for event in read.Scalars(tag)]
        for tag in read.Tags()["scalars"]
    }


def test_every_number_of_a_step_is_a_point_under_its_tag():
    assert dict(scalars(row(1, 5.0, validation_loss=5.5, inspection=LOOK))) == {
        "loss/train": 5.0,
        "loss/validation": 5.5,
        "step/learning_rate": 0.01,
        "step/gradient_norm": 1.5,
        "step/log_z": 4.0,
        "gradient_norm/embedding": 0.5,
        "gradient_norm/blocks.0": 2.0,
        "update_ratio/embedding": 0.01,
        "update_ratio/blocks.0": 0.02,
        "stream_rms/embedding": 1.0,
        "stream_rms/blocks.0": 3.0,
        "position_similarity/blocks.0": 0.25,
    }


def test_a_run_is_followed_step_by_step_and_none_is_told_twice(run_folder, tmp_path):
    events = EventFolder(tmp_path / "events")
    run = LoggedRun("mine", run_folder)
    assert events.show([run]) == 0
    log(run_folder, row(1, 5.0), row(2, 4.0))
    assert events.show([run]) == 2
    assert events.show([run]) == 0
    log(run_folder, row(3, 3.0))
    assert events.show([run]) == 1
    events.close()
    assert curves(tmp_path / "events" / "mine")["loss/train"] == [(1, 5.0), (2, 4.0), (3, 3.0)]


def test_steps_that_a_stopped_run_trains_again_are_not_told_twice(run_folder, tmp_path):
    """A killed run goes on from its checkpoint; its metrics are cut to that, and come out alike."""
    events = EventFolder(tmp_path / "events")
    run = LoggedRun("", run_folder)
    log(run_folder, *(row(step, 5.0 - step) for step in range(1, 5)))
    assert events.show([run]) == 4
    MetricsFile(run_folder / METRICS).truncate_to(2)
    assert events.show([run]) == 0
    log(run_folder, *(row(step, 5.0 - step) for step in range(3, 6)))
    assert events.show([run]) == 1
    events.close()
    assert curves(tmp_path / "events")["loss/train"] == [(i, 5.0 - i) for i in range(1, 6)]


def test_what_was_written_of_a_run_before_is_written_anew_and_nothing_else_is_touched(
    run_folder, tmp_path
):
    into = tmp_path / "events"
    log(run_folder, row(1, 5.0))
    for _ in range(2):
        events = EventFolder(into)
        events.show([LoggedRun("mine", run_folder)])
        events.close()
    (into / "mine" / "notes.txt").write_text("kept")
    events = EventFolder(into)
    events.show([LoggedRun("mine", run_folder)])
    events.close()
    assert curves(into / "mine")["loss/train"] == [(1, 5.0)]
    assert (into / "mine" / "notes.txt").exists()


def test_a_finished_run_has_a_row_among_the_hyperparameters(run_folder, tmp_path):
    events = EventFolder(tmp_path / "events")
    log(run_folder, row(1, 5.0), row(2, 4.0))
    settings = {"variant": "layer-norm", "learning_rate": 0.01}
    done = LoggedRun("mine", run_folder, settings, final_loss=3.5)
    assert events.show([done]) == 2
    assert events.show([done]) == 0
    events.close()
    found = curves(tmp_path / "events" / "mine")
    assert found[FINAL] == [(2, 3.5)]
    assert found["loss/train"] == [(1, 5.0), (2, 4.0)]
    read = accumulator.EventAccumulator(str(tmp_path / "events" / "mine")).Reload()
    assert "_hparams_/session_start_info" in read.summary_metadata


def test_a_diverged_run_keeps_its_last_step_as_it_was(run_folder, tmp_path):
    events = EventFolder(tmp_path / "events")
    log(run_folder, row(1, 5.0), row(2, math.nan))
    events.show([LoggedRun("", run_folder, final_loss=math.nan)])
    events.close()
    found = curves(tmp_path / "events")
    assert math.isnan(found["loss/train"][1][1])
    assert math.isnan(found[FINAL][0][1])


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(BlocklabError, match=r"blocklab\[tensorboard\]"):
        EventFolder(tmp_path)


def test_a_disk_that_refuses_is_said(run_folder, tmp_path):
    (tmp_path / "events").write_text("a file")
    log(run_folder, row(1, 5.0))
    with pytest.raises(RunFailed, match="events"):
        tensorboard.EventFolder(tmp_path / "events").show([LoggedRun("mine", run_folder)])
