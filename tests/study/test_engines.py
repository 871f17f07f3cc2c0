"""Runs are trained elsewhere, stopped, and paid for: whatever becomes of the processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blocklab.errors import RunFailed
from blocklab.study.engines import Job, ProcessPool, Progress
from blocklab.training.run import finished
from tests.study.small_runs import small_run, small_text

WITNESS = """
import json, os, signal
from pathlib import Path

Path(__file__).with_suffix(".json").write_text(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "said": os.environ.get("BLOCKLAB_SAID"),
    "folder": os.getcwd(), "deaf": signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []),
}))
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return small_text(tmp_path_factory.mktemp("text"))


@pytest.fixture
def job(text, tmp_path):
    """A run of so many steps, whose process leaves a witness of itself."""

    def make(name, steps=3):
        witness = tmp_path / f"{name}.py"
        witness.write_text(WITNESS)
        spec = small_run(text, steps).model_dump_json()
        return Job(spec, tmp_path / name, text[1].folder, (witness,), 60.0)

    return make


def trained(job):
    """The seconds that its pool tells of, and what its process said of itself."""
    told = []
    with ProcessPool(1, told.append) as pool:
        pool.submit(job)
        ended = [event for event in pool.events() if not isinstance(event, Progress)]
    assert ended == [job.folder]
    assert finished(job.folder)
    assert len(told) == 1
    return told[0], json.loads(job.plugins[0].with_suffix(".json").read_text())


def test_workers_have_the_environment_and_the_folder_of_the_moment(job, tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKLAB_SAID", "first")
    _, first = trained(job("first"))
    monkeypatch.setenv("BLOCKLAB_SAID", "second")
    monkeypatch.chdir(tmp_path)
    _, second = trained(job("second"))
    monkeypatch.delenv("BLOCKLAB_SAID")
    _, third = trained(job("third"))
    assert [first["said"], second["said"], third["said"]] == ["first", "second", None]
    assert second["folder"] == str(tmp_path)
    assert len({first["pid"], second["pid"], third["pid"], os.getpid()}) == 4


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere no process is copied")
def test_what_all_workers_need_is_imported_once(job):
    took, first = trained(job("first"))
    _, second = trained(job("second"))
    assert first["parent"] == second["parent"] != os.getpid()
    assert took > 0.5  # what the server imported counts


def test_the_workers_processor_time_is_told(job):
    short, long = trained(job("short"))[0], trained(job("long", steps=600))[0]
    outcome = json.loads((job("long").folder / "run.json").read_text())["outcome"]
    assert short + outcome["seconds"] / 4 < long < short + 4 * outcome["seconds"]


def test_ctrl_c_is_not_for_workers(job):
    witness = trained(job("run"))[1]
    assert witness["deaf"]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_leaving_early_keeps_what_running_jobs_have_done_and_tells_what_they_took(job):
    endless = job("endless", steps=10**6)
    told = []
    with ProcessPool(1, told.append) as pool:
        pool.submit(endless)
        progress = next(event for event in pool.events() if isinstance(event, Progress))
    assert progress.steps_done > 0
    assert not finished(endless.folder)
    assert list(endless.folder.glob("*.safetensors"))
    assert told[0] > 0


def test_a_killed_worker_is_a_failed_run_with_a_way_out(job):
    endless = job("endless", steps=10**6)
    with pytest.raises(RunFailed, match="fewer --workers"), ProcessPool(1) as pool:
        pool.submit(endless)
        for _ in pool.events():
            pid = json.loads(endless.plugins[0].with_suffix(".json").read_text())["pid"]
            os.kill(pid, signal.SIGKILL)
    time.sleep(0.1)
    assert trained(job("after"))  # the next pool is whole


def test_a_script_without_a_main_guard_is_not_started_over(job, tmp_path):
    made = job("run")
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import pathlib
from blocklab.study.engines import Job, ProcessPool

with open({str(tmp_path / "starts")!r}, "a") as starts:
    starts.write("x")
PosixPath = pathlib.PosixPath
with ProcessPool(1) as pool:
    pool.submit({made!r})
    list(pool.events())
"""
    )
    subprocess.run([sys.executable, str(script)], check=True, cwd=tmp_path)
    assert (tmp_path / "starts").read_text() == "x"
    assert finished(made.folder)


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads the process table of Linux")
def test_a_killed_main_process_leaves_no_other(job, tmp_path):
    made = job("endless", steps=10**6)
    script = f"""
import pathlib
from blocklab.study.engines import Job, ProcessPool

PosixPath = pathlib.PosixPath
with ProcessPool(1) as pool:
    pool.submit({made!r})
    list(pool.events())
"""
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    witness, until = made.plugins[0].with_suffix(".json"), time.monotonic() + 60
    while not witness.exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.kill()
    process.wait()
    until = time.monotonic() + 10
    while _session(process.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _session(process.pid)


def _session(leader: int) -> list[int]:
    """Processes that a session still has."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[3]) == leader:
            found.append(int(stat.parent.name))
    return found
