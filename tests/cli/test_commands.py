"""Every command ends with the right exit code and one clear line when something is wrong."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest


@pytest.fixture
def study(text, tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(
        f"""
question: Is LayerNorm as good?
baseline: {{name: modern, preset: modern, d_model: 32, n_layers: 1, n_heads: 2, context_length: 16,
           set: {{block.feed_forward.d_ff: 32}}}}
variants:
  layer-norm: {{block.norm.kind: layer}}
training: {{steps: 20, batch_size: 4, learning_rates: [3e-3, 1e-2]}}
data: {{corpus: {json.dumps(str(text))}, tokenizer: bytes}}
seeds: 2
search: false
budgets: {{quick: {{seeds: 1}}}}
""",
        encoding="utf-8",
    )
    return path


def test_a_study_is_trained_reported_and_not_trained_again(run, study, tmp_path):
    out = tmp_path / "out"
    code, said, _ = run("ablate", study, "--out", out)
    assert code == 0
    for name in ("modern", "layer-norm", "placebo"):
        assert name in said
    assert {"study.yaml", "results.csv", "report.html", "runs"} <= {p.name for p in out.iterdir()}
    assert len(list(out.glob("runs/*/run.json"))) == 3 * 2 * 2
    before = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/*")}
    assert run("ablate", study, "--out", out)[0] == 0
    assert before == {p: p.stat().st_mtime_ns for p in out.glob("runs/*/*")}

    # The folder alone is enough for the report, wherever it was copied.
    moved = tmp_path / "moved"
    out.rename(moved)
    (moved / "report.html").unlink()
    assert run("report", moved)[0] == 0
    assert (moved / "report.html").exists()

    code, said, _ = run("tensorboard", moved)
    assert code == 0
    assert "240 steps" in said
    shown = {str(p.relative_to(moved / "tensorboard")) for p in moved.glob("tensorboard/*/*/*")}
    assert len(shown) == 3 * 2 * 2
    assert "layer-norm/rate=0.003/seed=2" in shown

    # More seeds and variants are a widening; finished runs stay as they are.
    code, _, _ = run(
        "ablate", study, "--out", moved, "--seeds", 3, "--variant", "eps:block.norm.eps=0.1"
    )
    assert code == 0
    assert len(list(moved.glob("runs/*/run.json"))) == 4 * 3 * 2
    assert all(
        moved.joinpath(p.relative_to(out)).stat().st_mtime_ns == t for p, t in before.items()
    )

    # The study as resolved asks the same question.
    code, said, _ = run("plan", moved / "study.yaml", "--out", moved)
    assert code == 0
    assert "24 already finished" in said

    # Another study takes its finished runs.
    code, _, _ = run("ablate", study, "--out", tmp_path / "other", "--reuse", moved)
    assert code == 0
    copied = [p for p in before if p.name == "model.safetensors"]
    assert all((tmp_path / "other" / p.relative_to(out)).exists() for p in copied)


def test_a_searched_study_gives_verdicts_and_is_not_trained_again(run, study, tmp_path):
    text = study.read_text(encoding="utf-8").replace("search: false", "search: true\ndelta: 0.5")
    study.write_text(
        text.replace("seeds: 2", "seeds: 5").replace("steps: 20", "steps: 30"), encoding="utf-8"
    )
    out = tmp_path / "out"
    code, said, _ = run("ablate", study, "--out", out)
    assert code == 0
    words = ("better", "worse", "equivalent", "no difference", "undecided", "unstable", "too few")
    assert any(word in said for word in words)
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert {row["seed"] for row in rows} == set("012345")
    before = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/*")}
    code, again, _ = run("ablate", study, "--out", out)
    assert code == 0
    assert again == said
    assert before == {p: p.stat().st_mtime_ns for p in out.glob("runs/*/*")}


@pytest.mark.slow
def test_a_study_with_nuisances_says_on_what_it_depends(run, study, tmp_path):
    text = study.read_text(encoding="utf-8").replace("search: false", "search: true\ndelta: 0.5")
    text += "nuisances: {initialization: [{kind: normal, std: 0.02}, {kind: fan_in}]}\n"
    study.write_text(text.replace("seeds: 2", "seeds: 5"), encoding="utf-8")
    out = tmp_path / "out"
    code, said, _ = run("ablate", study, "--out", out)
    assert code == 0
    assert "initialization" in said
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "initialization normal (std 0.02)" in page
    assert "initialization fan_in" in page


def test_a_ladder_is_trained_reported_and_told_in_the_plan(run, study, tmp_path):
    text = study.read_text(encoding="utf-8")
    study.write_text(text + "ladder: {tokens: [0.5], sizes: [{d_model: 48}]}\n", encoding="utf-8")
    out = tmp_path / "out"
    code, said, _ = run("plan", study, "--out", out)
    assert code == 0
    assert "ladder: again at 0.5 of the tokens" in said
    assert "ladder: again at d_model 48" in said
    assert "seen: other modules: blocks.*.norm.attention" in said
    code, said, _ = run("ablate", study, "--out", out)
    assert code == 0
    assert "tokens: exploratory" in said and "parameters: exploratory" in said
    rows = list(csv.DictReader((out / "results.csv").open()))
    by_rung = {rung: sum(row["rung"] == rung for row in rows) for rung in {r["rung"] for r in rows}}
    assert by_rung == {"": 12, "0.5 of the tokens": 8, "d_model 48": 8}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "With more tokens" in page and "With more parameters" in page
    assert "Checked before training" in page
    assert run("report", out)[1] == said


@pytest.mark.slow
def test_two_looks_end_where_nothing_is_open(run, study, tmp_path):
    text = study.read_text(encoding="utf-8").replace("search: false", "search: true\ndelta: 0.5")
    study.write_text(text.replace("seeds: 2", "seeds: two-look"), encoding="utf-8")
    out = tmp_path / "out"
    code, said, _ = run("ablate", study, "--out", out)
    assert code == 0
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert max(int(row["seed"]) for row in rows) == (10 if "96" in said else 5)
    before = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/*")}
    assert run("ablate", study, "--out", out)[:2] == (0, said)
    assert before == {p: p.stat().st_mtime_ns for p in out.glob("runs/*/*")}
    code, _, error = run("ablate", study, "--out", out, "--seeds", 12)
    assert code == 2
    assert "how often the study looks" in error


def test_widths_solved_by_time_are_kept_by_the_folder(run, study, tmp_path):
    study.write_text(study.read_text(encoding="utf-8") + "match: time\n", encoding="utf-8")
    out = tmp_path / "out"
    code, _, error = run("ablate", study, "--out", out, "--budget", "quick")
    assert code == 0
    assert "ms a step" in error
    before = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/run.json")}
    code, _, error = run("ablate", study, "--out", out, "--budget", "quick")
    assert code == 0
    assert "ms a step" not in error
    assert before == {p: p.stat().st_mtime_ns for p in out.glob("runs/*/run.json")}


def test_runs_do_not_depend_on_the_number_of_workers(run, study, tmp_path):
    for workers in (1, 2):
        out = tmp_path / str(workers)
        assert run("ablate", study, "--out", out, "--budget", "quick", "--workers", workers)[0] == 0
    ones, twos = (sorted((tmp_path / w).glob("runs/*/model.safetensors")) for w in ("1", "2"))
    assert [p.read_bytes() for p in ones] == [p.read_bytes() for p in twos]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ablate", "no-such-study"], ["no-such-study", "modern_block"]),
        (["ablate", "STUDY", "--budget", "quik"], ["quik", "quick"]),
        (["ablate", "STUDY", "--set", "block.norm"], ["PATH=VALUE"]),
        (["ablate", "STUDY", "--set", "training.clpi=1"], ["training.clpi", "clip"]),
        (["ablate", "STUDY", "--variant", "x"], ["NAME:PATH=VALUE"]),
        (["ablate", "STUDY", "--variant", "x:block.norm.kind=rms"], ["variants.x", "differ"]),
        (["ablate", "STUDY", "--corpus", "gone.txt"], ["gone.txt"]),
        (["ablate", "STUDY", "--plugin", "gone.py"], ["gone.py"]),
        (["ablate", "STUDY", "--reuse", "gone"], ["gone", "no study"]),
        (["ablate", "STUDY", "--set", "context_length=99999"], ["too little text", "99999"]),
        (["ablate", "STUDY", "--set", "block.attention.n_heads=7"], ["7", "32"]),
        (["plan", "STUDY", "--variant", "x:nlayers=3"], ["nlayers", "n_layers"]),
        (["report", "gone"], ["gone", "no study"]),
        (["count", "gtp2"], ["gtp2", "gpt2"]),
        (["count", "modern"], ["vocab_size"]),
        (["count", "gpt2", "--set", "block.norm.epss=1"], ["epss", "eps"]),
        (["train", "gpt3", "--out", "OUT"], ["gpt3", "gpt2"]),
        (["train", "gpt2", "--out", "OUT", "--set", "training.lr=1"], ["training.lr"]),
        (["train"], ["MODEL", "See blocklab train --help."]),
        (["trian"], ["trian", "See blocklab --help."]),
        (["ablte"], ["ablte"]),
    ],
)
def test_bad_input_is_one_line_exit_two_and_nothing_written(run, study, tmp_path, arguments, words):
    out = tmp_path / "out"
    given = [{"STUDY": study, "OUT": out}.get(a, a) for a in arguments]
    if "STUDY" in arguments:
        given += ["--out", out]
    code, _, said = run(*given)
    assert code == 2
    for word in words:
        assert word in said.replace(",", "")
    assert not [p for p in out.rglob("*") if p.name != ".lock"]


def test_a_folder_with_another_study_is_refused_by_the_first_path(run, study, tmp_path):
    out = tmp_path / "out"
    assert run("ablate", study, "--out", out, "--budget", "quick")[0] == 0
    code, _, said = run("ablate", study, "--out", out, "--budget", "quick", "--set", "n_layers=2")
    assert code == 2
    assert "baseline.model.n_layers is 1 there and 2 here" in said
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    code, _, said = run("ablate", study, "--out", tmp_path / "full")
    assert code == 2
    assert "not empty" in said


def test_a_disk_that_refuses_ends_with_exit_one(run, study, tmp_path, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("blocklab.files._sync", full)
    code, _, said = run("ablate", study, "--out", tmp_path / "out")
    assert code == 1
    assert "No space left on device" in said


def test_counts_are_printed_without_building_anything(run):
    code, said, _ = run("count", "llama-3-70b", "--json")
    assert code == 0
    assert json.loads(said)["total"] == 70_553_706_496
    code, said, _ = run("count", "gpt2")
    assert "124,439,808" in said


def test_a_run_can_be_stopped_and_resumed_from_the_command_line(run, text, tmp_path):
    common = ["train", "modern", "--corpus", text, "--tokenizer", "bytes", "--steps", 6]
    common += ["--set", "d_model=32", "--set", "n_layers=1", "--set", "context_length=16"]
    common += ["--set", "block.feed_forward.d_ff=32", "--set", "block.attention.n_heads=2"]
    code, _, said = run(*common, "--out", tmp_path / "run")
    assert code == 0
    assert "validation loss" in said
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {"run.json", "tokenizer.json"}
    code, _, said = run(*common, "--out", tmp_path / "run")
    assert code == 2
    assert "finished run" in said


def test_a_run_that_learnt_nothing_says_so(run, text, tmp_path):
    common = ["train", "modern", "--corpus", text, "--tokenizer", "bytes", "--steps", 1]
    common += ["--set", "d_model=32", "--set", "n_layers=1", "--set", "context_length=16"]
    common += ["--set", "block.attention.n_heads=2"]
    common += ["--set", "training.learning_rate=3"]
    _, _, said = run(*common, "--out", tmp_path / "run")
    assert "nothing learnt, which counts as diverged: after 1 step" in said.replace("\n", " ")


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(study, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "blocklab", "ablate", str(study), "--out", str(out)]
    command += ["--set", "training.steps=400"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 120
    while not list(out.glob("runs/*/run.json")) and time.monotonic() < until:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "run the same command again" in said
    finished = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/run.json")}
    assert finished
    assert len(finished) < 12
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(list(out.glob("runs/*/run.json"))) == 12
    assert finished == {p: p.stat().st_mtime_ns for p in finished}


def test_ctrl_c_while_workers_start_leaves_none_and_no_trace(study, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "blocklab", "ablate", str(study), "--out", str(out)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, start_new_session=True, **quiet)
    until = time.monotonic() + 60
    while not (out / "study.yaml").exists() and time.monotonic() < until:
        time.sleep(0.01)
    for _ in range(3):  # the hand is nervous
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    until = time.monotonic() + 10  # on a busy machine they take a moment to end
    while members(process.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert not members(process.pid)


def test_an_interrupt_that_an_import_turns_into_an_error_of_its_own_is_one(run, monkeypatch):
    def interrupted(*_, **__):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("cannot load module more than once per process") from None

    monkeypatch.setattr(sys.modules["blocklab.cli.app"], "app", interrupted)
    try:
        assert run("count", "gpt2") == (130, "", "blocklab: stopped\n")
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # it is about to end
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_is_heard_as_before_when_a_command_has_ended(run):
    assert run("count", "gpt2")[0] == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
def test_a_study_killed_at_random_moments_ends_in_the_same_bits_and_leaves_no_worker(
    study, tmp_path
):
    def start(out):
        command = [sys.executable, "-m", "blocklab", "ablate", str(study), "--out", str(out)]
        command += ["--set", "training.steps=150"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, **quiet, start_new_session=True)

    assert start(tmp_path / "whole").wait() == 0
    moments = random.Random(5)
    for _ in range(5):
        process = start(tmp_path / "killed")
        time.sleep(moments.uniform(1.0, 8.0))
        process.kill()
        process.wait()
        until = time.monotonic() + 10
        while members(process.pid) and time.monotonic() < until:
            time.sleep(0.1)
        assert not members(process.pid)
    assert start(tmp_path / "killed").wait() == 0
    whole, killed = (
        {
            p.relative_to(tmp_path / name): p.read_bytes()
            for p in (tmp_path / name).rglob("*.safetensors")
        }
        for name in ("whole", "killed")
    )
    assert whole == killed


def members(group):
    """Processes of a group that are still alive."""
    listed = subprocess.run(["ps", "-eo", "pgid,stat"], capture_output=True, text=True).stdout
    rows = [line.split() for line in listed.splitlines()[1:]]
    return [row for row in rows if row[0] == str(group) and not row[1].startswith("Z")]


def test_help_is_quick_to_import():
    code = "import sys, blocklab.cli; sys.exit(bool({'torch', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
