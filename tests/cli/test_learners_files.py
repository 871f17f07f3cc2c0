"""A learner's file is imported as Python imports one, and what is wrong in it is one line."""

import sys

import pytest

from blocklab.cli.learners_class import built
from blocklab.cli.options import settings

GPT = """
from __future__ import annotations

import torch
import torch.nn.functional as F
from dataclasses import dataclass
from torch import nn


@dataclass
class GPTConfig:
    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True


class Attention(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            for part in self.c_attn(x).split(C, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.attn = Attention(config)
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))
"""

NORM = """
class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
"""
TORCH = "import torch\nfrom torch import nn\n"


def test_a_gpt_with_a_dataclass_for_its_sizes_and_late_annotations_is_compared(run, tmp_path):
    file = tmp_path / "model.py"
    file.write_text(GPT, encoding="utf-8")
    untied = ["--set", "tie_embeddings=false"]
    code, said, errors = run("compare", f"{file}:GPT", "gpt2", *untied)
    assert code == 0, errors
    assert "GPT and our model agree" in said


@pytest.mark.parametrize("name", ["inspect.py", "random.py", "model.py"])
def test_a_file_may_have_the_name_of_a_module_and_hides_none(run, tmp_path, name):
    file = tmp_path / name
    file.write_text(TORCH + NORM, encoding="utf-8")
    before = {known: sys.modules.get(known) for known in ("inspect", "random", "model")}
    assert run("compare", f"{file}:Norm", "norm.rms")[0] == 0
    assert {known: sys.modules.get(known) for known in before} == before


def test_what_lies_beside_a_file_is_found_and_the_search_path_is_as_before(run, tmp_path):
    (tmp_path / "beside_the_norm.py").write_text(TORCH + NORM, encoding="utf-8")
    file = tmp_path / "mine.py"
    own_place = "import sys\nsys.path.insert(0, '/nowhere')\n"
    file.write_text(f"{own_place}from beside_the_norm import Norm\n", encoding="utf-8")
    before = list(sys.path)
    assert run("compare", f"{file}:Norm", "norm.rms")[0] == 0
    assert sys.path == before
    sys.modules.pop("beside_the_norm")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("raise ValueError('no')", ["ValueError: no (line 1 of mine.py)"]),
        ("import sys\nsys.exit('usage: mine.py FILE')", ["ends the process", "__main__"]),
        ("def f(:", ["SyntaxError"]),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_line_that_names_it(run, tmp_path, content, words):
    file = tmp_path / "mine.py"
    file.write_text(content, encoding="utf-8")
    known = set(sys.modules)
    code, said, errors = run("compare", f"{file}:Norm", "norm.rms")
    assert (code, said) == (2, "")
    assert len(errors.strip().splitlines()) == 1
    assert errors.startswith(f"blocklab: {file}: ")
    assert all(word in errors for word in words), errors
    assert not [name for name in set(sys.modules) - known if "mine" in name]


def test_a_file_of_another_kind_is_told_so(run, tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text(TORCH + NORM, encoding="utf-8")
    code, _, errors = run("compare", f"{file}:Norm", "norm.rms")
    assert code == 2
    assert errors == f"blocklab: {file}: not a Python file\n"


@pytest.mark.parametrize("method", ["__init__", "forward"])
def test_a_class_that_ends_the_process_does_not_end_ours(run, tmp_path, method):
    file = tmp_path / "mine.py"
    told = f"    def {method}(self, *given):\n        raise SystemExit(3)\n"
    file.write_text(f"{TORCH}{NORM}\nclass Own(Norm):\n{told}", encoding="utf-8")
    code, _, errors = run("compare", f"{file}:Own", "norm.rms")
    assert code == 2
    assert "SystemExit: 3" in errors


def test_the_line_is_named_where_the_file_is_given_by_a_relative_path(run, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("\n\nraise ValueError('no')", encoding="utf-8")
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    errors = run("compare", "../mine.py:Norm", "norm.rms")[2]
    assert errors == "blocklab: ../mine.py: ValueError: no (line 3 of mine.py)\n"


def test_an_argument_in_quotes_stays_text(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        f"{TORCH}class Own(nn.Module):\n"
        "    def __init__(self, dim, name):\n"
        "        super().__init__()\n"
        "        self.name = name\n"
    )
    for given, meant in (('name="1e-3"', "1e-3"), ("name=1e-3", 1e-3)):
        own = built(f"{file}:Own", {"d_model": 8}, settings([given], "--with"))
        assert own.name == meant and type(own.name) is type(meant)
