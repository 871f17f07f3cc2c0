"""What leaves is what was trained: for every family, whole or not at all."""

import json
from pathlib import Path

import pytest
import safetensors
import torch

import blocklab as bl
from blocklab.data.tokenizer import train_bpe
from blocklab.errors import RunFailed
from blocklab.exchange.export import family_for
from blocklab.exchange.meaning import differences
from tests.exchange.references import choose_exact_experts

SMALL = {"d_model": 32, "n_layers": 2, "n_heads": 2, "vocab_size": 40, "context_length": 24}
TOKENS = torch.arange(12)[None]


def built(preset: str = "modern", **changes) -> bl.Transformer:
    config = bl.presets.preset(preset)(**SMALL).with_changes(changes)
    return bl.Transformer(config, seed=0).eval()


@pytest.mark.parametrize(
    ("preset", "changes", "family"),
    [
        ("gpt2", {}, "gpt2"),
        ("gpt2", {"tie_embeddings": False, "block.attention.scale": 1.0}, "gpt2"),
        ("modern", {"block.feed_forward.d_ff": 40}, "llama"),
        ("modern", {"block.feed_forward.d_ff": 40, "block.attention.head_dim": 6}, "llama"),
        ("mistral", {"block.feed_forward.d_ff": 40}, "mistral"),
        ("modern", {"block.feed_forward.d_ff": 40, "block.attention.window": 24}, "mistral"),
        (
            "modern",
            {"block.feed_forward.d_ff": 40, "layers": [{"at": "1", "block.attention.window": 5}]},
            "smollm3",
        ),
        (
            "modern",
            {"block.feed_forward.d_ff": 40, "layers": [{"at": "0", "positions.kind": "none"}]},
            "smollm3",
        ),
        (
            "modern",
            {"block.feed_forward": {"kind": "experts", "n_experts": 4, "d_ff": 8}},
            "mixtral",
        ),
        (
            "modern",
            {
                "block.feed_forward": {
                    "kind": "experts",
                    "n_experts": 4,
                    "d_ff": 8,
                    "normalized": False,
                },
                "block.attention.qk_norm": {"kind": "rms", "eps": 1e-6},
            },
            "qwen3_moe",
        ),
        ("gpt2", {"positions.kind": "rotary", "block.parallel": "two_norms"}, "gpt_neox"),
        (
            "gpt2",
            {"positions.kind": "rotary", "positions.scaling": {"kind": "linear"}},
            "gpt_neox",
        ),
        ("gpt2", {"block.placement": "post"}, "opt"),
    ],
)
def test_a_model_of_our_own_finds_its_family(tmp_path: Path, preset, changes, family) -> None:
    model = built(preset, **changes)
    bl.export_huggingface(model, tmp_path / "out")
    described = json.loads((tmp_path / "out" / "config.json").read_text())
    assert described["model_type"] == family
    again = bl.load(tmp_path / "out").model
    assert differences(model.config, again.config) == []
    assert torch.equal(again(TOKENS), model(TOKENS))


@pytest.mark.parametrize(
    ("changes", "blocking"),
    [
        ({"positions.kind": "alibi"}, "positions.kind"),
        ({"positions.interleaved": True}, "positions.interleaved"),
        ({"block.norm.kind": "dyt"}, "block.norm.kind"),
        ({"block.residual": {"kind": "scaled", "scale": 0.5}}, "block.residual.kind"),
        ({"block.parallel": "one_norm"}, "block.parallel"),
        ({"head.bias": True}, "head.bias"),
        ({"head.scale": 0.5}, "head.scale"),
        ({"embedding.scale": 3.0}, "embedding.scale"),
        ({"block.attention.scale": 0.7}, "block.attention.scale"),
        ({"block.attention.qkv_bias": False, "block.attention.out_bias": True}, "bias"),
        ({"final_norm": "none"}, "final_norm"),
        ({"block.feed_forward.activation": "relu2", "block.norm.bias": True}, "block.norm.bias"),
        ({"layers": [{"at": "1", "block.norm.eps": 1e-3}]}, "block.norm.eps (0.001 in layer 1)"),
        ({"tie_embeddings": True}, "embedding.scale"),  # drawn by fan-in, its lookup is scaled
    ],
)
def test_what_no_family_can_say_is_refused_by_the_field_in_the_way(
    tmp_path: Path, changes, blocking
) -> None:
    model = built(**{"block.feed_forward.d_ff": 40} | changes)
    with pytest.raises(bl.BlocklabError) as caught:
        bl.export_huggingface(model, tmp_path / "out")
    assert blocking in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_dropout_and_first_values_are_not_in_the_way() -> None:
    changes = {"block.feed_forward.d_ff": 40, "dropout": 0.3, "initialization.gain": 2.0}
    family, _ = family_for(built(**changes).config)
    assert family.model_type == "llama"


_FF = {"block.feed_forward.d_ff": 40}
_EXPERTS = {"kind": "experts", "n_experts": 4, "d_ff": 8}
_ROTARY = {"kind": "rotary", "base": 50.0}
_SANDWICH = {
    **_FF,
    "block.placement": "sandwich",
    "embedding.scale": 32**0.5,
    "block.norm": {"kind": "rms", "unit_offset": True},
    "block.feed_forward.activation": "gelu_tanh",
}


def loads(folder: Path, expected: bl.Transformer) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    choose_exact_experts(theirs.config)
    with torch.no_grad():
        found, ours = theirs.eval()(TOKENS).logits, expected(TOKENS)
    assert (found - ours).abs().max() < 1e-4 * ours.abs().max()


@pytest.mark.parametrize(
    ("changes", "family"),
    [
        ({"positions.kind": "none", "layers": [{"at": "0", "positions": _ROTARY}]}, "smollm3"),
        ({"layers": [{"at": ":", "block.feed_forward": _EXPERTS}]}, "mixtral"),
        (
            {
                "block.attention.qk_norm": {"kind": "rms"},
                "layers": [{"at": "1", "block.feed_forward": _EXPERTS}],
            },
            "qwen3_moe",
        ),
        (
            {"block.norm.kind": "none", "layers": [{"at": ":", "block.norm": {"kind": "rms"}}]}
            | {"final_norm": {"kind": "rms"}},
            "llama",
        ),
    ],
)
def test_what_only_exceptions_have_is_exported_as_well(tmp_path: Path, changes, family) -> None:
    model = built(**_FF | changes)
    bl.export_huggingface(model, tmp_path / "out")
    described = json.loads((tmp_path / "out" / "config.json").read_text())
    assert described["model_type"] == family
    again = bl.load(tmp_path / "out").model
    assert differences(model.config, again.config) == []
    assert torch.equal(again(TOKENS), model(TOKENS))
    loads(tmp_path / "out", model)


_THREE_HEADS = {"block.attention.n_heads": 3, "block.attention.head_dim": 8}


@pytest.mark.parametrize(
    ("changes", "family"),
    [
        (_FF | _THREE_HEADS, "mistral"),
        (_FF | {"initialization": {"kind": "normal", "std": 1.5}}, "llama"),
        (_SANDWICH | {"block.attention.scale": 0.5}, "gemma2"),
    ],
)
def test_a_family_is_chosen_that_transformers_loads(tmp_path: Path, changes, family) -> None:
    model = built(**changes)
    bl.export_huggingface(model, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == family
    loads(tmp_path / "out", model)


_LONG = {"kind": "longrope", "short": [1.0] * 4, "long": [2.0] * 4, "original_context": 12}


@pytest.mark.parametrize(
    ("family", "changes", "blocking"),
    [
        ("gemma2", _SANDWICH | {"block.attention.scale": 0.7}, "block.attention.scale (0.7"),
        ("gemma2", _SANDWICH | _THREE_HEADS, "block.attention.n_heads (3"),
        (
            "phi3",
            _FF | {"block.attention.head_dim": 8, "positions.scaling": _LONG},
            "block.attention.head_dim (8",
        ),
    ],
)
def test_what_transformers_does_not_load_is_refused(family: str, changes, blocking) -> None:
    with pytest.raises(bl.BlocklabError) as caught:
        family_for(built(**changes).config, family)
    assert f"the nearest, {family}, cannot say {blocking}" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"block.attention.qkv_bias": True, "block.attention.out_bias": False}, True), ({}, False)],
    ids=["qwen2", "llama"],
)
def test_a_family_that_reads_texts_its_own_way_is_said_to(tmp_path: Path, changes, said) -> None:
    tokenizer = train_bpe(["a few words, and don't, and 12345"], 300)
    model = built(**changes, vocab_size=tokenizer.vocab_size)
    notes: list[str] = []
    folder = bl.export_huggingface(model, tmp_path / "out", tokenizer, say=notes.append)
    assert [f"PreTrainedTokenizerFast.from_pretrained('{folder}')" in note for note in notes] == [
        True
    ] * said
    # What its authors read with their own tokenizer they go on reading so.
    notes.clear()
    loaded = bl.load(folder)
    bl.export_huggingface(loaded.model, tmp_path / "on", loaded.tokenizer, say=notes.append)
    assert not notes


def test_everything_is_as_readable_as_its_writers_files_are(tmp_path: Path) -> None:
    folder = bl.export_huggingface(built("gpt2"), tmp_path / "out")
    (tmp_path / "plain").write_text("")
    assert {f.stat().st_mode for f in folder.iterdir()} == {(tmp_path / "plain").stat().st_mode}


def test_a_tied_head_is_left_out_and_an_untied_one_is_not(tmp_path: Path) -> None:
    for tied in (True, False):
        folder = tmp_path / str(tied)
        bl.export_huggingface(built("gpt2", tie_embeddings=tied), folder)
        with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
            assert ("lm_head.weight" in file.keys()) is not tied  # noqa: SIM118
            assert file.metadata() == {"format": "pt"}
        model = bl.load(folder).model
        assert (model.head.weight is model.embedding.weight) is tied


@pytest.mark.parametrize("size", [9000, "9KB"])
def test_a_large_model_is_cut_into_shards_that_make_the_whole(tmp_path: Path, size) -> None:
    model = built("gpt2")
    bl.export_huggingface(model, tmp_path / "out", max_shard_size=size)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert index["metadata"]["total_size"] == 4 * bl.count(model.config).total
    for file in files:
        with safetensors.safe_open(tmp_path / "out" / file, "pt") as shard:
            held = {n: shard.get_tensor(n).nbytes for n in shard.keys()}  # noqa: SIM118
        assert sum(held.values()) <= 9000 or len(held) == 1
    assert torch.equal(bl.load(tmp_path / "out").model(TOKENS), model(TOKENS))


@pytest.mark.parametrize("size", [0, -1, True, "0GB", "five", "5 parsecs", 1.5])
def test_a_shard_size_that_is_none_is_refused(tmp_path: Path, size) -> None:
    with pytest.raises(bl.BlocklabError, match="max_shard_size"):
        bl.export_huggingface(built("gpt2"), tmp_path / "out", max_shard_size=size)


def _without_a_layer(model: bl.Transformer) -> None:
    del model.blocks[1]


def _with_a_bias(model: bl.Transformer) -> None:
    model.blocks[0].attention.output = torch.nn.Linear(32, 32)


def _reparametrized(model: bl.Transformer) -> None:
    torch.nn.utils.parametrizations.weight_norm(model.blocks[0].attention.output)


def _with_more_rows(model: bl.Transformer) -> None:
    model.embedding = torch.nn.Embedding(50, 32)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_without_a_layer, "blocks.1.norm.attention.weight: the model has none"),
        (_with_a_bias, "blocks.0.attention.output.bias: the model has (32,)"),
        (_reparametrized, "blocks.0.attention.output.weight: the model has none"),
        (_with_more_rows, "embedding.weight: the model has (50, 32), its config says (40, 32)"),
    ],
)
def test_a_model_that_is_no_longer_its_configs_is_not_written(tmp_path, change, named) -> None:
    model = built(**_FF)
    change(model)
    with pytest.raises(bl.BlocklabError) as caught:
        bl.export_huggingface(model, tmp_path / "out")
    assert named in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_never_written_into(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(bl.BlocklabError, match="there already"):
        bl.export_huggingface(built("gpt2"), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(RunFailed, match="No space left"):
        bl.export_huggingface(built("gpt2"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_keep_their_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    model = built("gpt2").to(dtype)
    bl.export_huggingface(model, tmp_path / "out")
    again = bl.load(tmp_path / "out").model
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_tokenizer_and_where_a_text_ends_go_along(tmp_path: Path) -> None:
    tokenizer = train_bpe(["the model reads the text again"] * 50, 300)
    model = built("gpt2", vocab_size=tokenizer.vocab_size)
    bl.export_huggingface(model, tmp_path / "out", tokenizer=tokenizer)
    loaded = bl.load(tmp_path / "out")
    assert loaded.tokenizer.definition == tokenizer.definition
    assert loaded.tokenizer.end_of_text == tokenizer.end_of_text == 0
    assert loaded.stop_ids == (0,)
    assert loaded.notes == ()


def test_transformers_reads_the_tokenizer_and_generates_what_we_do(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = train_bpe(["the model reads the text again"] * 50, 300)
    model = built("gpt2", vocab_size=tokenizer.vocab_size)
    bl.export_huggingface(model, tmp_path / "out", tokenizer=tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "the text reads again\n  the model"
    assert theirs(text)["input_ids"] == tokenizer.encode(text)
    assert theirs.eos_token == "<|endoftext|>"
    reader = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    prompt = torch.tensor([tokenizer.encode("the")])
    written = reader.generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=None)
    assert torch.equal(written, bl.generate(model, prompt, max_new_tokens=8))
