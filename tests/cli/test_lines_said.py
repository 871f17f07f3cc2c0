"""Lines that go to a file or a pipe are whole, and count in words as English does."""

import json

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
