"""Runs are trained elsewhere, stopped, and paid for: whatever becomes of the processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import blocklab
from blocklab.errors import RunFailed
from blocklab.interrupts import undisturbed
from blocklab.study.engines.engine import REPORT_EVERY_SECONDS, Job, Pace, Progress
from blocklab.study.engines.pool import ProcessPool
from blocklab.training.run import finished
from tests.study.engines.small_runs import small_run, small_text

WITNESS = """
import json, os, signal, sys
from pathlib import Path
import blocklab

Path(__file__).with_suffix(".json").write_text(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "said": os.environ.get("BLOCKLAB_SAID"),
    "folder": os.getcwd(), "deaf": signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []),
    "preloaded": "blocklab.study.engines.preloaded" in sys.modules, "code": blocklab.__file__,
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
    _, first = trained(job("first"))
    _, second = trained(job("second"))
    assert first["parent"] == second["parent"] != os.getpid()
    assert first["preloaded"] and second["preloaded"]


def test_the_workers_processor_time_is_told(job):
    short, long = trained(job("short"))[0], trained(job("long", steps=600))[0]
    outcome = json.loads((job("long").folder / "run.json").read_text())["outcome"]
    assert short + outcome["seconds"] / 4 < long < short + 4 * outcome["seconds"]


def test_what_a_server_imported_is_told_of_the_first_pool_alone(job, tmp_path):
    told = script(
        tmp_path,
        f"""
for made in ({job("first")!r}, {job("second")!r}):
    with ProcessPool(1, lambda seconds: print(seconds)) as pool:
        pool.submit(made)
        list(pool.events())
""",
    )
    first, second = map(float, told.split())
    if sys.platform.startswith("linux"):
        assert second < first - 0.5


def test_the_latest_of_a_worker_s_sums_is_told_whatever_came_last(monkeypatch):
    told = []
    with ProcessPool(1, told.append) as pool:
        pool._spent_by({"worker 1": 2.0, "worker 2": 1.0})
        pool._spent_by({"worker 1": 1.5})
    assert told == [3.0]


def test_ctrl_c_is_not_for_workers_whoever_made_their_server(job, tmp_path):
    assert trained(job("run"))[1]["deaf"]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    made = job("other")
    script(
        tmp_path,
        f"""
import multiprocessing
if sys.platform.startswith("linux"):
    multiprocessing.get_context("forkserver").Process(target=print).start()
with ProcessPool(1) as pool:
    pool.submit({made!r})
    list(pool.events())
""",
    )
    assert json.loads(made.plugins[0].with_suffix(".json").read_text())["deaf"]


def test_ctrl_c_while_a_process_starts_is_heard_afterwards():
    done = []
    with pytest.raises(KeyboardInterrupt), undisturbed():
        signal.raise_signal(signal.SIGINT)
        done.append("in peace")
    assert done


def test_workers_run_the_code_that_the_main_process_runs(job, tmp_path):
    """Not what is installed, where the main process was told of another place."""
    made = job("run")
    shutil.copytree(Path(blocklab.__file__).parent, tmp_path / "other" / "blocklab")
    script(
        tmp_path,
        f"""
with ProcessPool(1) as pool:
    pool.submit({made!r})
    list(pool.events())
""",
        first=f"sys.path.insert(0, {str(tmp_path / 'other')!r})",
    )
    witness = json.loads(made.plugins[0].with_suffix(".json").read_text())
    assert Path(witness["code"]).is_relative_to(tmp_path / "other")


def test_where_no_server_can_be_made_each_worker_imports_for_itself(job, tmp_path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    made = job("run")
    body = f"""
with ProcessPool(1) as pool:
    pool.submit({made!r})
    list(pool.events())
"""
    script(tmp_path, body)
    assert finished(made.folder)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere no process is copied")
def test_a_fork_of_a_process_with_a_server_trains_too(job, tmp_path):
    here, there = job("here"), job("there")
    script(
        tmp_path,
        f"""
import multiprocessing, os

def train(made):
    with ProcessPool(1) as pool:
        pool.submit(made)
        list(pool.events())

train({here!r})
child = multiprocessing.get_context("fork").Process(target=train, args=({there!r},))
child.start()
child.join()
""",
    )
    assert finished(here.folder) and finished(there.folder)


def fill(pipe):
    for _ in range(99):
        pipe.put("x" * 999)


def test_workers_with_much_to_tell_nobody_can_leave(job, monkeypatch):
    """A pipe holds 64 KiB, and a writer waits where it is full."""
    monkeypatch.setattr("blocklab.study.engines.pool.REPORT_EVERY_SECONDS", 0.01)
    made = job("run", steps=10**6)
    with ProcessPool(1) as pool:
        pool.submit(made)
        next(event for event in pool.events() if isinstance(event, Progress))
        # As if many had reported while the main process was busy.
        filling = threading.Thread(
            target=lambda: [pool._progress.put("x" * 999) for _ in range(99)]
        )
        filling.start()
        time.sleep(0.5)
    filling.join()
    assert list(made.folder.glob("checkpoint.safetensors"))


def test_who_interrupts_is_told_that_saving_failed(job):
    made = job("run", steps=10**6)
    with pytest.raises(RunFailed, match="checkpoint"), ProcessPool(1) as pool:
        pool.submit(made)
        next(event for event in pool.events() if isinstance(event, Progress))
        # Nothing can be put where a folder lies.
        for name in ("checkpoint.safetensors", "checkpoint.previous.safetensors"):
            (made.folder / name / "full").mkdir(parents=True)
        raise KeyboardInterrupt


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


def script(folder, body, first=""):
    """What a script says that uses a pool, in a process of its own."""
    path = folder / "script.py"
    path.write_text(
        f"""
import pathlib, sys
{first}
from blocklab.study.engines.engine import Job
from blocklab.study.engines.pool import ProcessPool

PosixPath = pathlib.PosixPath
{body}
"""
    )
    command = [sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_without_a_main_guard_is_not_started_over(job, tmp_path):
    made = job("run")
    script(
        tmp_path,
        f"""
with ProcessPool(1) as pool:
    pool.submit({made!r})
    list(pool.events())
""",
        first=f"open({str(tmp_path / 'starts')!r}, 'a').write('x')",
    )
    assert (tmp_path / "starts").read_text() == "x"
    assert finished(made.folder)


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads the process table of Linux")
def test_a_killed_main_process_leaves_no_other(job, tmp_path):
    made = job("endless", steps=10**6)
    endless = f"""
import pathlib
from blocklab.study.engines.engine import Job
from blocklab.study.engines.pool import ProcessPool

PosixPath = pathlib.PosixPath
with ProcessPool(1) as pool:
    pool.submit({made!r})
    list(pool.events())
"""
    process = subprocess.Popen([sys.executable, "-c", endless], start_new_session=True)
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


def test_a_run_reports_at_its_pace_and_its_last_step_whenever(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace = Pace()
    assert pace.is_due(1, 9)
    assert not pace.is_due(2, 9)
    assert pace.is_due(9, 9)
    now += REPORT_EVERY_SECONDS
    assert pace.is_due(3, 9)
    assert not pace.is_due(4, 9)
