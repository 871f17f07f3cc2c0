"""A model that two processes hold trains as it does in one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from blocklab.cli.app import main
from blocklab.errors import BlocklabError, RunFailed
from blocklab.training.config import TrainingConfig
from blocklab.training.numerics import Numerics
from blocklab.training.ranks import ALONE, joined, require_shares
from blocklab.training.run import RunSpec, stopped_run
from blocklab.training.trainer import Trainer
from tests.study.engines.small_runs import small_run, small_text
from tests.training.spread.cases import CASES, STEPS, trained
from tests.training.test_trainer import tiny, tokens

ROOT = Path(__file__).parents[3]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def by_two_processes(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    return subprocess.run(
        [*TORCHRUN, *arguments], env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spread")
    ended = by_two_processes(str(Path(__file__).with_name("cases.py")), str(folder))
    assert ended.returncode == 0, ended.stderr
    return json.loads((folder / "found.json").read_text())


def test_each_of_two_processes_holds_half(found):
    assert found["processes"] == 2
    assert found["held"] == [pytest.approx(1.0)]


def test_all_hear_what_one_says(found):
    assert found["said"] == [[2.0, 1.0], [False, True]]


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("muon", "diverging")])
def test_two_processes_train_as_one_does(name, found):
    here, there = trained(name), found["cases"][name]
    close = {"rel": 2e-2, "abs": 2e-3} if name == "half precision" else {"rel": 1e-4, "abs": 1e-5}
    for what in ("losses", "norms", "log_z", "windows"):
        assert there[what] == pytest.approx(here[what], **close), what
    assert there["weights"] == pytest.approx(here["weights"], **close)
    assert len(there["looks"]) == len(here["looks"]) == 2
    for mine, theirs in zip(here["looks"], there["looks"], strict=True):
        assert theirs == pytest.approx(mine, rel=max(close["rel"], 1e-3))


def test_orthogonalised_updates_see_whole_matrices(found):
    """Of half a matrix they would be others. They round to bfloat16, which enlarges last digits."""
    here, there = trained("muon"), found["cases"]["muon"]
    assert there["losses"] == pytest.approx(here["losses"], rel=1e-2)
    mine, theirs = torch.tensor(here["moved"]), torch.tensor(there["moved"])
    assert torch.cosine_similarity(mine, theirs, 0) > 0.999


def test_processes_agree_on_where_training_diverged(found):
    there = found["cases"]["diverging"]
    assert there["diverged"] == trained("diverging")["diverged"] is not None
    assert len(there["losses"]) < STEPS or "step=4" in there["diverged"]


def test_a_run_that_any_process_stops_resumes_to_the_same_bits(found):
    run = found["run"]
    assert run["stopped"]
    assert run["left"] == ["checkpoint.safetensors"]
    model, windows, metrics = run["bits"]
    assert model[0] == model[1]
    assert windows[0] == windows[1]
    assert metrics[0] == metrics[1]


def test_the_command_trains_and_one_process_speaks(tmp_path):
    command = (
        f"-m blocklab train modern --corpus python-docs --tokenizer bytes --steps 3 "
        f"--out {tmp_path / 'run'} --set d_model=32 --set n_layers=2 "
        "--set block.attention.n_heads=2 --set vocab_size=null --set context_length=16 "
        "--set training.batch_size=4 --set training.validation_tokens=200"
    ).split()
    ended = by_two_processes(*command, "--device", "cpu")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("the run is in") == 1
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["spec"]["processes"] == 2
    assert record["id"] == RunSpec.parse(record["spec"]).id
    again = by_two_processes(*command)
    assert again.returncode != 0
    assert again.stderr.count("blocklab:") == 1
    assert "holds a finished run" in again.stderr


def test_a_run_keeps_the_id_it_had_before_there_was_a_choice(tmp_path):
    spec = small_run(small_text(tmp_path), 3)
    assert spec.processes == 1
    assert spec.id == RunSpec.parse(spec.plain()).id
    others = {n: RunSpec.parse(spec.plain() | {"processes": n}).id for n in (1, 2, 3)}
    assert others[1] == spec.id
    assert len(set(others.values())) == 3


def test_every_process_needs_a_sequence_of_every_micro_batch():
    several = type("Several", (type(ALONE),), {"size": 4})()
    recipe = TrainingConfig.parse({"batch_size": 7, "accumulation": 2})
    with pytest.raises(BlocklabError, match=r"7 .* too few for 4 processes of 2 .* 8 or"):
        require_shares(recipe, several)
    require_shares(recipe, ALONE)


def test_a_stopped_run_goes_on_with_as_many_processes(tmp_path):
    from blocklab.training.checkpoint import save_checkpoint

    save_checkpoint(tmp_path, 3, {}, {"numerics": {}, "processes": 2})
    assert stopped_run(tmp_path, 2) is not None
    with pytest.raises(BlocklabError, match="spread over 2 processes, these are 1"):
        stopped_run(tmp_path)


def test_a_spread_model_is_not_compiled():
    several = type("Several", (type(ALONE),), {"size": 2})()
    numerics = Numerics(compile=True)
    trainer = Trainer(tiny(), corpus=tokens(), numerics=numerics, ranks=several)
    with pytest.raises(BlocklabError, match="is not compiled"):
        trainer.step()


@pytest.mark.parametrize(
    ("device", "reason"),
    [("cpu:1", "each process takes its own; give cpu"), ("warp", "this machine has cpu")],
)
def test_a_device_that_several_cannot_take_is_refused(device, reason, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(BlocklabError, match=reason), joined(device):
        pass


def test_other_commands_are_not_for_several_processes(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr("sys.argv", ["blocklab", "ablate"])
    monkeypatch.setattr("os._exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "torchrun is for training one model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error: reset by peer"), RunFailed),
        (torch.distributed.DistBackendError("NCCL communicator was aborted"), RunFailed),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), RuntimeError),
    ],
)
def test_that_another_process_ended_is_said_in_a_line(error, said, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for name, does in {
        "init_process_group": lambda backend: None,
        "destroy_process_group": lambda: None,
        "get_rank": lambda: 1,
        "get_world_size": lambda: 2,
    }.items():
        monkeypatch.setattr(torch.distributed, name, does)
    monkeypatch.setattr("blocklab.training.ranks.Spread", lambda *given: ALONE)
    with pytest.raises(said) as caught, joined("cpu"):
        raise error
    assert ("--resume" in str(caught.value)) == (said is RunFailed)
