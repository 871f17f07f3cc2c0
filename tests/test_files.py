"""Files and folders are there whole or not at all."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blocklab.errors import BlocklabError, RunFailed
from blocklab.files import LOCK, alone_in, new_file, new_folder, refused, write_atomically


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("whole")
    with pytest.raises(KeyboardInterrupt), new_file(path) as partial:
        partial.write_text("half")
        assert path.read_text() == "whole"
        raise KeyboardInterrupt
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "sets" / "one"
    with pytest.raises(BlocklabError), new_folder(path) as partial:
        (partial / "a").write_text("half")
        assert not path.exists()
        raise BlocklabError("bad text")
    assert list((tmp_path / "sets").iterdir()) == []


def test_the_first_of_two_folders_stays(tmp_path: Path) -> None:
    path = tmp_path / "one"
    with new_folder(path) as late:
        (late / "a").write_text("late")
        with new_folder(path) as early:
            (early / "a").write_text("early")
    assert (path / "a").read_text() == "early"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_a_failed_run_not_bad_input(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="No space left"), new_folder(tmp_path / "one"):
        raise OSError(28, "No space left on device")
    with pytest.raises(RunFailed, match="No space left"), new_file(tmp_path / "two"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_what_killed_processes_left_is_swept_after_a_day_and_not_before(tmp_path: Path) -> None:
    old, young = tmp_path / ".partial-old", tmp_path / ".partial-young"
    old.mkdir(), young.mkdir()
    os.utime(old, (time.time() - 90_000,) * 2)
    with new_folder(tmp_path / "one"):
        pass
    assert young.exists() and not old.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files")
def test_a_file_that_outgrows_the_disk_is_a_failed_run_with_nothing_left_over(tmp_path):
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from blocklab.files import write_atomically\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    write_atomically(Path(sys.argv[1]), bytes(10_000))\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    target = tmp_path / "big"
    command = [sys.executable, "-c", code, str(target)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"RunFailed {target}: cannot be written")
    assert list(tmp_path.iterdir()) == []


def test_atomic_writing_takes_bytes_or_a_writer_and_keeps_the_old_file_on_error(tmp_path):
    path = tmp_path / "run.json"
    write_atomically(path, b"one")
    write_atomically(path, lambda file: file.write(b"two"))
    assert path.read_bytes() == b"two"
    os.link(path, tmp_path / "as it was")
    write_atomically(path, b"a new file, not new content")
    assert (tmp_path / "as it was").read_bytes() == b"two"
    os.replace(tmp_path / "as it was", path)

    def fails(file):
        file.write(b"half of three")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, fails)
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_one_process_at_a_time_is_alone_in_a_folder_and_leaves_no_trace(tmp_path):
    folder = tmp_path / "runs" / "one"
    with alone_in(folder, "taken"):
        with pytest.raises(BlocklabError, match=r"^taken$"), alone_in(folder, "taken"):
            pytest.fail("two are in")
        # A copy is another folder, whatever came along.
        with alone_in(Path(shutil.copytree(folder, tmp_path / "copy")), "taken"):
            pass
    with alone_in(folder, "taken"):
        assert [path.name for path in folder.iterdir()] == [LOCK]
    assert list(folder.iterdir()) == []


def test_whoever_waited_at_the_lock_that_is_taken_away_locks_the_new_one(tmp_path, monkeypatch):
    lock, took = fcntl.flock, []

    def another_was_first(handle, how):
        if not took:
            took.append(handle)
            (tmp_path / LOCK).unlink()
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", another_was_first)
    with alone_in(tmp_path, "taken"):
        with pytest.raises(BlocklabError), alone_in(tmp_path, "taken"):
            pass
        assert (tmp_path / LOCK).exists()


def test_a_killed_process_keeps_nobody_out_of_a_folder(tmp_path):
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from blocklab.files import alone_in\n"
        "with alone_in(Path(sys.argv[1]), 'taken'):\n"
        "    print('in', flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "in\n"
        with pytest.raises(BlocklabError), alone_in(tmp_path, "taken", patience=0.1):
            pass
        process.kill()
        with alone_in(tmp_path, "taken", patience=10):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path, monkeypatch):
    def none(handle, how):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", none)
    with alone_in(tmp_path, "taken"):
        pass


def test_a_name_that_no_disk_takes_is_bad_input_and_no_failed_run(tmp_path):
    with pytest.raises(BlocklabError, match="too long; choose another name") as error:
        write_atomically(tmp_path / ("x" * 300), b"")
    assert error.value.exit_code == 2
    assert refused(tmp_path, OSError(errno.ENOSPC, "full")).exit_code == 1
