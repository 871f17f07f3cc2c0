"""inspect, reproduce and compare from the command line: what they print, write and refuse."""

import json

import pytest
import torch

import blocklab as bl
from blocklab.cli.loading import CHARACTERS_PER_TOKEN, Named, batch_of_text
from blocklab.data.corpora import Corpus
from blocklab.data.dataset import DataConfig
from blocklab.data.tokenizer import ByteTokenizer

SMALL = ["--set", "d_model=32", "--set", "n_layers=2", "--set", "block.attention.n_heads=2"]
SMALL += ["--set", "block.feed_forward.d_ff=48"]


def test_a_preset_is_inspected_on_a_text_and_the_page_is_written(run, text, tmp_path):
    asked = ["inspect", "modern", "--corpus", text, "--tokenizer", "bytes", "--length", 24, *SMALL]
    code, said, _ = run(*asked, "--out", tmp_path)
    assert code == 0
    assert "stream rms" in said
    assert "blocks.*.attention.qkv.weight" in said
    found = json.loads((tmp_path / "inspection.json").read_text(encoding="utf-8"))
    assert found["tokens"] == [4, 24]
    assert len(found["stream"]["rms"]) == 3
    assert set(found["updates"]) == set(found["gradients"])
    page = (tmp_path / "inspection.html").read_text(encoding="utf-8")
    assert "<script" not in page
    for name in ("stream-rms", "gradient-norms", "head-entropy", "attention-maps", "logit-lens"):
        assert (tmp_path / "charts" / f"{name}.svg").is_file()
        assert (tmp_path / "charts" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_trained_run_is_inspected_with_its_own_weights(run, text, tmp_path):
    out = tmp_path / "run"
    trained = ["train", "modern", "--corpus", text, "--tokenizer", "bytes", "--steps", 30]
    trained += ["--set", "context_length=16", "--set", "training.batch_size=4", *SMALL]
    assert run(*trained, "--out", out)[0] == 0
    code, _, _ = run("inspect", out, "--steps", 0, "--out", tmp_path / "seen")
    assert code == 0
    found = json.loads((tmp_path / "seen" / "inspection.json").read_text(encoding="utf-8"))
    assert found["updates"] is None
    assert found["loss"] < 5.0  # Untrained it stands at ln 257 = 5.55.
    code, _, said = run("inspect", out, "--set", "n_layers=3")
    assert code == 2
    assert "has weights" in said


def test_no_more_of_a_corpus_is_read_than_the_batch_needs(monkeypatch):
    needed = (2 * 8 + 1) * CHARACTERS_PER_TOKEN
    read = []

    def pieces(document):
        for number in range(1000):
            read.append(f"{document}{number:03}" * 2)
            yield read[-1]

    streams = [("short", iter(["one ", "two"])), ("long", pieces("a")), ("longer", pieces("b"))]
    corpus = Corpus("fake", "", lambda notes: iter(streams))
    monkeypatch.setattr("blocklab.cli.loading.read_corpus", lambda name, encoding, say: corpus)
    config = bl.presets.modern(d_model=32, n_heads=2, n_layers=1)
    named = Named(config, tokenizer=ByteTokenizer())
    _, tokens, _ = batch_of_text(named, DataConfig(corpus="fake"), None, 2, 8, print)
    assert bytes(tokens.flatten().tolist()) == b"one two\na000a000a"[:16]
    assert tokens.dtype == torch.int64
    assert len("one two" + "".join(read[:-1])) < needed <= len("one two" + "".join(read))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "gtp2"], ["gtp2", "gpt2"]),
        (["inspect", "modern", "--corpus", "gone.txt"], ["gone.txt"]),
        (["inspect", "modern", "--corpus", "TEXT", "--sequences", "9000"], ["9,000", "fewer"]),
        (["reproduce", "layernorm"], ["layernorm", "layer-norm"]),
        (["compare", "gone.py:Norm", "norm.layer"], ["gone.py", "no such file"]),
        (["compare", "Norm", "norm.layer"], ["FILE:CLASS"]),
        (["compare", "MINE:Norm", "norm.leyer"], ["leyer", "layer"]),
        (["compare", "MINE:Norm", "nrom"], ["nrom", "norm.KIND"]),
        (["compare", "MINE:Nrom", "norm.layer"], ["no torch module called 'Nrom'"]),
        (["compare", "MINE:Odd", "norm.layer"], ["'strange'", "--with strange=VALUE"]),
        (["compare", "MINE:Norm", "norm.layer", "--with", "esp=1"], ["esp", "eps"]),
    ],
)
def test_bad_input_is_one_clear_line(run, text, mine, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    known = {"TEXT": str(text)}
    arguments = [known.get(a, a.replace("MINE", str(mine))) for a in arguments]
    code, _, said = run(*arguments)
    assert code == 2
    assert said.startswith("blocklab: ") or "\nblocklab: " in said
    for word in words:
        assert word in said


def test_an_experiment_is_reproduced_beside_what_was_published(run, tmp_path):
    code, said, _ = run("reproduce", "swiglu-hidden", "layer-norm", "--out", tmp_path)
    assert code == 0
    assert "10,880" in said
    assert "12 match and none is off" in said
    page = (tmp_path / "reproduce.html").read_text(encoding="utf-8")
    assert "Layer norm by hand" in page
    # Another one later joins those that are kept.
    assert run("reproduce", "rms-norm", "--out", tmp_path)[0] == 0
    page = (tmp_path / "reproduce.html").read_text(encoding="utf-8")
    assert "Layer norm by hand" in page
    assert "RMSNorm against its formula" in page


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        """
import torch
from torch import nn

class Norm(nn.Module):
    def __init__(self, features, eps=1e-5):
        super().__init__()
        self.a = nn.Parameter(torch.ones(features))
        self.b = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        variance = x.var(-1, keepdim=True)
        return self.a * (x - x.mean(-1, keepdim=True)) / (variance + self.eps).sqrt() + self.b

class Odd(Norm):
    def __init__(self, features, strange):
        super().__init__(features)

class FeedForward(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.up = nn.Linear(cfg["emb_dim"], 4 * cfg.n_embd)
        self.down = nn.Linear(4 * cfg.n_embd, cfg["emb_dim"])

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x), approximate="tanh"))
""",
        encoding="utf-8",
    )
    return path


def test_a_learners_norm_is_told_its_mistake(run, mine):
    code, said, _ = run("compare", f"{mine}:Norm", "norm.layer")
    assert code == 0
    assert "divides the variance by n − 1" in said
    code, said, _ = run("compare", f"{mine}:Norm", "norm.layer", "--with", "eps=1e-3")
    assert "unbiased-variance" in said
    assert "other-eps" in said


def test_a_constructor_that_takes_a_configuration_is_given_one(run, mine):
    code, said, _ = run("compare", f"{mine}:FeedForward", "feed_forward.mlp")
    assert code == 0
    assert "agree" in said


def test_weights_of_more_rows_than_gpt2_s_are_not_read_by_its_tokenizer(run, text, tmp_path):
    config = bl.presets.llama(d_model=24, n_layers=1, n_heads=2, vocab_size=50_300)
    folder = bl.export_huggingface(bl.Transformer(config), tmp_path / "model")
    code, _, said = run("inspect", folder, "--corpus", text)
    assert code == 2
    assert "the model has weights but no tokenizer came with them; give --tokenizer" in said
