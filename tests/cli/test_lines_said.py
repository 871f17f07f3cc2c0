"""Lines that go to a file or a pipe are whole, and count in words as English does."""

import json
import sys

import pytest

from blocklab.cli.progress import LiveProgress
from blocklab.cli.quiet_line import QuietLine
from blocklab.cli.run_progress import RunProgress
from blocklab.report.formats import counted
from tests.cli.test_run_texts import SIZES

LONG = "a folder of/" * 20 + "run"


@pytest.mark.parametrize("speaker", ["study", "quiet", "run"])
def test_a_line_that_is_piped_is_never_broken(capsys, speaker, tmp_path):
    makers = {"study": LiveProgress, "run": RunProgress}
    said = QuietLine() if speaker == "quiet" else makers[speaker](tmp_path)
    said.say(f"Results in {LONG}")
    assert capsys.readouterr().err == f"Results in {LONG}\n"


def test_the_paths_that_inspect_and_reproduce_print_are_whole(run, text, tmp_path):
    out = tmp_path.joinpath(*("a rather long name of a folder",) * 6)
    asked = ["inspect", "modern", *SIZES[:-2], "--tokenizer", "bytes", "--corpus", text]
    assert f"page: {out / 'inspection.html'}\n" in run(*asked, "--out", out, "--steps", 0)[1]
    assert f"page: {out / 'reproduce.html'}\n" in run("reproduce", "layer-norm", "--out", out)[1]


def test_one_is_singular():
    assert [counted(n, "seed") for n in (0, 1, 2, 1200)] == [
        "0 seeds",
        "1 seed",
        "2 seeds",
        "1,200 seeds",
    ]


def test_a_plan_of_one_seed_one_step_and_one_worker_says_so(run, text, tmp_path):
    study = tmp_path / "study.yaml"
    study.write_text(
        f"""
question: One of each?
baseline: {{preset: modern, d_model: 32, n_layers: 1, n_heads: 2, context_length: 16}}
variants: {{a: {{block.norm.kind: layer}}}}
training: {{steps: 1, batch_size: 4, learning_rates: [1.0e-3]}}
data: {{corpus: {json.dumps(str(text))}, tokenizer: bytes}}
seeds: 1
search: false
"""
    )
    code, said, _ = run("plan", study, "--out", tmp_path / "out", "--workers", 1)
    assert code == 0
    assert ": 3 arms, 1 seed, learning rates" in said
    assert "1 step a run: " in said
    assert "on 1 worker\n" in said


@pytest.mark.parametrize(
    ("found", "expected", "words"),
    [
        (0, 0, "stopped before any run began; run the same command again\n"),
        (3, 26, "stopped: 3 of 26 runs finished and kept in"),
        (26, 26, "stopped with all runs finished and kept in"),
    ],
)
def test_who_stops_a_study_is_told_how_far_it_came(capsys, tmp_path, found, expected, words):
    progress = LiveProgress(tmp_path)
    progress.found, progress.expected = found, expected
    progress.say_how_to_go_on()
    said = capsys.readouterr().err
    assert said.startswith(words)
    assert "of 0 runs" not in said


def test_a_study_that_is_stopped_while_it_is_prepared_was_at_no_run(run, monkeypatch, tmp_path):
    def stopped(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr("blocklab.experiment.run_study", stopped)
    code, _, said = run("ablate", "--out", tmp_path / "out")
    assert (code, said) == (130, "stopped before any run began; run the same command again\n")


def test_who_stops_a_reproduction_is_told_what_is_kept(run, monkeypatch, tmp_path):
    def stopped(experiment, folder, say):
        say("one thing and then")
        raise KeyboardInterrupt

    monkeypatch.setattr("blocklab.reproduce.runner.reproduce", stopped)
    code, _, said = run("reproduce", "four-way-ablation", "--out", tmp_path)
    assert code == 130
    assert "four-way-ablation: about ten minutes on two cores; Ctrl-C stops" in said
    assert said.endswith(f"stopped; what is finished is kept in {tmp_path}\n")


@pytest.mark.parametrize("asked", [("count", "gpt2"), ("--help",)])
def test_of_several_processes_one_does_what_trains_nothing(run, monkeypatch, asked):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("os._exit", sys.exit)
    said = {}
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        said[rank] = run(*asked)
    assert said["0"][0] == 0 and said["0"][1]
    assert said["1"] == (0, "", "")


@pytest.mark.parametrize("command", ["ablate", "reproduce"])
def test_several_processes_do_not_each_train_all_runs(run, monkeypatch, command):
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("os._exit", sys.exit)
    code, _, said = run(command)
    assert code == 2
    assert f"start blocklab {command} without it" in said
