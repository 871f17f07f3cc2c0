"""On a cluster a study's runs are those of a pool here, whatever is lost or stopped on the way."""

import csv
import json
import os
import signal
import subprocess
import sys
from functools import partial
from importlib.util import find_spec

import pytest

from blocklab.errors import BlocklabError, RunFailed
from blocklab.study.engines import travelling
from blocklab.study.engines.cluster import RETRIES, RayCluster
from blocklab.study.engines.connection import connected
from blocklab.study.engines.engine import Job, Progress
from blocklab.study.engines.pool import ProcessPool
from blocklab.training.checkpoint import NEWEST
from blocklab.training.run import finished
from tests.study.engines.pretended_ray import PretendedRay
from tests.study.engines.small_runs import TEXT, small_run, small_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return small_text(tmp_path_factory.mktemp("text"))


@pytest.fixture
def ray(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKLAB_CACHE", str(tmp_path / "elsewhere"))
    monkeypatch.setattr("blocklab.study.engines.engine.REPORT_EVERY_SECONDS", 0.0)

    def installed(**about):
        pretended = PretendedRay(**about)
        monkeypatch.setitem(sys.modules, "ray", pretended)
        return pretended

    return installed


@pytest.fixture
def job(text, tmp_path):
    def make(name, steps=12, seed=3, checkpoint_seconds=60.0, **other):
        spec = small_run(text, steps, seed, **other).model_dump_json()
        return Job(spec, tmp_path / name, text[1].folder, (), checkpoint_seconds)

    return make


def trained(engine, *jobs):
    with engine:
        for one in jobs:
            engine.submit(one)
        return [event for event in engine.events() if not isinstance(event, Progress)]


def test_the_runs_are_those_of_a_pool_here(ray, job):
    there = [job(f"there-{seed}", seed=seed) for seed in range(3)]
    here = [job(f"here-{seed}", seed=seed) for seed in range(3)]
    told = []
    ray()
    ended = trained(RayCluster(tell=told.append), *there)
    assert sorted(ended) == [one.folder for one in there]
    trained(ProcessPool(1), *here)
    for one, other in zip(there, here, strict=True):
        for name in ("model.safetensors", "validation.safetensors"):
            assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()
    assert len(told) == 1 and told[0] > 0


def test_no_more_train_at_once_than_are_asked_for(ray, job):
    cluster = ray(slots=8)
    trained(RayCluster(workers=2), *(job(f"{seed}", seed=seed) for seed in range(5)))
    assert cluster.most_at_once <= 2


def test_a_run_goes_on_from_its_last_checkpoint_when_its_machine_is_lost(ray, job):
    cluster = ray()
    cluster.lose_after = {0: 7, 1: 2}
    lost = job("lost", checkpoint_seconds=0.0)
    with RayCluster() as engine:
        engine.submit(lost)
        events = [*engine.events()]
    assert events[-1] == lost.folder
    assert cluster.tasks[2].reports < 8  # of twelve steps
    trained(ProcessPool(1), whole := job("whole"))
    name = "model.safetensors"
    assert (lost.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    assert not list(lost.folder.glob("checkpoint*"))


def test_a_run_that_is_lost_again_and_again_fails_with_a_way_out(ray, job):
    cluster = ray()
    cluster.lose_after = dict.fromkeys(range(20), 1)
    with pytest.raises(RunFailed, match="fewer --workers"):
        trained(RayCluster(), job("lost"))
    assert len(cluster.tasks) == RETRIES + 1


def test_leaving_early_brings_back_what_was_done_and_begins_nothing_more(ray, job):
    cluster, told = ray(slots=1), []
    begun, waiting = job("begun", steps=10**6), job("waiting", steps=10**6)
    with RayCluster(tell=told.append) as engine:
        engine.submit(begun)
        engine.submit(waiting)
        far = next(event for event in engine.events() if isinstance(event, Progress))
    assert far.folder == begun.folder
    assert (begun.folder / NEWEST).exists() and finished(begun.folder) is None
    assert not waiting.folder.exists()
    assert all(task.done for task in cluster.tasks)
    assert told[0] > 0


def test_a_cluster_that_is_gone_is_a_failure_with_a_way_out(ray, job):
    cluster = ray()
    with (
        pytest.raises(RunFailed, match=r"does not answer \(unavailable\); run the same"),
        RayCluster() as engine,
    ):
        engine.submit(job("run", steps=10**6))
        for _ in engine.events():
            cluster.gone = True
            cluster.lose_after[0] = 1


@pytest.mark.parametrize("raised", [ConnectionError("gone"), Exception("not connected")])
def test_a_result_that_cannot_be_fetched_is_a_failed_run(raised, ray, job):
    cluster = ray()
    cluster.fails_on_results = raised
    with pytest.raises(RunFailed, match=f"does not answer \\({raised}\\)"):
        trained(RayCluster(), job("run"))


def test_a_fault_of_our_own_is_not_called_the_cluster_s(ray, job):
    ray().fails_on_results = TypeError("ours")
    with pytest.raises(TypeError, match="ours"):
        trained(RayCluster(), job("run"))


def test_a_machine_that_cannot_run_blocklab_is_named_for_what_it_lacks(ray):
    ray().gone = True
    with pytest.raises(BlocklabError, match="cannot run blocklab: at length") as refused:
        RayCluster()
    assert not isinstance(refused.value, RunFailed)


def test_what_a_run_had_saved_is_not_written_over_what_it_returned(ray, job):
    ray()
    first, second = job("first", steps=2), job("second", steps=200)
    with RayCluster(workers=1) as engine:
        engine.submit(first)
        for event in engine.events():
            if event == first.folder:
                late = engine._ray.put({NEWEST: b"old", "metrics.jsonl": b""})
                engine._board.keep.remote(str(first.folder), [late])
                engine.submit(second)
    assert not (first.folder / NEWEST).exists()
    assert (first.folder / "metrics.jsonl").read_bytes()


def test_ctrl_c_waits_while_what_runs_comes_back(ray, job, monkeypatch):
    handlers = []
    ray()
    monkeypatch.setattr(
        RayCluster, "_stop", lambda self: handlers.append(signal.getsignal(signal.SIGINT))
    )
    trained(RayCluster(), job("run", steps=1))
    assert handlers == [signal.SIG_IGN]


def test_a_run_computes_on_as_many_cores_as_its_numerics_say(ray, job, monkeypatch):
    ray()
    asked, before = [], []
    monkeypatch.setattr("torch.set_num_threads", asked.append)
    monkeypatch.setattr(travelling, "train_run", lambda *_, **__: before.extend(asked))
    trained(RayCluster(), job("run", steps=1))
    assert before == [1]


def test_bad_input_and_failing_runs_are_told_apart(ray, job, monkeypatch):
    ray()
    with pytest.raises(BlocklabError, match="install the same torch") as refused:
        trained(RayCluster(), job("other", torch="2.0"))
    assert not isinstance(refused.value, RunFailed)

    def failing(*_, **__):
        raise RunFailed("/there: no room")

    monkeypatch.setattr(travelling, "train_run", failing)
    with pytest.raises(RunFailed, match=r"full.*no room"):
        trained(RayCluster(), job("full"))


def test_each_run_asks_for_what_it_takes(ray):
    cluster = ray(slots=4, gpus=1)
    RayCluster(threads=3, accelerated=True)
    assert cluster.options["_train"]["num_cpus"] == 3
    assert cluster.options["_train"]["max_retries"] == 0  # they would begin from the first step
    assert 0 < cluster.options["_train"]["num_gpus"] < 1


@pytest.mark.parametrize(
    ("asked", "named"),
    [({"threads": 5}, "5 cores"), ({"accelerated": True}, "1 core and a GPU")],
)
def test_a_cluster_without_room_is_refused(ray, asked, named):
    ray(slots=4)
    with pytest.raises(BlocklabError, match=f"no machine of the cluster has {named}"):
        RayCluster(**asked)


def test_a_connection_lasts_as_long_as_it_is_needed(ray):
    cluster = ray()
    with connected("auto"):
        assert cluster.connected and cluster.asked["address"] == "auto"
    assert not cluster.connected


def test_a_script_that_has_connected_stays_so(ray):
    cluster = ray(connected=True)
    with connected("auto"):
        pass
    assert cluster.connected and not cluster.asked


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1", "x:99999"])
def test_where_nobody_listens_is_said_at_once(ray, address):
    cluster = ray()
    with pytest.raises(BlocklabError, match="no cluster there"), connected(address):
        pass
    assert not cluster.asked


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (ConnectionError("Could not find any Ray.\nmore"), "Could not find any Ray."),
        (ConnectionAbortedError("From server:\ntrace\n  Error: why"), "From server: Error: why"),
        (ValueError(""), "ValueError"),
    ],
)
def test_an_address_without_a_cluster_is_bad_input(ray, raised, said):
    ray(refuses=raised)
    with pytest.raises(BlocklabError) as refused, connected("auto"):
        pass
    assert str(refused.value).startswith(f"--ray auto: no cluster there ({said}); `ray start")


STUDY = """
question: Is LayerNorm as good?
baseline: {preset: modern, d_model: 32, n_layers: 1, n_heads: 2, context_length: 16,
           set: {block.feed_forward.d_ff: 32}}
variants: {layer-norm: {block.norm.kind: layer}}
training: {steps: 30, batch_size: 4, learning_rates: [3e-3, 1e-2]}
seeds: 2
search: false
"""


def ablated(folder, *options, environment=()):
    """The command's exit code and what it said."""
    study = folder / "study.yaml"
    if not study.exists():
        (folder / "text.txt").write_text(TEXT)
        corpus = json.dumps(str(folder / "text.txt"))
        study.write_text(f"{STUDY}data: {{corpus: {corpus}, tokenizer: bytes}}\n")
    command = [sys.executable, "-m", "blocklab", "ablate", str(study), *options]
    environment = os.environ | {"BLOCKLAB_CACHE": str(folder / "cache")} | dict(environment)
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    return ended.returncode, ended.stderr


def test_without_ray_the_command_says_what_to_install_and_writes_nothing(tmp_path):
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "ray.py").write_text("raise ImportError")
    code, said = ablated(
        tmp_path,
        *("--ray", "auto", "--out", str(tmp_path / "out")),
        environment={"PYTHONPATH": str(tmp_path / "none")},
    )
    assert code == 2
    assert "pip install 'blocklab[ray]'" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an extra and is not installed")
def test_a_study_on_real_ray_gives_the_same_losses(tmp_path):
    run = partial(ablated, tmp_path)
    assert run("--out", str(tmp_path / "here"))[0] == 0
    code, said = run("--out", str(tmp_path / "there"), "--ray", "local")
    assert code == 0, said
    tables = []
    for name in ("here", "there"):
        with (tmp_path / name / "results.csv").open() as file:
            rows = sorted(csv.DictReader(file), key=lambda row: row["run"])
        tables.append([(row["run"], row["validation_loss"]) for row in rows])
    assert tables[0] == tables[1]
    assert len(tables[0]) == 12
