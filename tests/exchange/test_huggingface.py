"""A folder is understood as a whole or refused by naming what is wrong with it."""

import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch

import blocklab as bl
from blocklab.data.tokenizer import train_bpe
from blocklab.exchange.fields import NEUTRAL
from tests.exchange.folders import LLAMA, llama_tensors, write_config, write_llama, write_sharded

TOKENS = torch.arange(12)[None]


def refusal(folder: Path) -> str:
    with pytest.raises(bl.BlocklabError) as caught:
        bl.load(folder)
    return str(caught.value)


def test_a_loaded_model_is_ready_to_be_used(tmp_path: Path) -> None:
    loaded = bl.load(write_llama(tmp_path))
    assert not loaded.model.training
    assert loaded.model(TOKENS).shape == (1, 12, 19)
    assert loaded.tokenizer is None
    assert "tokenizer.json" in loaded.notes[0]


def test_every_weight_lies_where_the_family_says(tmp_path: Path) -> None:
    model = bl.load(write_llama(tmp_path)).model
    stored = llama_tensors()
    block = model.blocks[1]
    q, k, v = (stored[f"model.layers.1.self_attn.{n}_proj.weight"] for n in "qkv")
    assert torch.equal(block.attention.qkv.weight, torch.cat((q, k, v)))
    gate, up = (stored[f"model.layers.1.mlp.{n}_proj.weight"] for n in ("gate", "up"))
    assert torch.equal(block.feed_forward.expand.weight, torch.cat((gate, up)))
    assert torch.equal(model.head.weight, stored["lm_head.weight"])


def test_loading_leaves_torchs_random_numbers_alone(tmp_path: Path) -> None:
    write_llama(tmp_path)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    bl.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_keep_their_dtype_unless_another_is_asked_for(tmp_path: Path, stored) -> None:
    tensors = {name: tensor.to(stored) for name, tensor in llama_tensors().items()}
    write_llama(tmp_path, tensors)
    assert {p.dtype for p in bl.load(tmp_path).model.parameters()} == {stored}
    wide = bl.load(tmp_path, dtype="float32").model
    assert {p.dtype for p in wide.parameters()} == {torch.float32}
    assert torch.equal(wide.head.weight, tensors["lm_head.weight"].float())


def test_another_dtype_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(bl.BlocklabError, match="float8"):
        bl.load(write_llama(tmp_path), dtype="float8")


# Tensors


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = llama_tensors()
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    assert "lacks 'model.layers.1.self_attn.k_proj.weight'" in refusal(
        write_llama(tmp_path, tensors)
    )


def test_an_untied_head_that_is_not_there_is_missing(tmp_path: Path) -> None:
    assert "lm_head.weight" in refusal(write_llama(tmp_path, llama_tensors(tied=True)))


def test_an_unexpected_tensor_is_named(tmp_path: Path) -> None:
    tensors = llama_tensors() | {"model.layers.0.self_attn.q_norm.weight": torch.ones(4)}
    assert "'model.layers.0.self_attn.q_norm.weight'" in refusal(write_llama(tmp_path, tensors))


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    tensors = llama_tensors() | {"model.norm.weight": torch.ones(9)}
    message = refusal(write_llama(tmp_path, tensors))
    assert "'model.norm.weight' has shape (9,), expected (8,)" in message


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    tensors = llama_tensors() | {"model.norm.weight": torch.ones(8, dtype=torch.int8)}
    assert "int8" in refusal(write_llama(tmp_path, tensors))


def test_buffers_of_old_files_are_passed_over(tmp_path: Path) -> None:
    tensors = llama_tensors() | {
        f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(2) for i in range(2)
    }
    assert torch.equal(
        bl.load(write_llama(tmp_path / "old", tensors)).model(TOKENS),
        bl.load(write_llama(tmp_path / "new")).model(TOKENS),
    )


def test_names_without_a_prefix_are_understood(tmp_path: Path) -> None:
    """As files are that were saved from a model without a head."""
    tensors = {n.removeprefix("model."): t for n, t in llama_tensors(tied=True).items()}
    bare = write_llama(tmp_path / "bare", tensors, tie_word_embeddings=True)
    whole = write_llama(tmp_path / "whole", llama_tensors(tied=True), tie_word_embeddings=True)
    assert torch.equal(bl.load(bare).model(TOKENS), bl.load(whole).model(TOKENS))


# Tied heads


@pytest.mark.parametrize("stored", [False, True])
def test_a_tied_head_is_one_tensor_stored_twice_or_once(tmp_path: Path, stored: bool) -> None:
    tensors = llama_tensors(tied=True)
    if stored:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    model = bl.load(write_llama(tmp_path, tensors, tie_word_embeddings=True)).model
    assert model.head.weight is model.embedding.weight


def test_a_tied_head_that_differs_from_its_table_is_refused(tmp_path: Path) -> None:
    message = refusal(write_llama(tmp_path, tie_word_embeddings=True))
    assert "tie_word_embeddings" in message
    assert "lm_head.weight" in message


# Fields


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "llama4"}, "model_type 'llama4'"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"attention_multiplier": 0.5}, "attention_multiplier"),
        ({"clip_qkv": 8.0}, "clip_qkv"),
        ({"hidden_act": "quick_gelu"}, "hidden_act 'quick_gelu'"),
        ({"rope_scaling": {"rope_type": "mrope"}}, "rope_scaling.rope_type 'mrope'"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "shift": 1}}, "rope_scaling.shift"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling.factor is '2'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_theta": 1.5}}, "rope_theta"),
        ({"num_attention_heads": 3}, "heads"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": -8}, "hidden_size"),
        ({"vocab_size": True}, "vocab_size"),
        ({"rms_norm_eps": 0}, "eps"),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
    ],
)
def test_a_field_that_is_not_implemented_is_refused_by_name(tmp_path, changes, named) -> None:
    message = refusal(write_llama(tmp_path, **changes))
    assert named in message
    assert "config.json" in message


@pytest.mark.parametrize("name", sorted(NEUTRAL - LLAMA.keys()))
def test_fields_that_change_no_logit_may_say_anything(tmp_path: Path, name: str) -> None:
    value = {"initializer_range": 0.5, "eos_token_id": [1, 2]}.get(name, 3)
    expected = bl.load(write_llama(tmp_path / "a")).model(TOKENS)
    assert torch.equal(
        bl.load(write_llama(tmp_path / "b", **{name: value})).model(TOKENS), expected
    )


@pytest.mark.parametrize(
    ("name", "harmless", "other"),
    [("rope_interleaved", False, True), ("is_llama_config", True, False)],
)
def test_a_field_of_some_releases_is_accepted_where_it_changes_nothing(
    tmp_path: Path, name: str, harmless: bool, other: bool
) -> None:
    bl.load(write_llama(tmp_path / "a", **{name: harmless}))
    assert name in refusal(write_llama(tmp_path / "b", **{name: other}))


def test_code_that_comes_along_is_not_run_and_that_is_said(tmp_path: Path) -> None:
    write_llama(tmp_path, auto_map={"AutoModelForCausalLM": "evil.Model"})
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    assert any("auto_map" in note for note in bl.load(tmp_path).notes)


def test_a_rate_that_acts_in_training_only_is_noted(tmp_path: Path) -> None:
    loaded = bl.load(write_llama(tmp_path, attention_dropout=0.1))
    assert any("attention_dropout" in note for note in loaded.notes)
    assert loaded.model.config.dropout == 0.0


def test_a_stretch_that_versions_of_transformers_disagree_about_is_noted(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}
    loaded = bl.load(write_llama(tmp_path, rope_scaling=scaling))
    assert any("rope_scaling.factor 8" in note for note in loaded.notes)


# Files


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    one = bl.load(write_llama(tmp_path / "one")).model
    two = bl.load(write_sharded(tmp_path / "two")).model
    assert torch.equal(one(TOKENS), two(TOKENS))


@pytest.mark.parametrize(
    "file", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", 3]
)
def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path, file) -> None:
    message = refusal(write_sharded(tmp_path, {"model.norm.weight": file}))
    assert "index.json" in message
    assert str(file) in message


def test_an_index_that_misplaces_a_tensor_is_refused(tmp_path: Path) -> None:
    held = "model-00001-of-00002.safetensors"
    message = refusal(write_sharded(tmp_path, {"lm_head.weight": held}))
    assert "'lm_head.weight' is in model-00001-of-00002" in message


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in refusal(tmp_path)


def test_a_folder_without_anything_says_what_was_expected(tmp_path: Path) -> None:
    assert "config.json" in refusal(tmp_path)
    write_config(tmp_path)
    assert "model.safetensors" in refusal(tmp_path)
    assert "does not exist" in refusal(tmp_path / "nowhere")


def test_torchs_own_files_load_as_well(tmp_path: Path) -> None:
    expected = bl.load(write_llama(tmp_path / "new")).model(TOKENS)
    write_config(tmp_path / "old")
    torch.save(llama_tensors(), tmp_path / "old" / "pytorch_model.bin")
    assert torch.equal(bl.load(tmp_path / "old").model(TOKENS), expected)


class _Evil:
    def __reduce__(self):
        return os.mkdir, ("ran-by-a-pickle",)


def _with_pickle(path: Path, content: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3\n")


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_is_never_run(tmp_path: Path, protocol: int, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    _with_pickle(tmp_path / "pytorch_model.bin", pickle.dumps({"a": _Evil()}, protocol))
    assert "would call" in refusal(tmp_path)
    assert not (tmp_path / "ran-by-a-pickle").exists()


def test_a_pickle_cannot_ask_for_memory_that_is_not_in_the_file(tmp_path: Path) -> None:
    write_config(tmp_path)
    bomb = b"\x80\x02cbuiltins\nbytearray\nq\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x85R."
    _with_pickle(tmp_path / "pytorch_model.bin", bomb)
    assert "bytearray" in refusal(tmp_path)
    compressed = pickle.dumps({"a": "0" * 10**6}, 2)
    _with_pickle(tmp_path / "pytorch_model.bin", compressed, zipfile.ZIP_DEFLATED)
    assert "compressed" in refusal(tmp_path)


def test_what_is_no_archive_of_torchs_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    assert "before 1.6" in refusal(tmp_path)
    torch.save([1, 2], tmp_path / "pytorch_model.bin")
    assert "list" in refusal(tmp_path)


# What comes along


def test_the_tokenizer_and_where_texts_begin_and_end_come_along(tmp_path: Path) -> None:
    tokenizer = train_bpe(["the model reads the text again"] * 50, 300)
    write_llama(tmp_path, eos_token_id=5)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = bl.load(tmp_path)
    assert loaded.tokenizer.encode("the text") == tokenizer.encode("the text")
    assert loaded.stop_ids == (5,)
    assert loaded.start_ids == ()
    assert any("the last ids cannot be used" in note for note in loaded.notes)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [6, 7]}))
    assert bl.load(tmp_path).stop_ids == (6, 7)


def test_a_tokenizer_that_marks_beginnings_says_so(tmp_path: Path) -> None:
    tokenizer = train_bpe(["the model reads the text again"] * 50, 300)
    definition = json.loads(tokenizer.definition)
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
        },
    }
    write_llama(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    assert bl.load(tmp_path).start_ids == (0,)


def test_the_first_gpt2_files_load(tmp_path: Path) -> None:
    """Their names have no prefix, and the causal mask lies between the weights."""
    model = bl.Transformer(
        bl.presets.gpt2(d_model=16, n_layers=2, n_heads=2, vocab_size=19, context_length=16), seed=0
    ).eval()
    bl.export_huggingface(model, tmp_path / "new")
    tensors = safetensors.torch.load_file(tmp_path / "new" / "model.safetensors")
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    for i in range(2):
        tensors[f"h.{i}.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
        tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    (tmp_path / "old").mkdir()
    safetensors.torch.save_file(tensors, tmp_path / "old" / "model.safetensors")
    (tmp_path / "old" / "config.json").write_text((tmp_path / "new" / "config.json").read_text())
    assert torch.equal(bl.load(tmp_path / "old").model(TOKENS), model(TOKENS))
