"""A plugin may import the user's own files: they are part of its runs, and travel with it."""

import os
import subprocess
import sys

import pytest

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.parts.activation import ACTIVATIONS
from blocklab.record import Tagged
from blocklab.study import plugins as own
from blocklab.study.plan import plan
from blocklab.study.plugins import load_plugins, used_by
from blocklab.training.optimizer import AdamW
from tests.study.test_study import TEXT, minimal

HELPER = """
import torch
from torch import nn

class MyNorm(nn.Module):
    def __init__(self, d: int):
        super().__init__()
        self.weight = nn.Parameter(torch.full((d,), {scale}))

    def forward(self, x):
        return self.weight * torch.tanh(x)
"""

PLUGIN = """
import blocklab as bl
from {module} import MyNorm

bl.part("norm", "{kind}")(MyNorm)
"""


@pytest.fixture(autouse=True)
def _what_is_loaded_is_forgotten(monkeypatch):
    kinds = {slot: dict(of_slot) for slot, of_slot in Tagged._kinds.items()}
    monkeypatch.setattr(Tagged, "_kinds", kinds)
    monkeypatch.setattr(own, "_LOADED", {})
    monkeypatch.setattr(own, "_FOLDERS", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    before, activations = set(sys.modules), dict(ACTIVATIONS)
    yield
    for name in set(sys.modules) - before:
        if (
            getattr(sys.modules[name], "__file__", None)
            and "pytest-of" in sys.modules[name].__file__
        ):
            del sys.modules[name]
    ACTIVATIONS.clear()
    ACTIVATIONS.update(activations)


def written(folder, name="plug.py", module="my_helper", kind="helped", scale=1.0):
    """A plugin with a helper beside it."""
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(HELPER.format(scale=scale), encoding="utf-8")
    (folder / name).write_text(PLUGIN.format(module=module, kind=kind), encoding="utf-8")
    return folder / name


def of_kind(kind):
    config = bl.presets.gpt2(d_model=8, n_heads=2, n_layers=1, vocab_size=7, context_length=6)
    return config.with_changes({"block.norm": {"kind": kind}})


def scale_of(kind):
    return float(bl.parts.NormConfig.of_kind(kind)(kind=kind).build(4).weight[0].detach())


# Runs are known by all sources.


def test_an_edited_helper_makes_another_run(tmp_path):
    file = written(tmp_path)
    study = minimal(variants={"mine": {"block.norm": {"kind": "helped"}}})

    def specs(loaded):
        planned = plan(study, TEXT, loaded)
        return [planned.run(arm, 1, 1e-3).spec for arm in planned.arms[:2]]

    first = load_plugins([file])
    before = specs(first)
    assert before[0].plugins == {}
    assert before[1].plugins == first
    assert scale_of("helped") == 1.0
    written(tmp_path, scale=2.0)
    after = specs(load_plugins([file]))
    assert scale_of("helped") == 2.0
    assert after[1].id != before[1].id
    assert after[0].id == before[0].id
    written(tmp_path, scale=1.0)
    assert load_plugins([file]) == first
    assert scale_of("helped") == 1.0


def test_the_fingerprint_of_a_file_changes_only_with_it_or_with_the_contract(tmp_path):
    """Else runs of before would be trained again."""
    file = tmp_path / "alone.py"
    file.write_text("import torch\nimport blocklab as bl\n", encoding="utf-8")
    assert load_plugins([file]) == {"alone.py": "f42cd4487c636f37"}


def test_a_helper_that_is_imported_late_or_by_a_helper_counts(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "__init__.py").write_text("from . import one", encoding="utf-8")
    (tmp_path / "deep" / "one.py").write_text("def f():\n    from . import two", encoding="utf-8")
    (tmp_path / "deep" / "two.py").write_text("import late_one", encoding="utf-8")
    (tmp_path / "late_one.py").write_text("VALUE = 1", encoding="utf-8")
    (tmp_path / "unrelated.py").write_text("VALUE = 1", encoding="utf-8")
    file = tmp_path / "plug.py"
    file.write_text("import deep", encoding="utf-8")
    seen = [load_plugins([file])["plug.py"]]
    for name in ("deep/__init__.py", "deep/one.py", "deep/two.py", "late_one.py"):
        with (tmp_path / name).open("a", encoding="utf-8") as source:
            source.write("\nEDITED = 1\n")
        seen.append(load_plugins([file])["plug.py"])
    assert len(set(seen)) == 5
    (tmp_path / "unrelated.py").write_text("VALUE = 2", encoding="utf-8")
    assert load_plugins([file])["plug.py"] == seen[-1]


def test_a_helper_that_a_script_imported_before_counts(tmp_path, monkeypatch):
    file = written(tmp_path)
    fresh = load_plugins([file])
    monkeypatch.setattr(own, "_LOADED", {})
    assert "my_helper" in sys.modules
    assert load_plugins([file]) == fresh


def test_a_helper_elsewhere_on_the_search_path_counts(tmp_path):
    library = tmp_path / "library"
    written(library)
    file = tmp_path / "plug.py"
    source = PLUGIN.format(module="my_helper", kind="helped")
    file.write_text(f"import sys\nsys.path.insert(0, {str(library)!r})\n{source}", encoding="utf-8")
    before = load_plugins([file])
    (library / "my_helper.py").write_text(HELPER.format(scale=3.0), encoding="utf-8")
    assert load_plugins([file]) != before
    assert scale_of("helped") == 3.0


def test_an_activation_and_an_optimiser_of_a_plugin_count(tmp_path):
    file = tmp_path / "plug.py"
    file.write_text(
        """
from typing import Literal
import torch
from blocklab.parts import register_activation
from blocklab.training.optimizer import AdamW

register_activation("plugged", torch.sin)

class Mine(AdamW):
    kind: Literal["plugged-adamw"] = "plugged-adamw"

Mine.register("plugged-adamw")
""",
        encoding="utf-8",
    )
    loaded = load_plugins([file])
    config = of_kind("layer")
    assert used_by(config, loaded) == used_by(AdamW(), loaded) == {}
    assert used_by(config.with_changes({"block.feed_forward.activation": "plugged"}), loaded)
    assert used_by(Tagged._kinds["optimizer"]["plugged-adamw"](), loaded) == loaded
    with file.open("a", encoding="utf-8") as source:
        source.write("\nEDITED = 1\n")
    assert load_plugins([file]) != loaded


def test_what_two_plugins_share_belongs_to_both_in_any_order(tmp_path):
    files = [written(tmp_path, f"{name}.py", kind=f"of-{name}") for name in ("one", "two")]
    with (tmp_path / "my_helper.py").open("a", encoding="utf-8") as source:
        source.write("\nimport blocklab as bl\nbl.part('norm', 'shared')(MyNorm)\n")
    loaded = load_plugins(files)
    assert used_by(of_kind("of-two"), loaded) == {"two.py": loaded["two.py"]}
    assert used_by(of_kind("shared"), loaded) == loaded
    assert load_plugins(files[::-1]) == loaded


def test_a_plugin_loaded_again_means_its_own_parts_again(tmp_path):
    one, two = written(tmp_path / "a", scale=1.0), written(tmp_path / "b", scale=2.0)
    load_plugins([one])
    load_plugins([two])
    assert scale_of("helped") == 2.0
    load_plugins([one])
    assert scale_of("helped") == 1.0
    import my_helper

    assert str(tmp_path / "a") in my_helper.__file__


# Names.


def test_helpers_of_one_name_are_refused_where_they_differ(tmp_path):
    files = [
        written(tmp_path / folder, f"{folder}.py", kind=f"of-{folder}", scale=scale)
        for folder, scale in (("a", 1.0), ("b", 2.0))
    ]
    with pytest.raises(BlocklabError, match=r"two files called my_helper; rename one"):
        load_plugins(files)
    written(tmp_path / "b", "b.py", kind="of-b", scale=1.0)
    assert len(load_plugins(files)) == 2


def test_a_neighbour_that_an_import_would_not_find_is_refused(tmp_path):
    (tmp_path / "statistics.py").write_text("VALUE = 1", encoding="utf-8")
    file = tmp_path / "plug.py"
    file.write_text("import statistics", encoding="utf-8")
    with pytest.raises(
        BlocklabError, match=r"imports 'statistics', which is \S+ and not .*; rename /"
    ):
        load_plugins([file])
    file.write_text("import math", encoding="utf-8")
    load_plugins([file])


def test_a_neighbour_hides_nothing_of_others(tmp_path):
    (tmp_path / "colorsys.py").write_text("raise RuntimeError", encoding="utf-8")
    sys.modules.pop("colorsys", None)
    file = tmp_path / "plug.py"
    file.write_text("VALUE = 1", encoding="utf-8")
    load_plugins([file])
    import colorsys

    assert str(tmp_path) not in colorsys.__file__


# Loading.


def test_a_worker_finds_neighbours_at_once_and_late(tmp_path):
    file = written(tmp_path)
    (tmp_path / "late.py").write_text("VALUE = 5", encoding="utf-8")
    with file.open("a", encoding="utf-8") as source:
        source.write("\ndef later():\n    from late import VALUE\n    return VALUE\n")
    script = f"""
import sys
from blocklab.study.plugins import load_plugins
print(load_plugins([{str(file)!r}]))
plugin = next(module for name, module in sys.modules.items() if name.startswith("blocklab_plugin"))
print(plugin.later())
"""
    writing = {name: value for name, value in os.environ.items() if "BYTECODE" not in name}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path.parent,
        env=writing,
    )
    assert done.stdout.split("\n")[:2] == [str(load_plugins([file])), "5"], done.stderr
    left = [path.name for path in tmp_path.glob("__pycache__/*")]
    assert not [name for name in left if not name.startswith("late.")]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("\n\n1 / 0", r"plug\.py: ZeroDivisionError: division by zero \(line 3 of plug\.py\)$"),
        ("raise ValueError('one\\ntwo')", r"plug\.py: ValueError: one \(line 1 of plug\.py\)$"),
        ("import sys; sys.exit()", r"plug\.py: ends the process; put what .* under if __name__"),
        ("def", r"plug\.py: SyntaxError"),
        ("import not_there_at_all", r"plug\.py: ModuleNotFoundError: No module named"),
        (
            "import blocklab as bl\nbl.part('norm', 'x')(3)",
            r"^\S*plug\.py: int is no class",
        ),
        (
            "from blocklab.study.plugins import load_plugins\nload_plugins([__file__])",
            r"plug\.py: asks for itself while it is imported; put .* under if __name__ ==",
        ),
    ],
)
def test_a_file_that_cannot_be_imported_says_so_in_a_line(tmp_path, source, words):
    file = tmp_path / "plug.py"
    file.write_text(source, encoding="utf-8")
    with pytest.raises(BlocklabError, match=words) as caught:
        load_plugins([file])
    assert "\n" not in str(caught.value)


def test_a_helper_of_a_file_that_failed_is_read_again(tmp_path):
    file = written(tmp_path)
    with file.open("a", encoding="utf-8") as source:
        source.write("\n1 / 0\n")
    with pytest.raises(BlocklabError, match="ZeroDivisionError"):
        load_plugins([file])
    load_plugins([written(tmp_path, scale=4.0)])
    assert scale_of("helped") == 4.0


# Copies, and what workers hold to.


def test_copies_hold_all_that_a_plugin_needs(tmp_path):
    file = written(tmp_path / "there")
    alone = tmp_path / "there" / "alone.py"
    alone.write_text("VALUE = 1", encoding="utf-8")
    loaded = load_plugins([file, alone])
    copies = own.sources_of([file, alone])
    assert sorted(copies) == ["alone.py", "plug/my_helper.py", "plug/plug.py"]
    folder = tmp_path / "copies"
    own.write_copies(copies, folder)
    assert own.copies_in(folder) == (folder / "alone.py", folder / "plug" / "plug.py")
    (tmp_path / "there").rename(tmp_path / "gone")
    own._LOADED.clear()
    sys.modules.pop("my_helper")
    assert load_plugins(own.copies_in(folder)) == loaded
    assert "copies" in sys.modules["my_helper"].__file__


def test_a_copy_takes_the_place_of_the_one_before(tmp_path):
    file = written(tmp_path / "there")
    folder = tmp_path / "copies"
    own.write_copies(own.sources_of([file]), folder)
    file.write_text("VALUE = 1", encoding="utf-8")
    own.write_copies(own.sources_of([file]), folder)
    assert own.copies_in(folder) == (folder / "plug.py",)
    own.write_copies(own.sources_of([written(tmp_path / "there")]), folder)
    assert own.copies_in(folder) == (folder / "plug" / "plug.py",)


def test_a_run_is_not_trained_by_sources_other_than_its_record_s(tmp_path):
    file = written(tmp_path)
    asked = load_plugins([file])
    own.require_unchanged(asked, load_plugins([file]))
    written(tmp_path, scale=2.0)
    with pytest.raises(BlocklabError, match=r"plug\.py: it, or a file that it imports, was edited"):
        own.require_unchanged(asked, load_plugins([file]))


def test_a_part_that_no_given_plugin_defines_is_refused(tmp_path):
    loaded = load_plugins([written(tmp_path)])
    own.require_given(of_kind("helped"), loaded, "baseline")
    own.require_given(of_kind("layer"), {}, "baseline")
    with pytest.raises(BlocklabError, match=r"variants\.x: norm 'helped' .*plugins=\[__file__\]"):
        own.require_given(of_kind("helped"), {}, "variants.x")
