"""The process that workers are copies of begins before anything heavy does."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import blocklab.cli.ablate as ablate
from blocklab.cli.app import main

begin = ablate.process_context

def heard():
    print("torch" in sys.modules, begin().get_start_method())

ablate.process_context = heard
sys.argv = ["blocklab", "ablate", "no-such-study.yaml", *sys.argv[1:]]
main()
"""


def ablated(*options: str) -> str:
    ended = subprocess.run([sys.executable, "-c", SCRIPT, *options], capture_output=True, text=True)
    assert ended.returncode == 2, ended.stderr
    return ended.stdout.strip()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere no process is copied")
def test_a_study_begins_its_server_before_it_imports_torch() -> None:
    assert ablated() == "False forkserver"


def test_a_study_on_a_cluster_begins_none() -> None:
    assert ablated("--ray", "local") == ""
