import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklab.data.windows import IGNORED, WINDOWS_AT_ONCE, TrainingWindows, ValidationWindows
from blocklab.errors import BlocklabError

SIZES = {
    "n": st.integers(2, 400),
    "context": st.integers(1, 20),
    "batch_size": st.integers(1, 9),
}


def tokens(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.uint16)  # each token names its own place


def starts(windows: TrainingWindows, steps: range) -> list[int]:
    return [int(row[0]) for step in steps for row in windows.batch(step)[0]]


@settings(deadline=None, max_examples=60)
@given(**SIZES, seed=st.integers(0, 2**32))
def test_every_window_is_seen_once_an_epoch_across_batch_edges(
    n: int, context: int, batch_size: int, seed: int
) -> None:
    if n < context + 1:
        return
    windows = TrainingWindows(tokens(n), context, batch_size, seed)
    per_epoch = (n - 1) // context
    assert windows.windows_per_epoch == per_epoch
    epochs = 3
    steps = -(-epochs * per_epoch // batch_size)
    seen = starts(windows, range(steps))
    for epoch in range(epochs):
        places = seen[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(places) == [window * context for window in range(per_epoch)]


@settings(deadline=None, max_examples=60)
@given(**SIZES, step=st.integers(0, 10**9), seed=st.integers(0, 2**32))
def test_a_batch_depends_on_seed_and_step_alone(
    n: int, context: int, batch_size: int, step: int, seed: int
) -> None:
    if n < context + 1:
        return
    used = TrainingWindows(tokens(n), context, batch_size, seed)
    used.batch(0), used.batch(step // 2)
    list(ValidationWindows(tokens(n), context).batches(3))
    torch.manual_seed(step), np.random.seed(1)
    fresh = TrainingWindows(tokens(n), context, batch_size, seed)
    for a, b in zip(used.batch(step), fresh.batch(step), strict=True):
        assert torch.equal(a, b)


def test_targets_are_the_next_tokens_and_windows_do_not_overlap() -> None:
    inputs, targets = TrainingWindows(tokens(101), 10, 10, seed=0).batch(0)
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.shape == targets.shape == (10, 10)
    assert torch.equal(targets, inputs + 1)
    assert sorted(inputs.flatten().tolist()) == list(range(100))
    inputs.view(-1), targets.view(-1)  # both lie in memory as a loss wants them


def test_epochs_and_seeds_each_have_an_order_of_their_own() -> None:
    windows = TrainingWindows(tokens(1001), 10, 10, seed=0)
    orders = [starts(windows, range(e * 10, (e + 1) * 10)) for e in range(3)]
    orders.append(starts(TrainingWindows(tokens(1001), 10, 10, seed=1), range(10)))
    assert len({tuple(order) for order in orders}) == 4


def test_the_epoch_of_a_step_is_that_of_its_first_window() -> None:
    windows = TrainingWindows(tokens(71), 10, 3, seed=0)  # 7 windows an epoch
    assert windows.steps_per_epoch == 3
    assert [windows.epoch(step) for step in range(6)] == [0, 0, 0, 1, 1, 2]


def test_a_batch_larger_than_the_corpus_holds_every_window_equally_often() -> None:
    inputs, _ = TrainingWindows(tokens(21), 10, 6, seed=0).batch(0)
    assert sorted(inputs[:, 0].tolist()) == [0, 0, 0, 10, 10, 10]


def test_a_tensor_and_an_array_give_the_same_batches() -> None:
    a = TrainingWindows(tokens(101), 10, 4, seed=0).batch(7)[0]
    b = TrainingWindows(torch.arange(101), 10, 4, seed=0).batch(7)[0]
    assert torch.equal(a, b)


def test_too_few_tokens_are_refused_with_the_counts() -> None:
    with pytest.raises(BlocklabError, match=r"10 training tokens.*needs 11"):
        TrainingWindows(tokens(10), 10, 1, seed=0)
    with pytest.raises(BlocklabError, match="1 validation tokens"):
        ValidationWindows(tokens(1), 10)


def test_bad_sizes_steps_and_tokens_are_refused_by_name() -> None:
    with pytest.raises(BlocklabError, match="batch_size is 0"):
        TrainingWindows(tokens(100), 10, 0, seed=0)
    with pytest.raises(BlocklabError, match="context_length is 0"):
        ValidationWindows(tokens(100), 0)
    with pytest.raises(BlocklabError, match="batch_size is 0"):
        list(ValidationWindows(tokens(100), 10).batches(0))
    with pytest.raises(BlocklabError, match="step is -1"):
        TrainingWindows(tokens(100), 10, 1, seed=0).batch(-1)
    with pytest.raises(BlocklabError, match=r"float64 of shape \(100,\)"):
        TrainingWindows(np.zeros(100), 10, 1, seed=0)
    with pytest.raises(BlocklabError, match=r"shape \(10, 10\)"):
        ValidationWindows(torch.zeros(10, 10, dtype=torch.int64), 10)


@settings(deadline=None, max_examples=100)
@given(**SIZES)
def test_the_sweep_has_every_token_but_the_first_as_a_target_once(
    n: int, context: int, batch_size: int
) -> None:
    sweep = ValidationWindows(tokens(n), context)
    pairs = []
    for inputs, targets in sweep.batches(batch_size):
        assert inputs.shape == targets.shape and inputs.shape[1] == context
        assert len(inputs) <= batch_size
        counted = targets != IGNORED
        assert counted.any(dim=1).all()  # no window of padding alone
        pairs += zip(inputs[counted].tolist(), targets[counted].tolist(), strict=True)
    assert sweep.n_targets == n - 1
    assert pairs == [(place, place + 1) for place in range(n - 1)]


def test_a_token_weighted_evaluation_does_not_depend_on_batch_size() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 50, (1_003,), generator=generator)
    logits = torch.randn(50, 50, generator=generator, dtype=torch.float64)  # a bigram model
    exact = F.cross_entropy(logits[ids[:-1]], ids[1:]).item()
    sweep = ValidationWindows(ids, 16)
    for batch_size in (1, 7, 1_000):
        total = sum(
            F.cross_entropy(logits[x].flatten(0, 1), y.flatten(), reduction="sum").item()
            for x, y in sweep.batches(batch_size)
        )
        assert total / sweep.n_targets == pytest.approx(exact, abs=1e-12)


def test_batches_of_a_sparse_10_gb_file_need_neither_time_nor_memory(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
    script = """
        import resource, sys
        import numpy as np
        from blocklab.data.permutation import Permutation
        from blocklab.data.windows import TrainingWindows
        asked, place = [], Permutation.__call__
        def counted(self, places):
            asked.append(len(places))
            return place(self, places)
        Permutation.__call__ = counted
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        before = peak()
        windows = TrainingWindows(np.memmap(sys.argv[1], np.uint16, "r"), 1024, 16, seed=0)
        for step in range(20):
            windows.batch(step * 1_000_000_007)
        assert windows.windows_per_epoch == (5 * 2**30 - 1) // 1024
        print(peak() - before, sum(asked))
    """
    grown, placed = map(float, measured(script, path))
    assert grown < 100  # MiB
    # Of five million windows; how long the system takes to read what is drawn is another matter.
    assert placed == 20 * WINDOWS_AT_ONCE


def measured(script: str, path: Path) -> list[str]:
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path)],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.split()
