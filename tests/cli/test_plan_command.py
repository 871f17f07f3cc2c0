"""What a plan says before anything is trained: sizes that do not match, rates, what is refused."""

import json
import re

import pytest

OWN = """
import blocklab as bl
from torch import nn


@bl.part("feed_forward", "{kind}")
class Own(nn.Module):
    def __init__(self, d_model: int, times: int = 2) -> None:
        super().__init__()
        self.wide = nn.Linear(d_model, times * d_model)
        self.narrow = nn.Linear(times * d_model, d_model)

    def forward(self, x):
        return self.narrow(self.wide(x).relu())
"""


@pytest.fixture
def study(text, tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(
        f"""
question: Is LayerNorm as good?
baseline: {{name: modern, preset: modern, d_model: 32, n_layers: 1, n_heads: 2, context_length: 16}}
variants:
  layer-norm: {{block.norm.kind: layer}}
training: {{steps: 10, batch_size: 4, learning_rates: [3e-3, 1e-2, 3e-2]}}
data: {{corpus: {json.dumps(str(text))}, tokenizer: bytes}}
seeds: 2
search: false
""",
        encoding="utf-8",
    )
    return path


def test_an_arm_that_cannot_be_matched_is_named_in_the_plan_and_in_the_answer(run, study, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(OWN.format(kind="plan-own"), encoding="utf-8")
    arguments = (study, "--plugin", own, "--variant", "mine:block.feed_forward.kind=plan-own")
    code, said, _ = run("plan", *arguments, "--out", tmp_path / "out")
    assert code == 0
    (line,) = (line for line in said.splitlines() if "not matched" in line)
    assert (
        "not matched by parameters: -7.3 % against modern" in line
        and "no feed-forward width" in line
    )
    code, said, _ = run("ablate", *arguments, "--out", tmp_path / "out", "--workers", 1)
    assert code == 0
    assert "Not matched by parameters: mine (−7 %), against modern" in said


def test_a_stated_width_is_kept_and_what_it_leaves_is_said(run, study, tmp_path):
    variant = "wide:block.feed_forward={kind: mlp, d_ff: 256}"
    code, said, _ = run("plan", study, "--variant", variant, "--out", tmp_path / "out")
    assert code == 0
    assert "{kind: mlp, d_ff: 256}\n" in said
    assert "not matched by parameters: +" in said and "its feed-forward width is stated" in said


def test_a_plan_tells_the_rates_that_are_tried_first(run, study, tmp_path):
    assert "rates 0.003, 0.01, 0.03;" in run("plan", study, "--out", tmp_path / "out")[1]
    written = study.read_text(encoding="utf-8").replace("search: false", "search: true")
    study.write_text(written, encoding="utf-8")
    said = run("plan", study, "--out", tmp_path / "out")[1]
    assert "searched from 0.003333, 0.009999, 0.03 on" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "seeds=3"], ["seeds", "--seeds"]),
        (["--variant", "short:context_length=8"], ["variants.short", "context_length"]),
        (["--variant", "v:vocab_size=99999"], ["variants.v", "no width matches"]),
        (["--variant", "layer-norm:block.norm.kind=dyt"], ["variants.layer-norm", "twice"]),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(run, study, tmp_path, arguments, words):
    code, _, said = run("plan", study, *arguments, "--out", tmp_path / "out")
    assert code == 2
    assert all(word in said for word in words)


def test_seeds_looked_at_before_their_runs_are_reused_do_not_judge(run, study, tmp_path):
    written = study.read_text(encoding="utf-8").replace("search: false", "search: true")
    study.write_text(written.replace("steps: 10", "steps: 4"), encoding="utf-8")
    first, second = tmp_path / "first", tmp_path / "second"
    for seeds in (2, 3):
        assert run("ablate", study, "--out", first, "--seeds", seeds, "--workers", 1)[0] == 0
    code, said, _ = run("ablate", study, "--out", second, "--seeds", 3, "--reuse", first)
    assert code == 0
    assert "exploratory (1 seed)" in said
    assert "looked: 2" in (second / "study.yaml").read_text(encoding="utf-8")


def test_a_plan_writes_values_as_a_study_file_does_and_every_length_of_run(run, study, tmp_path):
    written = study.read_text(encoding="utf-8") + (
        "nuisances: {initialization: [{kind: normal, std: 0.02}, {kind: fan_in}]}\n"
    )
    study.write_text(written, encoding="utf-8")
    asked = ("--variant", "long:training.steps=12", "--variant", "bare:block.norm={kind: none}")
    code, said, errors = run("plan", study, *asked, "--out", tmp_path / "out", "--workers", 1)
    assert code == 0, errors
    assert "nuisance initialization: {kind: normal, std: 0.02}, {kind: fan_in}\n" in said
    assert "bare: block.norm: {kind: none}\n" in said
    assert "10 to 12 steps a run: 640 to 768 tokens, " in said
    assert "in 2 settings of the nuisances" in said
    assert re.search(r"about \d+ s on 1 worker\n", said)
