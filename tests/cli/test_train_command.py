"""`blocklab train` as one uses it for hours: what it says, what it refuses, how it goes on."""

import json
import signal

import pytest
import torch

import blocklab as bl
from blocklab.cli.run_progress import RunProgress
from blocklab.training.checkpoint import NEWEST, PREVIOUS
from tests.cli.conftest import TEXT
from tests.cli.test_one_run_a_folder import stop_after
from tests.cli.test_run_texts import SIZES

__all__ = ["stop_after"]


@pytest.fixture
def asked(text):
    return ["train", "modern", *SIZES, "--corpus", text, "--tokenizer", "bytes"]


def record(folder):
    return json.loads((folder / "run.json").read_text())


@pytest.mark.parametrize(
    ("option", "path", "other"),
    [
        (("--steps", 3), "training.steps", 4),
        (("--corpus", "python-docs"), "data.corpus", "python-library"),
        (("--tokenizer", "bytes"), "data.tokenizer", "bpe:300"),
        (("--encoding", "latin-1"), "data.encoding", "utf-8"),
        (("--device", "cpu"), "numerics.device", "cuda"),
    ],
)
def test_a_value_given_by_an_option_and_by_its_path_is_refused(run, tmp_path, option, path, other):
    common = ["train", "modern", *SIZES, "--out", tmp_path / "run", *option]
    code, _, said = run(*common, "--set", f"{path}={other}")
    assert code == 2
    assert f"--set {path}: given twice, once as {option[0]}; give one" in said


def test_a_length_in_steps_and_in_tokens_is_refused(run, asked, tmp_path):
    both = ["--steps", 3, "--set", "training.tokens=400"]
    code, _, said = run(*asked, "--out", tmp_path / "run", *both)
    assert code == 2
    assert "training.tokens and training.steps say the same" in said


def test_how_it_computes_can_be_said_and_is_the_runs_to_its_end(run, asked, tmp_path, stop_after):
    out = tmp_path / "run"
    half = ["--set", "numerics.dtype=bfloat16", "--set", "numerics.chunk=16"]
    common = [*asked, "--steps", 3, "--out", out, "--device", "cpu"]
    stop_after(1)
    code, _, said = run(*common, *half)
    assert code == 130
    assert "bfloat16 on cpu" in said
    code, _, said = run(*common, "--resume", "--set", "numerics.dtype=float32")
    assert code == 2
    assert "numerics.dtype is 'bfloat16' there and 'float32' here" in said
    assert run(*common, "--resume")[0] == 0
    assert record(out)["spec"]["numerics"]["dtype"] == "bfloat16"
    code, _, said = run(*common, "--set", "numerics.dtyp=float32")
    assert code == 2
    assert "numerics.dtyp: unknown key" in said


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("more", [(), ("--resume",)])
def test_another_models_folder_is_not_written_over(run, asked, tmp_path, name, more):
    (tmp_path / name).write_text("somebody's model")
    code, _, said = run(*asked, "--steps", 1, "--out", tmp_path, *more)
    assert code == 2
    assert f"holds a {name} that is no run's and would be written over" in said
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "somebody's model"


def test_a_run_is_not_put_beside_a_study(run, asked, tmp_path):
    out = tmp_path / "study"
    out.mkdir()
    (out / "study.yaml").write_text("question: which?")
    code, _, said = run(*asked, "--out", out)
    assert (code, said.strip()) == (2, f"blocklab: {out}: holds a study; choose another folder")
    assert [file.name for file in out.iterdir()] == ["study.yaml"]


def test_a_run_killed_before_its_first_checkpoint_begins_again(run, asked, tmp_path, monkeypatch):
    out = tmp_path / "run"

    def killed(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunProgress, "begun", killed)
        assert run(*asked, "--steps", 1, "--out", out)[0] == 130
    assert {"tokenizer.json", "metrics.jsonl"} <= {path.name for path in out.iterdir()}
    assert run(*asked, "--steps", 1, "--out", out)[0] == 0


def test_going_on_with_a_run_that_is_finished_reads_it(run, asked, tmp_path):
    out = tmp_path / "run"
    asked = [*asked, "--out", out]
    assert run(*asked, "--steps", 2, "--resume", "--set", "numerics.chunk=16")[0] == 0
    before = {path: path.read_bytes() for path in out.iterdir()}
    code, _, said = run(*asked, "--steps", 2, "--resume")
    assert code == 0
    assert f"validation loss {record(out)['outcome']['validation_loss']:.4f}" in said
    assert "begins at its first step" not in said
    code, _, said = run(*asked, "--steps", 3, "--resume")
    assert code == 2
    assert "holds a finished run of another recipe: training.steps is 2 there and 3 here" in said
    code, _, said = run(*asked, "--steps", 3)
    assert code == 2
    assert f"holds a finished run; choose another --out (with {out} as MODEL it goes on" in said
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_going_on_from_the_checkpoint_before_a_damaged_one_is_said(
    run, asked, tmp_path, stop_after
):
    out = tmp_path / "run"
    asked = [*asked, "--steps", 4, "--out", out]
    for steps, more in ((1, ()), (2, ("--resume",))):
        stop_after(steps)
        assert run(*asked, *more)[0] == 130
    (out / NEWEST).write_bytes(b"half of it")
    code, _, said = run(*asked, "--resume")
    assert code == 0
    assert f"{NEWEST}: damaged" in said
    assert f"continuing from {PREVIOUS}, step 1" in said
    assert "going on after step 1\n" in said


def test_only_the_checkpoint_before_is_a_stopped_run_too(run, asked, tmp_path, stop_after):
    out = tmp_path / "run"
    stop_after(1)
    assert run(*asked, "--steps", 4, "--out", out)[0] == 130
    (out / NEWEST).rename(out / PREVIOUS)
    code, _, said = run(*asked, "--steps", 4, "--out", out)
    assert code == 2
    assert "holds a stopped run; add --resume" in said


def test_it_says_how_long_where_and_what_every_evaluation_finds(run, asked, tmp_path):
    out = tmp_path / "run"
    more = ["--steps", 4, "--set", "training.evaluate_every=2", "--device", "cpu"]
    code, _, said = run(*asked, "--out", out, *more)
    assert code == 0
    assert "4 steps of 4 × 16 tokens: 256 in all, 0.0" in said
    assert "float32 on cpu, 1 thread" in said
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    (found,) = [row["validation_loss"] for row in rows if "validation_loss" in row]
    assert f"step 2: validation loss {found:.4f}\n" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_saves_where_it_is_asked_to_end(run, asked, tmp_path, monkeypatch, number):
    out, stepped = tmp_path / "run", RunProgress.stepped

    def asked_to_end(self, step, total, loss):
        stepped(self, step, total, loss)
        if step == 2:
            signal.raise_signal(number)

    def not_heard(number, frame):
        """Unheard it would end the tests."""

    monkeypatch.setattr(RunProgress, "stepped", asked_to_end)
    before = signal.signal(number, not_heard)
    try:
        code, _, said = run(*asked, "--steps", 4, "--out", out)
        assert signal.getsignal(number) is not_heard
    finally:
        signal.signal(number, before)
    assert code == 130
    assert "stopped and saved" in said
    monkeypatch.undo()
    assert "going on after step 2" in run(*asked, "--steps", 4, "--out", out, "--resume")[2]


def test_a_text_that_was_moved_while_the_run_was_stopped_is_found_again(
    run, tmp_path, monkeypatch, stop_after
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text(TEXT, encoding="utf-8")
    asked = ["train", "modern", *SIZES, "--tokenizer", "bytes", "--steps", 3, "--out", "run"]
    stop_after(1)
    assert run(*asked, "--corpus", "x.txt")[0] == 130
    (tmp_path / "x.txt").rename(tmp_path / "moved.txt")
    assert run(*asked, "--corpus", "moved.txt", "--resume")[0] == 0
    assert record(tmp_path / "run")["text_lies_at"] == str(tmp_path / "moved.txt")
    code, said, errors = run("evaluate", "run", "--json")
    assert code == 0, errors
    assert json.loads(said)["part"] == "validation"


def test_a_text_that_changed_while_the_run_was_stopped_is_said_to_have(run, tmp_path, stop_after):
    file = tmp_path / "x.txt"
    file.write_text(TEXT, encoding="utf-8")
    asked = ["train", "modern", *SIZES, "--tokenizer", "bytes", "--corpus", file, "--steps", 3]
    asked += ["--out", tmp_path / "run"]
    stop_after(1)
    assert run(*asked)[0] == 130
    file.write_text(TEXT + " and more", encoding="utf-8")
    code, _, said = run(*asked, "--resume")
    assert code == 2
    assert "holds a stopped run on another text: what its corpus gives" in said


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (2, "training.accumulation above 2 takes the step of 4 windows in more parts"),
        (4, "a smaller model or context_length takes less"),
    ],
)
def test_a_step_that_does_not_fit_into_memory_says_what_takes_less(
    run, asked, tmp_path, monkeypatch, parts, said
):
    def fail(*given, **named):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr("blocklab.training.run.train_run", fail)
    more = ["--set", f"training.accumulation={parts}", "--out", tmp_path / "run"]
    code, _, found = run(*asked, *more)
    assert code == 1
    assert f"not enough memory: CUDA out of memory. Tried to allocate 2 GiB; {said}\n" in found


def test_what_came_to_no_number_is_json_all_the_same(run, asked, tmp_path):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    out = tmp_path / "run"
    wild = ["--set", "training.learning_rate=1e30", "--set", "training.clip=null"]
    code, _, said = run(*asked, "--steps", 4, "--out", out, *wild)
    assert code == 0
    assert "diverged at step" in said
    json.loads((out / "run.json").read_text(), parse_constant=refuse)
    _, found, _ = run("evaluate", out, "--json")
    assert json.loads(found, parse_constant=refuse)["loss"] is None


def test_weights_without_the_tokenizer_of_their_ids_are_not_trained_on_another(
    run, text, tmp_path, monkeypatch
):
    learnt = ["--corpus", text, "--tokenizer", "bpe:270", "--steps", 2]
    assert run("train", "modern", *SIZES, *learnt, "--out", tmp_path / "run")[0] == 0
    (tmp_path / "run" / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    monkeypatch.setenv("BLOCKLAB_CACHE", str(tmp_path / "another"))
    further = ["train", tmp_path / "run", "--corpus", text, "--steps", 1]
    code, _, said = run(*further, "--out", tmp_path / "on")
    assert code == 2
    assert "the model has weights but no tokenizer came with them; give --tokenizer" in said
    named = ["--tokenizer", tmp_path / "tokenizer.json"]
    assert run(*further, *named, "--out", tmp_path / "on")[0] == 0


def test_what_a_checkpoint_says_and_training_does_not_take_over_is_told(run, text, tmp_path):
    config = bl.presets.llama(d_model=32, n_layers=1, n_heads=2, vocab_size=256, context_length=16)
    folder = bl.export_huggingface(bl.Transformer(config), tmp_path / "model")
    said = json.loads((folder / "config.json").read_text()) | {"attention_dropout": 0.25}
    (folder / "config.json").write_text(json.dumps(said))
    named = ["--corpus", text, "--tokenizer", "bytes", "--steps", 1, "--out", tmp_path / "run"]
    code, _, told = run("train", folder, *named)
    assert code == 0, told
    assert "attention_dropout 0.25 acts in training only and is not taken over" in told


def test_a_shorter_context_is_trained_on_from_the_first_places(run, text, tmp_path):
    learned = [*SIZES, "--set", "positions.kind=learned", "--corpus", text, "--tokenizer", "bytes"]
    out = tmp_path / "run"
    assert run("train", "modern", *learned, "--steps", 2, "--out", out)[0] == 0
    further = ["train", out, "--steps", 1, "--out", tmp_path / "on"]
    code, _, said = run(*further, "--set", "context_length=32")
    assert code == 2
    assert "positions.weight: the model has shape (32, 32), the weights (16, 32)" in said
    code, _, said = run(*further, "--set", "context_length=8")
    assert code == 0, said
    assert record(tmp_path / "on")["spec"]["model"]["context_length"] == 8
