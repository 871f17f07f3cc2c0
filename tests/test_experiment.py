"""What run_study gives back, and what it refuses before anything is written."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import blocklab as bl
from blocklab.experiment import Experiment
from blocklab.record import Tagged
from blocklab.study.verdict import ArmEvidence, verdicts
from tests.report.factory import arm, facts
from tests.study.test_plugin_sources import written
from tests.study.test_study import minimal

SEEDS = (1, 2, 3, 4, 5)


def test_verdicts_are_given_by_the_variants_names_in_the_study_s_order():
    losses = {"modern": 3.0, "worse": 3.4, "better": 2.6}
    read = {
        name: {seed: loss + seed / 1000 * (1 + i) for seed in SEEDS}
        for i, (name, loss) in enumerate(losses.items())
    }
    base, *others = (ArmEvidence(name, by_seed) for name, by_seed in read.items())
    given = verdicts(base, others, SEEDS)
    table = {(seed, 1e-2): 3.0 for seed in SEEDS}
    arms = (
        arm("modern", "baseline", table),
        *(replace(arm(v.name, "variant", table), verdict=v) for v in given),
        arm("not-searched", "variant", table),
        arm("placebo", "placebo", table),
    )
    result = bl.experiment.StudyResult(facts(SEEDS, [1e-2]), arms, ())
    found = Experiment(result, Path("report.html")).verdicts
    assert list(found) == ["worse", "better", "not-searched"]
    words = [verdict and verdict.word for verdict in found.values()]
    assert words == ["worse", "better", None]


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"variants": {"mine": {"block.norm": {"kind": "of-a-script"}}}}, r"variants\.mine"),
        (
            {
                "variants": {"post": {"block.placement": "post"}},
                "nuisances": {"block.norm": [{"kind": "rms"}, {"kind": "of-a-script"}]},
            },
            "baseline",
        ),
    ],
)
def test_a_part_of_the_script_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, fields, at
):
    kinds = {slot: dict(of_slot) for slot, of_slot in Tagged._kinds.items()}
    monkeypatch.setattr(Tagged, "_kinds", kinds)

    @bl.part("norm", "of-a-script")
    class OfAScript(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(d))

        def forward(self, x):
            return self.weight * x.tanh()

    with pytest.raises(bl.BlocklabError, match=rf"^{at}: norm 'of-a-script' .*=\[__file__\]"):
        bl.run_study(minimal(**fields), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_edited_helper_of_a_part_is_trained_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKLAB_CACHE", str(tmp_path / "cache"))
    study = minimal(
        variants={"mine": {"block.norm": {"kind": "helped"}}},
        data={"corpus": "python-docs", "tokenizer": "bytes"},
        training={"steps": 3, "batch_size": 2, "learning_rates": [1e-2], "validation_tokens": 512},
        seeds=1,
        placebo=False,
        numerics={"device": "cpu"},
        baseline={"preset": "modern", "d_model": 32, "n_layers": 2, "n_heads": 2}
        | {"context_length": 16},
    )
    losses = {}
    for scale in (1.0, 0.25, 1.0):
        file = written(tmp_path / "own", scale=scale)
        done = bl.run_study(study, tmp_path / "out", workers=1, plugins=[file])
        (run,) = (run for run in done.runs if run.arm == "mine")
        assert losses.setdefault(scale, run.validation_loss) == run.validation_loss
        stored = json.loads((tmp_path / "out" / "runs" / run.id / "run.json").read_text())
        assert list(stored["spec"]["plugins"]) == ["plug.py"]
    assert losses[1.0] != losses[0.25]
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"folder": 5}, "folder: expected a name or a path, found 5"),
        ({"reuse": 5}, "reuse: expected a name or a path, found 5"),
        ({"workers": "two"}, "workers: expected a whole number, found 'two'"),
        ({"plugins": "mine.py"}, "plugins: expected a list of paths, found 'mine.py'"),
        ({"plugins": [5]}, "plugins: expected a name or a path, found 5"),
    ],
)
def test_what_is_no_path_or_number_is_refused_by_the_argument_s_name(tmp_path, given, words):
    asked = {"folder": tmp_path / "out"} | given
    with pytest.raises(bl.BlocklabError, match=words):
        bl.run_study(minimal(), **asked)
    assert not (tmp_path / "out").exists()


def test_a_folder_to_reuse_may_be_text(tmp_path):
    with pytest.raises(bl.BlocklabError, match="nothing: holds no study"):
        bl.run_study(minimal(), str(tmp_path / "out"), reuse=str(tmp_path / "nothing"))
