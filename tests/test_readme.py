"""What the README shows is what the program takes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import blocklab as bl
from blocklab.cli.app import app
from blocklab.study.plan import plan
from blocklab.study.study import Study
from tests.study.test_study import TEXT

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def block_with(language: str, words: str) -> str:
    (found,) = [block for block in blocks(language) if words in block]
    return found


def test_the_study_file_can_be_planned() -> None:
    study = Study.parse(yaml.safe_load(block_with("yaml", "question:")))
    planned = plan(study, TEXT)
    assert [arm.name for arm in planned.arms] == ["modern", "qk-norm", "grouped", "placebo"]


def test_the_models_file_is_a_model(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(block_with("yaml", "preset: modern\n"), encoding="utf-8")
    config = bl.ModelConfig.from_yaml(file).with_changes({"vocab_size": 100})
    assert bl.count(config).total > 0


@pytest.mark.parametrize("variable", ["nuisances", "interactions", "ladder"])
def test_a_condition_as_it_is_written_between_the_lines_is_taken(variable: str) -> None:
    (written,) = re.findall(rf"`({variable}: {{.*?}})`", README)
    told = yaml.safe_load(written)
    study = yaml.safe_load(block_with("yaml", "question:")) | told
    if variable == "interactions":
        # Its names stand for anybody's variants.
        study["variants"] |= {
            "one": {"block.norm.eps": 1e-3},
            "other": {"dropout": 0.1},
            "both": {"block.norm.eps": 1e-3, "dropout": 0.1},
        }
    assert plan(Study.parse(study), TEXT).arms


def test_every_command_that_is_named_is_one() -> None:
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    named = set(re.findall(r"(?:`|/|^)blocklab ([a-z]+)", README, re.MULTILINE))
    assert named <= known
    assert known <= named


def test_a_part_of_ones_own_is_a_value_like_any_other() -> None:
    program = block_with("python", "@bl.part") + (
        "config = bl.presets.modern(d_model=32, n_layers=1, n_heads=2, vocab_size=11)\n"
        "config = config.with_changes({'block.norm.kind': 'my-norm', 'block.norm.power': 0.6})\n"
        "print(bl.Transformer(config)(torch.zeros(1, 3, dtype=torch.long)).shape)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout == "torch.Size([1, 3, 11])\n", ran.stderr


def test_the_count_that_is_promised_is_the_one_that_is_printed() -> None:
    line = "print(bl.count(config).total)  # 163,037,184"
    assert line in block_with("python", "bl.presets.gpt2")
    assert bl.count(bl.presets.gpt2(tie_embeddings=False)).total == 163_037_184
