"""The process that workers are copies of: all is imported once, and nothing of it stays behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere no process is copied"
)

TINY = (
    *("ablate", "--budget", "quick", "--corpus", "python-docs", "--seeds", "2", "--workers", "2"),
    *("--set", "n_layers=1", "--set", "d_model=32", "--set", "block.attention.n_heads=2"),
    *("--set", "training.tokens=4096", "--set", "training.learning_rates=[0.01]"),
)

BEGINNING = """
import sys
from blocklab.cli import ablate
from blocklab.cli.app import main

ablate.begin_as_copy = lambda: print("begun", "torch" in sys.modules)
sys.argv = ["blocklab", "ablate", *sys.argv[1:]]
main()
"""

OWNER = """
import os, signal, sys
from blocklab.study.engines.server import begin_as_copy, process_context

def copied():
    process = process_context().Process(target=print, args=("copied",), kwargs={"flush": True})
    process.start()
    process.join()

own = open(sys.argv[1], "w")
signal.signal(signal.SIGTERM, signal.default_int_handler)
begin_as_copy()
copied()
server = int(sys.stdin.readline())
os.kill(server, signal.SIGKILL)
os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
copied()
sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Whose server has made a process; `own.txt` is open in it."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, tmp_path / "own.txt"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert line(process) == "copied"
    yield process
    process.kill()
    process.communicate()


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def about(process: int, what: str) -> str:
    return Path(f"/proc/{process}/{what}").read_text()


def servers(owner: "subprocess.Popen[str]") -> list[int]:
    """Its children that are copies of it: they go by its command."""
    children = map(int, about(owner.pid, f"task/{owner.pid}/children").split())
    return [one for one in children if about(one, "cmdline") == about(owner.pid, "cmdline")]


def ended(process: int) -> bool:
    for _ in range(200):
        if not Path(f"/proc/{process}").exists() or not about(process, "cmdline"):
            return True
        time.sleep(0.05)
    return False


def files(process: int) -> list[str]:
    return [os.readlink(each) for each in Path(f"/proc/{process}/fd").iterdir()]


def test_a_study_imports_once_in_all_its_processes(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "blocklab", *TINY, "--out", tmp_path / "out"],
        env=os.environ | {"PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr[-2000:]
    for name in ("torch", "torch._dynamo", "numpy", "blocklab.training.run"):
        assert len(re.findall(rf"\| +{re.escape(name)}$", told.stderr, re.MULTILINE)) == 1, name


@pytest.mark.parametrize(
    ("first", "options", "begun"),
    [
        ("", (), "begun True"),
        pytest.param("", ("--ray", "local"), "", marks=pytest.mark.slow),
        ("import torch\n", (), ""),
    ],
    ids=["command", "cluster", "program that may have computed"],
)
def test_only_a_fresh_process_is_copied(
    first: str, options: tuple[str, ...], begun: str, tmp_path: Path
) -> None:
    refused = ("--corpus", tmp_path / "no-such-text", "--out", tmp_path / "out")
    told = subprocess.run(
        [sys.executable, "-c", first + BEGINNING, *refused, *options],
        capture_output=True,
        text=True,
    )
    assert (told.returncode, told.stdout.strip()) == (2, begun), told.stderr


def test_the_copy_holds_no_file_of_its_owner(
    owner: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    (server,) = servers(owner)
    assert str(tmp_path / "own.txt") in files(owner.pid)
    assert str(tmp_path / "own.txt") not in files(server)


def test_the_copy_ends_with_its_owner_however_that_ends(owner: "subprocess.Popen[str]") -> None:
    (server,) = servers(owner)
    owner.send_signal(signal.SIGKILL)
    assert ended(server)


def test_ctrl_c_is_not_for_the_copy(owner: "subprocess.Popen[str]") -> None:
    (server,) = servers(owner)
    ignored = re.search(r"^SigIgn:\s*(\w+)$", about(server, "status"), re.MULTILINE)
    assert ignored is not None
    assert int(ignored[1], 16) >> (signal.SIGINT - 1) & 1


def test_the_copy_can_be_ended_whatever_its_owner_does_then(
    owner: "subprocess.Popen[str]",
) -> None:
    (server,) = servers(owner)
    os.kill(server, signal.SIGTERM)
    assert ended(server)


def test_a_study_that_is_asked_to_end_saves_as_after_ctrl_c(tmp_path: Path) -> None:
    long = [option.replace("tokens=4096", "tokens=400_000") for option in TINY]
    study = subprocess.Popen(
        [sys.executable, "-m", "blocklab", *long, "--out", tmp_path / "out"],
        stderr=subprocess.PIPE,
        text=True,
    )
    runs = tmp_path / "out" / "runs"
    while not list(runs.glob("*/metrics.jsonl")):
        assert study.poll() is None
        time.sleep(0.1)
    study.terminate()
    _, told = study.communicate()
    assert study.returncode == 130
    assert "stopped: 0 of" in told
    assert list(runs.glob("*/*checkpoint*"))


def test_a_server_that_was_killed_is_followed_by_one_that_imports(
    owner: "subprocess.Popen[str]",
) -> None:
    (server,) = servers(owner)
    assert owner.stdin is not None
    owner.stdin.write(f"{server}\n")
    owner.stdin.flush()
    assert line(owner) == "copied"
    assert not servers(owner)
