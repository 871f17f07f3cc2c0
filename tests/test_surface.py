"""What a notebook and a first mistake meet: names, help, what results show, what errors say."""

import pydoc
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import blocklab as bl
from blocklab.errors import BlocklabError, RunFailed
from blocklab.expected import require
from blocklab.experiment import Experiment
from blocklab.model.preset_fields import SIZES
from blocklab.report.terminal import summary_text
from blocklab.study.verdict import Divergence, Verdict
from blocklab.training.numerics import Numerics
from tests.report import factory

SMALL = bl.presets.gpt2(d_model=16, n_heads=2, n_layers=2, vocab_size=13, context_length=8)
TOKENS = torch.tensor([[1, 2, 3]])


@pytest.fixture(scope="module")
def model() -> bl.Transformer:
    return bl.Transformer(SMALL, seed=0).eval()


# Names and help


def test_every_preset_is_completed_and_is_what_its_name_says() -> None:
    for name in ("gpt2", "gpt2_xl", "modern", "llama", "llama_3_8b", "mistral_7b"):
        assert name in dir(bl.presets)
    for key in bl.presets.names():
        name = key.replace("-", "_")
        assert name in dir(bl.presets)
        found = getattr(bl.presets, name)
        assert found is getattr(bl.presets, name)
        assert (found.__name__, found.__qualname__) == (name, name)


@pytest.mark.parametrize("name", bl.presets.names())
def test_the_help_of_a_preset_says_its_sizes_its_source_and_what_it_takes(name: str) -> None:
    config = bl.presets.preset(name)()
    told = pydoc.plain(pydoc.render_doc(getattr(bl.presets, name.replace("-", "_"))))
    assert f"{config.n_layers} layers of d_model {config.d_model}" in " ".join(told.split())
    assert all(f"{size}:" in told for size in SIZES)
    assert "et al. 20" in told
    assert max(len(line) for line in told.split("\n") if "->" not in line) < 100


def test_a_size_that_a_preset_does_not_take_names_the_nearest() -> None:
    with pytest.raises(BlocklabError, match=r"presets\.gpt2: .*'n_layer'; did you mean 'n_layers'"):
        bl.presets.gpt2(n_layer=3)  # type: ignore[call-arg]
    with pytest.raises(BlocklabError, match=r"gpt2\(d_model=128\)"):
        bl.presets.gpt2(128)  # type: ignore[call-arg, misc]
    with pytest.raises(AttributeError, match="no preset 'gtp2'; did you mean 'gpt2'"):
        _ = bl.presets.gtp2


def test_rooms_complete_their_public_names_alone() -> None:
    for room in (bl.inspect, bl.parts):
        assert dir(room) == sorted(room.__all__)
        assert all(hasattr(room, name) for name in dir(room))


# What results show


class Printer:
    """IPython's, as far as it is asked."""

    def __init__(self) -> None:
        self.written = ""

    def text(self, text: str) -> None:
        self.written += text


def in_a_cell(result: Any) -> str:
    printer = Printer()
    result._repr_pretty_(printer, False)
    return printer.written


def test_a_count_prints_as_its_table_with_every_part_and_the_total() -> None:
    counted = bl.count(bl.presets.gpt2())
    assert repr(counted) == "Count(124,439,808 parameters in 148 tensors)"
    lines = str(counted).split("\n")
    assert lines[0] == "124,439,808 parameters"
    for part, parameters in counted.subtotals.items():
        assert any(part in line and f" {parameters:,} " in line for line in lines)
    assert any(f"{counted.flops_per_token():,} FLOPs" in line for line in lines)
    assert in_a_cell(counted) == str(counted)


def test_a_comparison_shows_its_words() -> None:
    found = bl.compare(nn.LayerNorm(8, eps=1e-5), bl.parts.LayerNorm.Config(eps=1e-5))
    assert repr(found) == "Comparison(LayerNorm and our norm layer: agree)"
    assert in_a_cell(found) == str(found)
    assert "agree: outputs to" in str(found)
    other = bl.compare(nn.LayerNorm(8, eps=1e-3), bl.parts.LayerNorm.Config(eps=1e-5))
    assert repr(other) == f"Comparison(LayerNorm and our norm layer: {', '.join(other.names)})"


def test_a_config_prints_as_the_file_it_is_read_from(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(str(SMALL), encoding="utf-8")
    assert bl.ModelConfig.from_yaml(path) == SMALL
    assert in_a_cell(SMALL) == str(SMALL)
    assert not str(SMALL).endswith("\n")


def test_a_record_is_called_by_the_part_that_it_is_of() -> None:
    assert repr(bl.parts.RMSNorm.Config()).startswith("RMSNorm.Config(kind='rms'")
    assert "positions=LearnedPositions.Config(kind='learned')" in repr(SMALL)

    @bl.part("norm", "of-the-surface-test")
    class Mine(nn.Module):
        def __init__(self, d: int, eps: float = 0.1) -> None:
            super().__init__()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    config = SMALL.with_changes({"block.norm.kind": "of-the-surface-test"})
    assert "<locals>" not in repr(config)


def test_a_tokenizer_and_what_was_loaded_say_what_they_are(
    tmp_path: Path, model: bl.Transformer
) -> None:
    tokenizer = bl.load_tokenizer("bytes")
    assert repr(tokenizer) == "Tokenizer(bytes, 256 ids)"
    wide = bl.Transformer(bl.presets.gpt2(d_model=16, n_heads=2, n_layers=1, vocab_size=256))
    loaded = bl.load(bl.export_huggingface(wide, tmp_path / "out", tokenizer=tokenizer))
    size = f"{bl.count(wide.config).total:,} parameters"
    assert repr(loaded) == f"Loaded({loaded.source}: {size}, Tokenizer(bytes, 256 ids))"
    assert "no tokenizer" in repr(replace(loaded, tokenizer=None))


def test_a_training_and_an_inspection_are_one_line(model: bl.Transformer) -> None:
    trainer = bl.Trainer(
        SMALL, corpus=torch.arange(400) % 13, batch_size=2, numerics=Numerics(), seed=1
    )
    trained = trainer.run(steps=3)
    assert repr(trained) == f"Trained(3 steps, training loss {trained.metrics[-1].train_loss:.4f})"
    found = bl.inspect.inspect_model(model, TOKENS, TOKENS)
    size = f"{bl.count(SMALL).total:,} parameters on 1 × 3 tokens"
    assert repr(found) == f"Inspection({size}, loss {found.loss:.4f})"


def test_an_experiment_prints_as_the_sentences_of_its_report_and_where_that_lies() -> None:
    found = Experiment(factory.modern_block(), Path("out/report.html"))
    runs = f"{len(found.runs):,} runs"
    assert repr(found) == f"Experiment(3 variants, {runs}, report=out/report.html)"
    lines = str(found).split("\n")
    assert lines[:-1] == summary_text(found.result)
    assert lines[-1] == "report: out/report.html"
    assert all(any(name in line for line in lines) for name in found.verdicts)
    assert in_a_cell(found) == str(found)
    question = found.result.facts.question
    assert repr(found.result) == f"StudyResult({question!r}, {len(found.arms)} arms, {runs})"


def test_a_verdict_is_named_and_prints_as_its_sentence() -> None:
    found = Verdict(
        "rms", "better", "", {}, None, None, None, None, False, Divergence(0, 0, 5), 5, 0.01, 0.0
    )
    assert repr({"rms": found}) == "{'rms': Verdict(rms: better)}"
    undecided = replace(found, word="undecided", reason="the search is at an edge")
    assert str(undecided) == undecided.sentence == "undecided: the search is at an edge"


def test_showing_a_count_imports_no_torch_beyond_what_counting_does_and_no_rich() -> None:
    script = (
        "import sys, blocklab as bl; counted = bl.count(bl.presets.gpt2()); before = set("
        "sys.modules); str(counted), repr(counted), str(counted.config); "
        "print(set(sys.modules) - before, 'rich' in sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert said.strip() == "set() False"


# First mistakes


MISTAKES: list[tuple[str, Any, str]] = [
    ("a preset's name counted", lambda m: bl.count("gpt2"), r"found 'gpt2'; .*presets\.gpt2\(\)"),
    ("a model counted", bl.count, "found a Transformer; give its .config"),
    ("a preset not called", lambda m: bl.count(bl.presets.gpt2), r"call it: bl\.presets\.gpt2\(\)"),
    (
        "a name trained",
        lambda m: bl.Trainer("gpt2"),
        "config: expected a ModelConfig, found 'gpt2'",
    ),
    ("a model trained", bl.Trainer, "found a Transformer; give its .config"),
    ("a study's file", lambda m: bl.run_study("x", "out"), r"bl\.Study\.from_yaml"),
    ("a path as a study", lambda m: bl.run_study(Path("x"), "out"), r"bl\.Study\.from_yaml"),
    ("changes as text", lambda m: SMALL.with_changes("x"), "expected a Mapping, found 'x'"),
    ("a name built", lambda m: bl.Transformer("gpt2"), r"found 'gpt2'; .*presets\.gpt2\(\)"),
    ("a preset built", lambda m: bl.Transformer(bl.presets.gpt2), r"call it: bl\.presets\.gpt2"),
    ("a model loaded", bl.load, "load: expected a name or a path, found a Transformer"),
    ("no tokenizer", lambda m: bl.load_tokenizer(None), "expected a name or a path, found None"),
    ("another's model", lambda m: bl.export_huggingface(nn.Linear(1, 1), "x"), "found a Linear"),
    ("a tokenizer's name", lambda m: bl.export_huggingface(m, "x", "gpt2"), "a Tokenizer, found"),
]


@pytest.mark.parametrize(
    ("call", "message"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_a_first_mistake_is_told_what_was_meant(
    model: bl.Transformer, call: Any, message: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BlocklabError, match=message):
        call(model)
    assert not list(tmp_path.iterdir())


READINGS = [
    lambda m, t: bl.generate(m, t, max_new_tokens=1),
    bl.inspect.attention_maps,
    bl.inspect.head_measures,
    bl.inspect.hidden_units,
    bl.inspect.norm_measures,
    bl.inspect.streams,
    bl.inspect.stream_sizes,
    bl.inspect.position_similarity,
    lambda m, t: bl.inspect.record(m, t, "final_norm"),
    lambda m, t: bl.inspect.gradient_norms(m, t, TOKENS),
    lambda m, t: bl.inspect.logit_lens(m, t, TOKENS),
    lambda m, t: bl.inspect.inspect_model(m, t, TOKENS),
]


@pytest.mark.parametrize("read", READINGS)
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([1, 2], r"tokens: expected a Tensor, found a list; torch\.tensor"),
        ("hi", r"tokens: expected a Tensor, found 'hi'; .*tokenizer\.encode"),
        (torch.tensor([1, 2]), r"tokens have shape \(2,\)"),
        (torch.tensor([[0.5, 1, 2]]), "tokens are torch.float32"),
        (torch.tensor([[1, 2, 13]]), "13"),
    ],
    ids=["list", "text", "flat", "floating", "no-row"],
)
def test_tokens_that_are_none_are_answered_alike(
    model: bl.Transformer, read: Any, tokens: Any, message: str
) -> None:
    with pytest.raises(BlocklabError, match=message):
        read(model, tokens)


@pytest.mark.parametrize("read", READINGS)
def test_what_is_no_model_is_answered_alike(read: Any) -> None:
    with pytest.raises(BlocklabError, match=r"model: expected a Transformer, found 'gpt2'; .*load"):
        read("gpt2", TOKENS)
    with pytest.raises(BlocklabError, match=r"build it: bl\.Transformer\(config\)"):
        read(SMALL, TOKENS)


@pytest.mark.parametrize("read", READINGS[-3:])
@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([[1, 2, 3]], "targets: expected a Tensor, found a list"),
        (torch.tensor([[1, 2]]), r"targets have shape \(1, 2\), tokens \(1, 3\)"),
        (torch.tensor([[1.0, 2, 3]]), "targets are torch.float32"),
        (torch.tensor([[1, 2, 13]]), "targets hold 13; expected ids from 0 to 12"),
        (torch.tensor([[-100, 2, 3]]), "targets hold -100"),
    ],
)
def test_targets_that_are_none_are_refused(
    model: bl.Transformer, read: Any, targets: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "TOKENS", targets)
    with pytest.raises(BlocklabError, match=message):
        read(model, torch.tensor([[1, 2, 3]]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_new_tokens": 2.5}, "max_new_tokens: expected a whole number, found 2.5"),
        ({"max_new_tokens": "2"}, "max_new_tokens: expected a whole number, found '2'"),
        ({"max_new_tokens": True}, "max_new_tokens: expected a whole number, found True"),
        ({"temperature": "0.5"}, "temperature: expected a number, found '0.5'"),
        ({"temperature": None}, "temperature: expected a number, found None"),
        ({"top_k": 2.5}, "top_k: expected a whole number, found 2.5"),
        ({"top_p": "0.9"}, "top_p: expected a number, found '0.9'"),
        ({"min_p": [0.9]}, "min_p: expected a number, found a list"),
        ({"repetition_penalty": "x"}, "repetition_penalty: expected a number, found 'x'"),
        ({"seed": 1.5}, "seed: expected a whole number, found 1.5"),
        ({"seed": "abc"}, "seed: expected a whole number, found 'a'"),
        ({"seed": [None]}, "seed: expected a whole number, found None"),
        ({"stop_ids": 3}, "stop_ids: expected some whole numbers, found 3"),
        ({"stop_ids": [None]}, "stop_ids: expected a whole number, found None"),
        ({"attention_mask": [[1, 1, 1]]}, "attention_mask: expected a Tensor, found a list"),
    ],
)
def test_numbers_of_another_kind_are_refused_by_name(
    model: bl.Transformer, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(BlocklabError, match=message):
        bl.generate(model, TOKENS, **{"max_new_tokens": 1, **arguments})


def test_numbers_as_others_have_them_are_taken(model: bl.Transformer) -> None:
    scalar = torch.tensor(2)
    plain = bl.generate(model, TOKENS, max_new_tokens=2, stop_ids=[3], temperature=1, seed=2)
    others = bl.generate(
        model, TOKENS, max_new_tokens=scalar, stop_ids={3}, temperature=1.0, seed=range(2, 3)
    )  # type: ignore[arg-type]
    assert torch.equal(plain, others)


def test_a_model_that_torch_has_compiled_is_still_one(model: bl.Transformer) -> None:
    require(bl.Transformer, torch.compile(model), "model")


def test_a_config_is_written_where_there_is_no_folder_yet_and_says_where_it_cannot(
    tmp_path: Path,
) -> None:
    path = tmp_path / "new" / "folder" / "config.yaml"
    SMALL.to_yaml(path)
    assert bl.ModelConfig.from_yaml(path) == SMALL
    with pytest.raises(RunFailed, match=r"config\.yaml"):
        SMALL.to_yaml(path / "inner.yaml")


# What help says of what is configured


def test_the_help_of_every_parts_record_says_what_each_field_means() -> None:
    for name in bl.parts.__all__:
        record = getattr(getattr(bl.parts, name), "Config", None)
        if record is None:
            continue
        told = vars(record).get("__doc__") or ""
        assert told, f"{name}.Config"
        for field in record.model_fields:
            assert field == "kind" or f"`{field}`" in told, f"{name}.Config: {field}"


def test_what_a_part_of_ones_own_may_define_is_told_with_its_shapes() -> None:
    for method in ("embed", "tables", "rotate", "score_bias", "keys_stay"):
        for part in (
            bl.parts.Positions,
            bl.parts.Rotary,
            bl.parts.Alibi,
            bl.parts.LearnedPositions,
        ):
            assert method not in vars(part) or vars(part)[method].__doc__, (part, method)
