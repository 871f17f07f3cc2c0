"""A kill, a full disk or a flipped bit at any moment: what is on disk still loads, or says why."""

import errno
import json
import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklab.errors import BlocklabError, RunFailed
from blocklab.training.checkpoint import (
    NEWEST,
    PREVIOUS,
    MetricsFile,
    load_checkpoint,
    read_metrics,
    remove_checkpoints,
    save_checkpoint,
)

TENSORS = {
    "weight": torch.tensor([[1.0, -0.0, math.nan], [math.inf, 1e-45, 3.0]]),
    "half": torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).bfloat16(),
    "double": torch.tensor([1 / 3], dtype=torch.float64),
    "count": torch.tensor([2**62 + 1, -7]),
    "mask": torch.tensor([True, False]),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 4),
}
STATE = {"seconds": 0.1 + 0.2, "spikes": [1, 2], "name": "é", "best": None}


def bits(tensor):
    return tensor.dtype, tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).tolist()


def save(folder, step):
    save_checkpoint(folder, step, {"weight": torch.full((100,), float(step))}, {"at": step})


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_every_dtype_comes_back_bit_for_bit_with_step_and_state(tmp_path):
    save_checkpoint(tmp_path / "new" / "folder", 7, TENSORS, STATE)
    loaded = load_checkpoint(tmp_path / "new" / "folder")
    assert (loaded.step, loaded.state, loaded.note) == (7, STATE, None)
    assert set(loaded.tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert bits(loaded.tensors[name]) == bits(tensor)


def test_nothing_saved_is_none(tmp_path):
    assert load_checkpoint(tmp_path) is None
    assert load_checkpoint(tmp_path / "missing") is None


def test_tied_tensors_are_stored_once_and_come_back_as_one(tmp_path):
    table = torch.randn(1000, 10)
    save_checkpoint(tmp_path, 1, {"embedding": table, "head": table.detach()}, {})
    assert (tmp_path / NEWEST).stat().st_size < 1.5 * table.nbytes
    loaded = load_checkpoint(tmp_path).tensors
    assert loaded["head"] is loaded["embedding"]
    assert loaded["head"].equal(table)


def test_views_of_one_memory_that_are_no_ties_stay_apart(tmp_path):
    memory = torch.arange(12.0)
    views = {
        "all": memory,
        "turned": memory.view(3, 4).t(),
        "shaped": memory.view(3, 4),
        "part": memory[2:5],
        "every other": memory[::2],
    }
    save_checkpoint(tmp_path, 1, views, {})
    loaded = load_checkpoint(tmp_path).tensors
    assert {name: t.tolist() for name, t in loaded.items()} == {
        name: t.tolist() for name, t in views.items()
    }


def test_loaded_tensors_can_be_changed_without_changing_the_file(tmp_path):
    save(tmp_path, 1)
    load_checkpoint(tmp_path).tensors["weight"].fill_(9)
    assert load_checkpoint(tmp_path).tensors["weight"].eq(1).all()


def test_the_previous_checkpoint_is_kept_and_used_with_a_note(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    assert load_checkpoint(tmp_path).step == 2
    flip(tmp_path / NEWEST, 8 * (tmp_path / NEWEST).stat().st_size - 5)
    loaded = load_checkpoint(tmp_path)
    assert (loaded.step, loaded.tensors["weight"][0].item()) == (1, 1.0)
    assert NEWEST in loaded.note
    assert "step 1" in loaded.note


def test_a_damaged_file_never_replaces_the_good_previous_one(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    flip(tmp_path / NEWEST, 8 * (tmp_path / NEWEST).stat().st_size - 5)
    assert load_checkpoint(tmp_path).step == 1
    save(tmp_path, 3)
    flip(tmp_path / NEWEST, 8 * (tmp_path / NEWEST).stat().st_size - 5)
    assert load_checkpoint(tmp_path).step == 1


@given(data=st.data())
@settings(deadline=None, max_examples=300)
def test_no_flipped_bit_goes_unnoticed(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("flip")
    save_checkpoint(folder, 3, TENSORS, STATE)
    size = (folder / NEWEST).stat().st_size
    flip(folder / NEWEST, data.draw(st.integers(0, 8 * size - 1)))
    with pytest.raises(BlocklabError, match=NEWEST):
        load_checkpoint(folder)


@given(data=st.data())
@settings(deadline=None, max_examples=100)
def test_no_truncation_goes_unnoticed(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    save_checkpoint(folder, 3, TENSORS, STATE)
    size = (folder / NEWEST).stat().st_size
    os.truncate(folder / NEWEST, data.draw(st.integers(0, size - 1)))
    with pytest.raises(BlocklabError, match=NEWEST):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("written", "instead"),
    [(b'"half"', b'"hulf"'), (b'"F32","shape":[2,3]', b'"I32","shape":[3,2]')],
)
def test_a_header_that_gives_a_tensor_another_name_or_kind_is_noticed(tmp_path, written, instead):
    save_checkpoint(tmp_path, 3, TENSORS, STATE)
    content = (tmp_path / NEWEST).read_bytes()
    assert written in content
    (tmp_path / NEWEST).write_bytes(content.replace(written, instead))
    with pytest.raises(BlocklabError, match="checksum"):
        load_checkpoint(tmp_path)


def test_two_damaged_checkpoints_are_an_error_naming_both(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    for name in (NEWEST, PREVIOUS):
        os.truncate(tmp_path / name, 100)
    with pytest.raises(BlocklabError, match=rf"{NEWEST}.*{PREVIOUS}"):
        load_checkpoint(tmp_path)


def test_a_state_that_json_cannot_say_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(BlocklabError, match="not JSON"):
        save_checkpoint(tmp_path, 1, {}, {"model": object()})
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_process_go_at_the_next_save_and_load(tmp_path):
    for act in (lambda: save(tmp_path, 1), lambda: load_checkpoint(tmp_path)):
        (tmp_path / f".partial-0123abcd-{NEWEST}").write_bytes(b"half")
        act()
        assert [path.name for path in tmp_path.iterdir()] == [NEWEST]


def test_remove_checkpoints_leaves_everything_else(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    flip(tmp_path / NEWEST, 8 * (tmp_path / NEWEST).stat().st_size - 5)
    load_checkpoint(tmp_path)
    save(tmp_path, 3)
    (tmp_path / "run.json").write_text("{}")
    remove_checkpoints(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert load_checkpoint(tmp_path) is None


SAVER = """
import itertools, sys, torch
from pathlib import Path
from blocklab.training.checkpoint import MetricsFile, save_checkpoint
folder, first = Path(sys.argv[1]), int(sys.argv[2])
metrics = MetricsFile(folder / "metrics.jsonl")
for step in itertools.count(first):
    metrics.append({"step": step, "loss": step / 3})
    metrics.flush()
    save_checkpoint(folder, step, {"weight": torch.full((200_000,), float(step))}, {"at": step})
    print(step, flush=True)
"""


def test_a_kill_in_the_middle_of_saving_always_leaves_a_checkpoint(tmp_path):
    moments = random.Random(0)
    done = 0
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path), str(done + 1)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        said = [process.stdout.readline()]
        time.sleep(moments.uniform(0, 0.05))
        process.kill()
        said += process.stdout.read().split()
        process.wait()
        loaded = load_checkpoint(tmp_path)
        assert loaded.step >= int(said[-1])
        assert loaded.tensors["weight"].eq(loaded.step).all()
        rows = [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")]
        assert rows[: loaded.step] == list(range(1, loaded.step + 1))
        MetricsFile(tmp_path / "metrics.jsonl").truncate_to(loaded.step)
        done = loaded.step
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".partial-")] == []


@pytest.mark.parametrize("moment", ["os.fsync", "os.replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_refuses_is_a_failed_run_and_the_old_checkpoint_stays(
    tmp_path, monkeypatch, moment, number
):
    save(tmp_path, 1)

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(moment, refuse)
        with pytest.raises(RunFailed, match=f"{NEWEST}.*{os.strerror(number)}"):
            save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == [NEWEST]
    assert load_checkpoint(tmp_path).step == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_a_failed_run(tmp_path):
    save(tmp_path, 1)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(RunFailed, match=NEWEST):
            save(tmp_path, 2)
        assert load_checkpoint(tmp_path).step == 1
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_is_a_file_is_a_failed_run(tmp_path):
    (tmp_path / "file").write_text("")
    for write in (
        lambda: save(tmp_path / "file", 1),
        lambda: MetricsFile(tmp_path / "file" / "x").append({"step": 1}),
    ):
        with pytest.raises(RunFailed, match=str(tmp_path / "file")):
            write()


numbers = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=True), st.text())
values = st.recursive(
    numbers,
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=10,
)
names = st.text().filter(lambda name: name not in ("step", "non_finite"))


def refuse_constant(word):
    raise AssertionError(f"{word} is not JSON")


@given(rows=st.lists(st.dictionaries(names, values), max_size=4))
@settings(deadline=None, max_examples=100)
def test_metrics_are_strict_json_and_come_back_the_same(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    rows = [{"step": step, **row} for step, row in enumerate(rows, start=1)]
    metrics = MetricsFile(path)
    for row in rows:
        metrics.append(row)
    metrics.flush()
    assert repr(read_metrics(path)) == repr(rows)
    lines = path.read_text().splitlines() if rows else []
    for line in lines:
        json.loads(line, parse_constant=refuse_constant)
    assert len(lines) == len(rows)


def test_a_number_that_is_not_finite_is_null_and_listed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    metrics.append({"step": 1, "loss": math.nan, "norms": {"blocks.0": -math.inf}})
    metrics.flush()
    assert json.loads(path.read_text()) == {
        "step": 1,
        "loss": None,
        "norms": {"blocks.0": None},
        "non_finite": [[["loss"], "nan"], [["norms", "blocks.0"], "-inf"]],
    }


def metrics_of(path: Path, steps):
    metrics = MetricsFile(path)
    for step in steps:
        metrics.append({"step": step, "loss": step / 7})
    metrics.flush()
    return metrics


@given(cut=st.integers(0, 300), keep=st.integers(0, 12))
@settings(deadline=None, max_examples=60)
def test_resuming_drops_later_rows_and_a_half_written_line(tmp_path_factory, cut, keep):
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    metrics_of(path, range(1, 11))
    content = path.read_bytes()[: len(path.read_bytes()) - min(cut, len(path.read_bytes()))]
    path.write_bytes(content)
    whole = [row["step"] for row in read_metrics(path)]
    assert len(whole) - content.count(b"\n") in (0, 1)
    metrics = MetricsFile(path)
    metrics.truncate_to(keep)
    metrics.append({"step": 99})
    metrics.flush()
    assert [row["step"] for row in read_metrics(path)] == [s for s in whole if s <= keep] + [99]


def test_appending_after_a_kill_never_glues_two_rows_together(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics_of(path, [1, 2])
    path.write_bytes(path.read_bytes() + b'{"step": 3, "lo')
    metrics_of(path, [3])
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]


def test_truncating_in_mid_run_and_going_on(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = metrics_of(path, [1, 2, 3])
    metrics.append({"step": 4})
    metrics.truncate_to(2)
    metrics.append({"step": 3})
    metrics.flush()
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]


def test_a_broken_line_in_the_middle_is_an_error_naming_the_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics_of(path, [1, 2, 3])
    path.write_bytes(path.read_bytes().replace(b'{"step": 2', b'"step": 2'))
    with pytest.raises(BlocklabError, match=r"metrics\.jsonl: line 2"):
        read_metrics(path)


def test_no_metrics_file_is_no_rows(tmp_path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []
