"""A user's file is part of the runs that use it, and of no others."""

import pytest

from blocklab.errors import BlocklabError
from blocklab.study.plan import plan
from blocklab.study.plugins import load_plugins
from tests.study.test_study import TEXT, minimal

SOURCE = """
import torch
from torch import nn
import blocklab as bl

@bl.part("norm", "{kind}")
class Mine(nn.Module):
    def __init__(self, d: int, power: float = 0.5) -> None:
        super().__init__()
        self.power = power
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return self.weight * x / x.square().mean(-1, keepdim=True).add(1e-6).pow(self.power)
"""


def ids(planned):
    return {
        arm.name: planned.run(arm, 1, arm.training.learning_rates[0]).spec for arm in planned.arms
    }


def test_a_plugin_is_part_of_the_runs_that_use_it_and_of_no_others(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(SOURCE.format(kind="of-the-plugin-test"), encoding="utf-8")
    before = ids(plan(minimal(), TEXT))
    plugins = load_plugins([file])
    variants = {
        "layer-norm": {"block.norm.kind": "layer"},
        "mine": {"block.norm.kind": "of-the-plugin-test"},
        "in-one-layer": {"layers": [{"at": "0", "block.norm.kind": "of-the-plugin-test"}]},
    }
    after = ids(plan(minimal(variants=variants), TEXT, plugins))
    assert after["baseline"].id == before["baseline"].id
    assert after["layer-norm"].id == before["layer-norm"].id
    assert after["mine"].plugins == after["in-one-layer"].plugins == plugins


def test_two_files_of_one_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        source = SOURCE.format(kind=f"plugin-test-{folder}")
        (tmp_path / folder / "mine.py").write_text(source, encoding="utf-8")
    files = [tmp_path / folder / "mine.py" for folder in ("a", "b")]
    with pytest.raises(BlocklabError, match=r"mine\.py"):
        load_plugins(files)
    assert len(load_plugins([files[0], files[0]])) == 1
