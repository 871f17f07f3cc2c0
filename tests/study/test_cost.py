"""What was spent is kept, added to when a study goes on, and parted by whose it was."""

import subprocess
import sys
import time

import pytest

from blocklab.study.cost import Cost, cost_of, counted, spent

SPIN = "import time\nwhile time.process_time() < 0.4: pass"


def spin():
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass


def test_own_work_and_what_is_told_of_workers_are_kept_apart_and_added_up(tmp_path):
    assert cost_of(tmp_path) is None
    with counted(tmp_path) as tell:
        spin()
        tell(3.0)
    first = cost_of(tmp_path)
    assert 0.25 < first.main < 2 and first.workers == 3.0
    with counted(tmp_path) as tell:
        # What a worker takes is told, whoever waits for it.
        subprocess.run([sys.executable, "-c", SPIN], check=True)
        tell(0.5)
        tell(0.25)
    second = cost_of(tmp_path)
    assert second.main < first.main + 0.25
    assert second.workers == 3.75


def test_what_was_started_before_any_worker_is_the_main_process_s(tmp_path):
    began = spent()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    with counted(tmp_path, began):
        pass
    assert 0.35 < cost_of(tmp_path).main < 3


def test_what_was_spent_before_a_stop_counts_too(tmp_path):
    with pytest.raises(KeyboardInterrupt), counted(tmp_path):
        spin()
        raise KeyboardInterrupt
    assert cost_of(tmp_path).main > 0.25


def test_a_file_of_somebody_elses_is_no_cost(tmp_path):
    for content in ("", "[]", '{"main": 1}', '{"main": "much", "workers": 1}'):
        (tmp_path / "cost.json").write_text(content)
        assert cost_of(tmp_path) is None
    (tmp_path / "cost.json").write_text('{"main": 1, "workers": 2}')
    assert cost_of(tmp_path) == Cost(1.0, 2.0)
