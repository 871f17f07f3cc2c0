"""generate, evaluate, export and train on everything that MODEL may be."""

import json
import math
import sys
from dataclasses import dataclass
from io import StringIO
from types import SimpleNamespace

import pytest
import torch

import blocklab as bl
from blocklab.cli import models
from blocklab.cli.models import named_model
from blocklab.cli.starting_point import starting_point
from blocklab.data.tokenizer import ByteTokenizer, Tokenizer, train_bpe
from blocklab.errors import BlocklabError
from blocklab.exchange.runs import load_run
from blocklab.generation import compiled
from blocklab.model import compiling
from blocklab.training.trained import load_trained, weights_fingerprint
from tests.exchange.folders import write_config

SIZES = ["--set", "d_model=32", "--set", "n_layers=1", "--set", "context_length=16"]
SIZES += ["--set", "block.feed_forward.d_ff=32", "--set", "block.attention.n_heads=2"]


@pytest.fixture(scope="module")
def run_folder(text, tmp_path_factory):
    """A short run on the text, with bytes."""
    from blocklab.data.dataset import DataConfig, prepare
    from blocklab.training.config import TrainingConfig
    from blocklab.training.run import RunSpec, train_run

    folder = tmp_path_factory.mktemp("trained") / "run"
    config = bl.presets.modern(d_model=32, n_layers=1, n_heads=2, context_length=16)
    config = config.with_changes({"block.feed_forward.d_ff": 32, "vocab_size": 256})
    data = DataConfig(corpus=str(text), tokenizer="bytes")
    dataset = prepare(data, cache=tmp_path_factory.mktemp("cache"))
    training = TrainingConfig(steps=60, batch_size=8, learning_rate=1e-2)
    spec = RunSpec(
        model=config,
        training=training,
        data=data,
        data_fingerprint=dataset.fingerprint,
        seed=1,
    )
    train_run(spec, folder, dataset)
    (folder / "tokenizer.json").write_text(ByteTokenizer().definition, encoding="utf-8")
    return folder


@pytest.fixture
def yaml_file(tmp_path):
    path = tmp_path / "model.yaml"
    config = bl.presets.modern(d_model=32, n_layers=1, n_heads=2, context_length=16)
    config.with_changes({"block.feed_forward.d_ff": 32}).to_yaml(path)
    return path


@dataclass
class Elsewhere:
    """What another room's `load` gives."""

    model: bl.Transformer
    tokenizer: object
    start_ids: tuple[int, ...] = (7,)
    stop_ids: tuple[int, ...] = (10,)
    notes: tuple[str, ...] = ("half of it is missing",)


@pytest.fixture
def checkpoint(monkeypatch, tmp_path, yaml_file):
    """A folder that a fake of `load` reads, and what it was asked for."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    asked = []
    config = bl.ModelConfig.from_yaml(yaml_file).with_changes({"vocab_size": 256})
    model = bl.Transformer(config, seed=5).eval()

    def load(source, dtype=None):
        asked.append((source, dtype))
        return Elsewhere(model if dtype is None else model.to(dtype), ByteTokenizer())

    monkeypatch.setattr(bl, "load", load, raising=False)
    return SimpleNamespace(folder=folder, asked=asked, model=model)


def test_a_run_writes_what_its_weights_say_after_the_prompt(run, run_folder):
    code, said, _ = run("generate", run_folder, "12 and", "--max-new-tokens", 20)
    model = load_trained(run_folder).model
    ids = torch.tensor([list(b"12 and")])
    written = bl.generate(model, ids, max_new_tokens=20, stop_ids=[0])[0].tolist()
    assert code == 0
    assert said == bytes(written).decode() + "\n"


def test_every_option_of_sampling_reaches_the_sampler(run, run_folder):
    options = {
        "temperature": 1.5,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "seed": 7,
    }
    given = [x for name, v in options.items() for x in (f"--{name.replace('_', '-')}", v)]
    ids = torch.tensor([list(b"12 and")])
    model = load_trained(run_folder).model
    expected = bl.generate(model, ids, max_new_tokens=9, stop_ids=[0], **options)
    text = bytes(expected[0].tolist()).decode("utf-8", "replace") + "\n"
    for more in ([], ["--no-cache"], ["--dtype", "float32"]):
        arguments = ["generate", run_folder, "12 and", "--max-new-tokens", 9, *given, *more]
        assert run(*arguments)[1] == text
    assert run(*arguments, "--stop", text[8:10])[1] == text[: text.index(text[8:10], 6)] + "\n"


def test_what_goes_wrong_in_mid_text_begins_a_line(run, run_folder, monkeypatch):
    def broken(*_):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(compiling, "_compiled", broken)
    monkeypatch.setattr(compiled, "_codes", {})
    code, said, errors = run("generate", run_folder, "12 and", "--compile")
    assert code == 2
    assert said.startswith("12 and") and said.endswith("\n")
    assert "no compiled code can write this text: no compiler here" in errors
    assert run("generate", run_folder, "12 and", "--max-new-tokens", 0)[1] == "12 and\n"


def test_the_prompt_may_come_from_standard_input(run, run_folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", StringIO("12 and"))
    piped = run("generate", run_folder, "-", "--max-new-tokens", 5)[1]
    assert piped == run("generate", run_folder, "12 and", "--max-new-tokens", 5)[1]


def test_a_yaml_file_is_drawn_anew_and_said_to_be_untrained(run, yaml_file):
    code, said, errors = run("generate", yaml_file, "12", "--max-new-tokens", 3)
    assert code == 0
    assert said.startswith("12")
    assert "untrained" in errors


def test_a_checkpoint_begins_with_its_start_and_stops_at_its_stops(run, checkpoint):
    code, said, errors = run("generate", checkpoint.folder, "12", "--max-new-tokens", 8)
    ids = torch.tensor([[7, *b"12"]])
    written = bl.generate(checkpoint.model, ids, max_new_tokens=8, stop_ids=[10])[0, 1:].tolist()
    text = bytes(written[: written.index(10)] if 10 in written else written)
    assert said == text.decode("utf-8", "replace") + "\n"
    assert "half of it is missing" in errors
    run("generate", checkpoint.folder, "12", "--max-new-tokens", 1, "--dtype", "bf16")
    assert checkpoint.asked == [(checkpoint.folder, None), (checkpoint.folder, torch.bfloat16)]
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "no-such-model", "x"], ["no-such-model", "gpt2"]),
        (["generate", "llama-3-70b", "x"], ["llama-3-70b", "GB in float32", "this machine has"]),
        (["generate", "YAML", "x", "--temperature", "-1"], ["temperature must be 0 or more"]),
        (["generate", "YAML", "x", "--past-context", "slide"], ["slide", "window, error, extend"]),
        (["generate", "YAML", "x", "--dtype", "int8"], ["--dtype int8", "float32, bf16"]),
        (["generate", "YAML", "x", "--stop", ""], ["a stop string is empty"]),
        (["evaluate", "YAML"], ["on which text? give --corpus"]),
        (["evaluate", "YAML", "--corpus", "TEXT", "--part", "test"], ["--part test", "validation"]),
        (["evaluate", "YAML", "--corpus", "TEXT", "--stride", "17"], ["stride is 17", "16"]),
    ],
)
def test_bad_input_is_one_line_and_exit_two(run, yaml_file, text, arguments, words):
    named = [{"YAML": yaml_file, "TEXT": text}.get(a, a) for a in arguments]
    code, said, errors = run(*named)
    assert (code, said) == (2, "")
    assert len(errors.strip().splitlines()) <= 2
    assert all(word in errors for word in words), errors


def test_a_run_is_judged_on_the_part_it_never_saw_and_gets_its_own_loss(run, run_folder):
    code, said, _ = run("evaluate", run_folder, "--json")
    found = json.loads(said)
    recorded = json.loads((run_folder / "run.json").read_text())["outcome"]["validation_loss"]
    assert code == 0
    assert found["part"] == "validation"
    assert found["loss"] == pytest.approx(recorded, abs=1e-5)
    assert found["stride"] == found["context"] == 16
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2))
    overlapping = json.loads(run("evaluate", run_folder, "--json", "--stride", 4)[1])
    assert overlapping["loss"] < found["loss"]
    assert overlapping["tokens"] == found["tokens"]


def test_all_of_another_text_is_read(run, run_folder, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.txt").write_text(f"{name} and 4 are €", encoding="utf-8")
    code, said, _ = run("evaluate", run_folder, "--corpus", folder, "--json")
    found = json.loads(said)
    assert code == 0
    assert (found["part"], found["documents"]) == ("all", 2)
    assert found["bytes"] == 2 * len("a and 4 are €".encode()) - 1
    assert found["tokens"] == found["bytes"] + 1
    told = run("evaluate", run_folder, "--corpus", folder)[1]
    assert f"{found['loss']:.4f} nats" in told
    assert "2 documents" in told


@pytest.mark.parametrize("part", ["all", "validation"])
@pytest.mark.parametrize("tokenizer", ["bytes", "learnt"])
def test_a_text_is_judged_alike_in_pieces_of_any_size_and_never_joined(
    run, yaml_file, text, tmp_path, monkeypatch, part, tokenizer
):
    if tokenizer == "learnt":
        train_bpe([text.read_text(encoding="utf-8")], 300).save(tmp_path / "tokenizer.json")
        tokenizer = tmp_path
    asked = ["evaluate", yaml_file, "--corpus", text, "--part", part, "--tokenizer", tokenizer]
    whole = run(*asked, "--json")[:2]
    assert whole[0] == 0
    lengths = []
    for kind in (Tokenizer, ByteTokenizer):
        encode = kind.encode_arrays
        monkeypatch.setattr(
            kind,
            "encode_arrays",
            lambda self, texts, encode=encode: (
                lengths.extend(map(len, texts)) or encode(self, texts)
            ),
        )
    monkeypatch.setattr("blocklab.data.reading.PIECE", 500)
    assert run(*asked, "--json")[:2] == whole
    assert max(lengths) < 1000
    assert len(lengths) > 5


def test_training_on_its_own_text_is_said(run, run_folder):
    assert "trained on most of this text" in run("evaluate", run_folder, "--part", "all")[2]


def test_export_hands_model_and_tokenizer_over(run, run_folder, monkeypatch, tmp_path):
    handed = []
    monkeypatch.setattr(
        bl,
        "export_huggingface",
        lambda model, folder, tokenizer=None, say=None: handed.append((model, folder, tokenizer)),
        raising=False,
    )
    assert run("export", run_folder, tmp_path / "out")[0] == 0
    ((model, folder, tokenizer),) = handed
    assert weights_fingerprint(model) == weights_fingerprint(load_trained(run_folder).model)
    assert folder == tmp_path / "out"
    assert isinstance(tokenizer, ByteTokenizer)


def test_a_name_on_the_hub_is_fetched_without_code_or_pickle(monkeypatch, checkpoint):
    asked = {}

    def snapshot_download(name, allow_patterns):
        asked[name] = allow_patterns
        return str(checkpoint.folder)

    fake = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    named = named_model("hf:some/model")
    assert named.model is checkpoint.model
    assert checkpoint.asked == [(checkpoint.folder, None)]
    (patterns,) = asked.values()
    assert list(asked) == ["some/model"]
    assert not [p for p in patterns if p.endswith((".py", ".bin"))]


def test_whoever_needs_no_weights_fetches_and_reads_none(run, monkeypatch, tmp_path):
    folder, asked = tmp_path / "fetched", []
    write_config(folder)

    def snapshot_download(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(folder)

    fake = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    code, said, errors = run("count", "hf:some/model", "--json")
    assert code == 0, errors
    assert asked == [("some/model", ["config.json"])]
    assert json.loads(said)["total"] == json.loads(run("count", folder, "--json")[1])["total"]
    # There is nothing but config.json: whoever wants weights says so.
    code, _, errors = run("generate", "hf:some/model", "x")
    assert code == 2
    assert "hf:some/model: only its configuration is here" in errors
    assert run("generate", folder, "x")[0] == 2
    assert run("train", folder, "--out", tmp_path / "out", "--steps", 1)[0] == 2
    assert starting_point(str(folder), from_scratch=True).model is None


def test_the_hub_without_its_package_or_a_network_is_one_clear_line(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    code, _, errors = run("generate", "hf:some/model", "x")
    assert code == 2
    assert "pip install 'blocklab[hub]'" in errors

    def offline(*_, **__):
        raise FileNotFoundError("no route to host\nand much more")

    fake = SimpleNamespace(snapshot_download=offline)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    code, _, errors = run("generate", "hf:some/model", "x")
    assert code == 2
    assert "no route to host" in errors
    assert "is there a network" in errors
    assert len(errors.strip().splitlines()) == 1


def finetuned(run, model, text, out, *more):
    rest = ["--set", "training.learning_rate=1e-3", "--set", "training.batch_size=4", *more]
    code, _, errors = run("train", model, "--corpus", text, "--out", out, "--steps", 3, *rest)
    assert code == 0, errors
    first = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    record = json.loads((out / "run.json").read_text())
    return first["train_loss"], record


def test_training_goes_on_from_a_runs_weights_and_tokenizer(run, run_folder, text, tmp_path):
    start, record = finetuned(run, run_folder, text, tmp_path / "on")
    before = json.loads((run_folder / "run.json").read_text())
    assert start < 2 < math.log(256)
    model = load_trained(run_folder).model
    assert record["spec"]["weights"] == weights_fingerprint(model)
    assert before["spec"]["weights"] is None
    assert record["outcome"]["diverged_at"] is None
    assert isinstance(load_trained(tmp_path / "on").tokenizer, ByteTokenizer)
    anew, scratch = finetuned(run, run_folder, text, tmp_path / "scratch", "--from-scratch",
                              "--tokenizer", "bytes")  # fmt: skip
    assert anew == pytest.approx(math.log(256), abs=0.3)
    assert scratch["spec"]["weights"] is None


def test_training_goes_on_from_a_checkpoint(run, checkpoint, text, tmp_path):
    _, record = finetuned(run, checkpoint.folder, text, tmp_path / "on")
    assert record["spec"]["weights"] == weights_fingerprint(checkpoint.model)
    assert checkpoint.asked == [(checkpoint.folder, torch.float32)]


def test_what_a_checkpoint_begins_and_stops_texts_with_is_kept_by_its_runs(
    run, checkpoint, text, tmp_path, monkeypatch
):
    finetuned(run, checkpoint.folder, text, tmp_path / "on")
    monkeypatch.undo()
    kept = load_run(tmp_path / "on", None)
    assert kept.start_ids == (7,)
    assert set(kept.stop_ids) == {10, ByteTokenizer().end_of_text}


def test_other_weights_are_another_run_and_no_weights_keep_their_id(run_folder):
    spec = load_trained(run_folder).spec
    stored = json.loads((run_folder / "run.json").read_text())
    assert spec.id == stored["id"]
    ids = {spec.model_copy(update={"weights": w}).id for w in (None, "a", "b")}
    assert len(ids) == 3


def test_weights_of_other_sizes_are_refused_by_path(run, run_folder, text, tmp_path):
    arguments = ["--set", "block.feed_forward.d_ff=48", "--steps", 2, "--out", tmp_path / "on"]
    code, _, errors = run("train", run_folder, "--corpus", text, *arguments)
    assert code == 2
    assert "blocks.0.feed_forward.expand.weight: the model has shape (96, 32)" in errors
    assert "train from scratch" in errors
    assert not (tmp_path / "on").exists()


@pytest.mark.parametrize("damage", ["missing", "cut", "shape", "record"])
def test_a_damaged_run_is_named(run_folder, tmp_path, damage):
    import shutil

    import safetensors.torch

    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    weights = folder / "model.safetensors"
    if damage == "missing":
        weights.unlink()
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-8])
    elif damage == "shape":
        tensors = safetensors.torch.load_file(weights)
        tensors["final_norm.weight"] = torch.ones(3)
        safetensors.torch.save_file(tensors, weights)
    else:
        (folder / "run.json").write_text("{}")
    with pytest.raises(BlocklabError, match=r"run\.json|model\.safetensors"):
        load_trained(folder)


def test_float64_is_refused_where_a_device_has_none(monkeypatch):
    monkeypatch.setattr(models, "usable_device", torch.device)
    config = bl.presets.gpt2(d_model=8, n_layers=1, n_heads=1, context_length=4, vocab_size=256)
    monkeypatch.setattr(models, "model_config", lambda name: config)
    with pytest.raises(BlocklabError, match="mps: it knows no float64; add --dtype float32"):
        named_model("gpt2", "float64", tokenizer="bytes", device="mps")
