"""What commands on one model say of what they were given, did and left out."""

import json

import numpy as np
import pytest
import torch

import blocklab as bl
from blocklab.data.tokenizer import ByteTokenizer, train_bpe
from blocklab.training.checkpoint import save_checkpoint
from tests.cli.conftest import TEXT

SIZES = ["--set", "d_model=32", "--set", "n_layers=1", "--set", "context_length=16"]
SIZES += ["--set", "block.feed_forward.d_ff=32", "--set", "block.attention.n_heads=2"]
SIZES += ["--set", "vocab_size=null", "--set", "training.batch_size=4", "--tokenizer", "bytes"]


@pytest.fixture
def trained(run, text, tmp_path):
    """A short run, what training it said, and the arguments that it took."""

    def make(name="run", *more):
        folder = tmp_path / name
        corpus = [] if "--corpus" in more else ["--corpus", text]
        asked = ["train", "modern", *SIZES, *corpus, "--steps", 3, "--out", folder, *more]
        code, _, said = run(*asked)
        assert code == 0, said
        return folder, said

    return make


def test_training_says_its_text_what_was_done_to_it_and_who_is_decayed(trained, tmp_path):
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (mixed / "a.txt").write_bytes(b"\xef\xbb\xbf" + TEXT.replace(".", ".\r\n").encode())
    (mixed / ".hidden.txt").write_text(TEXT)
    (mixed / "b.bin").write_bytes(bytes(range(256)) * 9)
    _, said = trained("run", "--corpus", mixed)
    assert "tokenizer bytes" in said
    assert "tokens to train on" in said
    for what in ("byte-order mark stripped", "line ends", "skipped, hidden", "skipped, binary"):
        assert what in said, what
    assert "matrices" in said
    assert "decay 0.1" in said
    assert "no decay" in said


def test_evaluating_says_what_was_left_out_of_a_text(run, trained, tmp_path):
    folder, _ = trained()
    mixed = tmp_path / "other"
    mixed.mkdir()
    (mixed / "a.txt").write_text(TEXT[:500])
    (mixed / ".hidden.txt").write_text(TEXT)
    _, _, said = run("evaluate", folder, "--corpus", mixed)
    assert "skipped, hidden: .hidden.txt" in said


def test_a_run_is_gone_on_with_on_its_own_text(run, trained, text, tmp_path):
    folder, _ = trained()
    code, _, said = run("train", folder, "--steps", 1, "--out", tmp_path / "further")
    assert code == 0
    assert str(text) in said
    record = json.loads((tmp_path / "further" / "run.json").read_text())
    assert record["spec"]["data"]["corpus"] == str(text)


@pytest.mark.parametrize("command", ["train", "evaluate", "generate"])
def test_another_tokenizer_than_the_model_s_own_is_said(run, trained, text, tmp_path, command):
    folder, _ = trained()
    other = tmp_path / "tokenizer.json"
    train_bpe([TEXT], 260).save(other)
    arguments = {
        "train": ["--steps", 1, "--out", tmp_path / "x", "--corpus", text],
        "evaluate": ["--corpus", text],
        "generate": ["hi", "--max-new-tokens", 1],
    }[command]
    _, _, said = run(command, folder, *arguments, "--tokenizer", other)
    assert "learnt its ids from another tokenizer (bytes)" in said
    own = tmp_path / "own.json"
    ByteTokenizer().save(own)
    _, _, said = run(command, folder, *arguments[:2], "--tokenizer", own)
    assert "another tokenizer" not in said


def test_going_on_with_nothing_is_said(trained):
    _, said = trained("new", "--resume")
    assert "holds no stopped run; this one begins at its first step" in said


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["--set", "training.clip=2"], "training.clip is 1.0 there and 2.0 here"),
        (["--seed", "7"], "seed is 1 there and 7 here"),
        (["--set", "block.norm.eps=0.5"], "block.norm.eps is 1e-06 there and 0.5 here"),
    ],
)
def test_a_stopped_run_of_another_recipe_is_refused_by_the_first_path(
    run, trained, text, tmp_path, asked, words
):
    folder, _ = trained()
    spec = json.loads((folder / "run.json").read_text())["spec"]
    place = tmp_path / "stopped"
    state = {"id": "other", "spec": spec, "numerics": spec["numerics"]}
    save_checkpoint(place, 1, {}, state)
    arguments = ["train", "modern", *SIZES, "--corpus", text, "--steps", 3, "--out", place]
    code, _, said = run(*arguments, "--resume", *asked)
    assert code == 2
    assert f"{place}: holds a stopped run of another recipe: {words}" in said


def test_options_that_draw_draw_without_a_temperature_of_their_own(run, trained):
    folder, _ = trained()
    for option in (("--top-p", 0.99), ("--top-k", 90), ("--min-p", 0.001)):
        texts = {
            run("generate", folder, "one", "--max-new-tokens", 20, *option, "--seed", seed)[1]
            for seed in (1, 2, 3)
        }
        assert len(texts) == 3
    _, first, said = run("generate", folder, "one", "--temperature", 0, "--top-p", 0.9)
    assert "temperature 0 takes the likeliest token, whatever else is asked" in said
    assert first == run("generate", folder, "one")[1]


def test_the_encoding_of_a_text_can_be_said(run, tmp_path):
    latin = tmp_path / "latin.txt"
    latin.write_bytes(("é" + TEXT[:3000]).encode("latin-1"))
    own = tmp_path / "own"
    arguments = [a for a in SIZES if a not in ("--tokenizer", "bytes")]
    refused = ["train", "modern", *arguments, "--tokenizer", "bpe:270", "--corpus", latin]
    code, _, said = run(*refused, "--out", own, "--steps", 1)
    assert code == 2
    assert "--encoding" in said
    assert run(*refused, "--out", own, "--steps", 1, "--encoding", "latin-1")[0] == 0
    code, out, _ = run("evaluate", own, "--corpus", latin, "--encoding", "latin-1")
    assert code == 0
    assert "bits per byte" in out
    code, _, said = run("evaluate", own, "--encoding", "utf-16")
    assert code == 2
    assert "the run read this corpus as latin-1" in said


def test_a_file_in_the_way_of_a_folder_is_named(run, text, tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        code, _, said = run("train", "modern", *SIZES, "--corpus", text, "--out", out)
        assert code == 2
        assert f"{out}: {tmp_path / 'file'} is a file; give another folder" in said


@pytest.mark.parametrize(
    "error",
    [
        np._core._exceptions._ArrayMemoryError((2**40,), np.dtype("int64")),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    ],
    ids=["numpy", "torch", "cuda"],
)
def test_too_little_memory_is_one_line(run, text, tmp_path, monkeypatch, error):
    def fail(*given, **named):
        raise error

    monkeypatch.setattr("blocklab.training.run.train_run", fail)
    code, _, said = run(
        "train", "modern", *SIZES, "--corpus", text, "--steps", 1, "--out", tmp_path / "x"
    )
    assert code == 1
    assert "blocklab: not enough memory: " in said


def test_a_mask_of_other_values_than_one_and_zero_is_refused():
    model = bl.Transformer(bl.presets.modern(d_model=32, n_layers=1, n_heads=2, vocab_size=9))
    tokens = torch.zeros(1, 3, dtype=torch.long)
    added = torch.tensor([[float("-inf"), 0.0, 0.0]])
    for mask in (added, torch.tensor([[2, 1, 1]]), torch.tensor([[0.5, 1, 1]])):
        with pytest.raises(bl.BlocklabError, match="other values than 1"):
            model(tokens, attention_mask=mask)
        with pytest.raises(bl.BlocklabError, match="other values than 1"):
            bl.generate(model, tokens, max_new_tokens=1, attention_mask=mask)
    plain = model(tokens, attention_mask=torch.tensor([[0, 1, 1]]))
    for dtype in (torch.bool, torch.float32, torch.uint8):
        same = model(tokens, attention_mask=torch.tensor([[0, 1, 1]], dtype=dtype))
        assert torch.equal(same, plain)


def test_a_preset_s_feed_forward_follows_another_width(run):
    sizes = ["--set", "d_model=48", "--set", "n_layers=2", "--set", "vocab_size=97"]
    heads = ["--set", "block.attention.n_heads=4"]
    _, said, _ = run("count", "llama", *sizes, *heads, "--json")
    own = bl.presets.llama(d_model=48, n_layers=2, vocab_size=97, n_heads=4)
    assert json.loads(said)["total"] == bl.count(own).total
    _, said, _ = run(
        "count", "llama", *sizes, *heads, "--json", "--set", "block.feed_forward.d_ff=64"
    )
    stated = own.with_changes({"block.feed_forward.d_ff": 64})
    assert json.loads(said)["total"] == bl.count(stated).total
    _, said, _ = run("count", "llama", "--set", "n_layers=2", "--json")
    assert json.loads(said)["total"] == bl.count(bl.presets.llama(n_layers=2)).total


def test_the_encoding_of_a_study_s_text_can_be_said(run, tmp_path):
    latin = tmp_path / "latin.txt"
    latin.write_bytes(("é" + TEXT).encode("latin-1"))
    study = tmp_path / "study.yaml"
    study.write_text(
        f"""
question: Does it read?
baseline: {{preset: modern, d_model: 32, n_layers: 1, n_heads: 2, context_length: 16}}
variants: {{a: {{block.norm.kind: layer}}}}
training: {{steps: 2, batch_size: 4, learning_rates: [1.0e-3]}}
data: {{corpus: '{latin}', tokenizer: 'bpe:270'}}
seeds: 2
search: false
"""
    )
    code, _, said = run("plan", study, "--out", tmp_path / "out")
    assert code == 2
    assert "--encoding" in said
    code, _, said = run("plan", study, "--out", tmp_path / "out", "--encoding", "latin-1")
    assert code == 0, said


@pytest.mark.parametrize(
    "options",
    [
        ["--set", "n_layers=1", "--set", "n_layers=2"],
        ["--variant", "a:block.placement=post", "--variant", "a:block.placement=output"],
        ["--corpus", "python-docs", "--set", "data.corpus=python-library"],
    ],
)
def test_a_value_given_twice_is_refused(run, tmp_path, options):
    code, _, said = run("plan", "--out", tmp_path / "out", *options)
    assert code == 2
    assert "given twice" in said
