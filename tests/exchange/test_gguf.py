"""GGUF files written by the gguf package, against the checkpoints they were made from."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import blocklab as bl
from tests.exchange.folders import LLAMA, llama_tensors, write_llama
from tests.exchange.gguf_files import NAMES, write
from tests.exchange.references import ids, reference
from tests.exchange.test_parity import PARITY

gguf = pytest.importorskip("gguf")

F32, F16, Q8_0, Q4_1 = (
    getattr(gguf.GGMLQuantizationType, n) for n in ("F32", "F16", "Q8_0", "Q4_1")
)


@pytest.mark.parametrize("tied", [False, True])
def test_a_file_is_the_checkpoint_it_was_made_from(tmp_path: Path, tied: bool) -> None:
    tensors = llama_tensors(tied)
    folder = write_llama(tmp_path / "hf", tensors, tie_word_embeddings=tied, rms_norm_eps=2.0**-17)
    path = write(tmp_path / "model.gguf", tensors, LLAMA | {"rms_norm_eps": 2.0**-17})
    expected, found = bl.load(folder).model, bl.load(path).model
    for (name, one), other in zip(
        expected.named_parameters(), found.named_parameters(), strict=True
    ):
        assert name == other[0]
        assert torch.equal(one, other[1]), name
    assert torch.equal(expected(ids(8) % 19), found(ids(8) % 19))
    assert (found.head.weight is found.embedding.weight) is tied


@pytest.mark.parametrize(
    ("case", "architecture"),
    [
        ("llama", "llama"),
        ("llama biases", "llama"),
        ("llama tied", "llama"),
        ("qwen2", "qwen2"),
        ("gemma", "gemma"),
    ],
)
def test_logits_are_those_of_transformers(tmp_path: Path, case: str, architecture: str) -> None:
    pytest.importorskip("transformers")
    model = reference(case).float()
    said = model.config.to_dict()
    said["rope_theta"] = said.get("rope_parameters", said)["rope_theta"]
    tensors = dict(model.named_parameters())  # a tied head once
    path = write(
        tmp_path / "model.gguf", {n: t.detach() for n, t in tensors.items()}, said, architecture
    )
    with torch.no_grad():
        expected, found = model(ids()).logits, bl.load(path).model(ids())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [F16, Q8_0, Q4_1])
def test_quantised_weights_are_what_the_package_makes_of_them(tmp_path: Path, kind) -> None:
    sizes = LLAMA | {"hidden_size": 32, "intermediate_size": 64}
    generator = torch.Generator().manual_seed(0)
    shapes = {"q_proj": (32, 32), "k_proj": (16, 32), "v_proj": (16, 32), "o_proj": (32, 32)}
    tensors = {
        "model.embed_tokens.weight": torch.randn(19, 32, generator=generator),
        "model.norm.weight": torch.ones(32),
    }
    for i in range(2):
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{i}.{name}.weight"] = torch.ones(32)
        for name, shape in shapes.items():
            drawn = torch.randn(shape, generator=generator)
            tensors[f"model.layers.{i}.self_attn.{name}.weight"] = drawn
        for name, shape in (("gate", (64, 32)), ("up", (64, 32)), ("down", (32, 64))):
            drawn = torch.randn(shape, generator=generator)
            tensors[f"model.layers.{i}.mlp.{name}_proj.weight"] = drawn
    model = bl.load(write(tmp_path / "model.gguf", tensors, sizes, kind=kind)).model
    assert model.head.weight.dtype == torch.float32

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        raw = gguf.quants.quantize(tensor.numpy(), kind)
        return torch.from_numpy(gguf.quants.dequantize(raw, kind).astype(np.float32))

    block = model.blocks[1]
    # Blocks lie along rows, so that turning rows round changes no block.
    q = rounded(tensors["model.layers.1.self_attn.q_proj.weight"])
    assert torch.equal(block.attention.qkv.weight[:32], q)
    down = rounded(tensors["model.layers.1.mlp.down_proj.weight"])
    assert torch.equal(block.feed_forward.contract.weight, down)


def test_divided_frequencies_are_those_of_llama_3_1(tmp_path: Path) -> None:
    """The converter writes a divisor for each frequency in place of the rule."""
    tensors = llama_tensors()
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    folder = write_llama(tmp_path / "hf", tensors, rope_scaling=scaling, rope_theta=10.0)
    expected = bl.load(folder).model
    places = torch.arange(2)
    plain = 10.0 ** -(torch.arange(0, 4, 2) / 4)
    cos, sin = expected.positions.tables(places, 4, torch.float32)
    divisors = plain / torch.atan2(sin, cos)[1]
    assert divisors.max() > 1.5
    path = tmp_path / "model.gguf"
    NAMES["rope_freqs"] = "rope_freqs"
    try:
        write(path, tensors | {"rope_freqs.weight": divisors}, LLAMA | {"rope_theta": 10.0})
    finally:
        del NAMES["rope_freqs"]
    found = bl.load(path).model
    torch.testing.assert_close(found(ids(20) % 19), expected(ids(20) % 19), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("said", "scaling"),
    [
        ({"factor": 4.0}, {"kind": "linear", "factor": 4.0}),
        ({"factor": 0.0}, {"kind": "none"}),
        ({"factor": 1.0}, {"kind": "none"}),
        ({"type": "none", "factor": 4.0}, {"kind": "none"}),
        ({"type": "linear", "factor": 4.0}, {"kind": "linear", "factor": 4.0}),
    ],
)
def test_a_factor_stretches_unless_the_file_says_none(tmp_path: Path, said, scaling) -> None:
    """As llama.cpp reads it: linear is what a missing type means."""
    more = {f"llama__rope__scaling__{name}": value for name, value in said.items()}
    path = write(tmp_path / "model.gguf", llama_tensors(), LLAMA, **more)
    assert bl.load(path).model.config.positions.scaling.plain() == scaling


@pytest.mark.parametrize(
    ("more", "architecture", "named"),
    [
        ({}, "bloom", "general.architecture 'bloom'"),
        ({"llama__expert_count": 8}, "llama", "llama.expert_count"),
        ({"llama__attention__clamp_kqv": 3.0}, "llama", "llama.attention.clamp_kqv"),
        ({"llama__rope__scaling__type": "longrope"}, "llama", "llama.rope.scaling.type"),
        ({"llama__rope__dimension_count": 2}, "llama", "llama.rope.dimension_count"),
        ({"split__count": 2}, "llama", "split.count"),
    ],
)
def test_what_is_not_implemented_is_refused_by_its_field(
    tmp_path, more, architecture, named
) -> None:
    path = write(tmp_path / "model.gguf", llama_tensors(), LLAMA, architecture, **more)
    with pytest.raises(bl.BlocklabError) as caught:
        bl.load(path)
    assert named in str(caught.value)


# Tokenizers


def tokenizer_of(tmp_path: Path, **said: object):
    """What a file with this `tokenizer.ggml` section loads with."""
    more = {f"tokenizer__ggml__{key}": value for key, value in said.items()}
    tensors = llama_tensors()
    for table in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[table] = torch.zeros(max(19, len(said["tokens"])), 8)
    return bl.load(write(tmp_path / "model.gguf", tensors, LLAMA, **more))


TEXTS = [
    "Once upon a time",
    "  two  spaces\n\nand 12345 lines",
    "café 🙃 don't",
    "",
    "<|endoftext|>",
]


def test_a_byte_level_tokenizer_is_read_from_the_metadata(tmp_path: Path) -> None:
    expected = bl.load_tokenizer("gpt2")
    model = json.loads(expected.definition)["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    loaded = tokenizer_of(
        tmp_path,
        model="gpt2",
        pre="gpt-2",
        tokens=tokens,
        token_type=[1] * (len(tokens) - 1) + [3],
        merges=[" ".join(merge) for merge in model["merges"]],
        eos_token_id=50256,
        bos_token_id=50256,
        add_bos_token=False,
    )
    for text in TEXTS:
        assert loaded.tokenizer.encode(text) == expected.encode(text)
        assert loaded.tokenizer.decode(expected.encode(text)) == text
    assert loaded.stop_ids == (50256,)
    assert loaded.start_ids == ()
    assert loaded.tokenizer.end_of_text == 50256


@pytest.mark.skipif(not (PARITY / "stories260K").is_dir(), reason="no ../shared/parity here")
def test_a_sentencepiece_tokenizer_is_read_from_the_metadata(tmp_path: Path) -> None:
    """Llama's kind, against ids that were published with a vocabulary and its scores."""
    facts = json.loads((PARITY / "stories260K" / "facts.json").read_text())
    raw = (PARITY / "stories260K" / "tok512.bin").read_bytes()
    tokens, scores, at = [], [], 4
    while at < len(raw):
        score, length = struct.unpack_from("<fi", raw, at)
        tokens.append(raw[at + 8 : at + 8 + length].decode())
        scores.append(score)
        at += 8 + length
    tokens = [*tokens[:259], *(token.replace(" ", "\u2581") for token in tokens[259:])]
    loaded = tokenizer_of(
        tmp_path,
        model="llama",
        tokens=tokens,
        scores=scores,
        token_type=[2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259),
        bos_token_id=1,
        eos_token_id=2,
    )
    assert loaded.start_ids == loaded.tokenizer.start_ids() == (1,)
    for fact in facts["encode_facts"]:
        assert [1, *loaded.tokenizer.encode(fact["text"])] == fact["ids"], fact["text"]
        assert loaded.tokenizer.decode(fact["ids"][1:]) == fact["text"]


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"model": "bert", "tokens": ["a"]}, "tokenizer.ggml.model 'bert'"),
        ({"model": "gpt2", "pre": "tekken", "tokens": ["a"]}, "tokenizer.ggml.pre 'tekken'"),
    ],
)
def test_a_tokenizer_that_is_not_implemented_leaves_the_model_usable(tmp_path, said, named) -> None:
    loaded = tokenizer_of(tmp_path, **said)
    assert loaded.tokenizer is None
    assert named in loaded.notes[0]


@pytest.mark.parametrize(
    "said",
    [
        {"model": "gpt2", "tokens": ["a", "b"], "token_type": [1]},
        {"model": "gpt2", "tokens": ["a", "a"], "merges": ["a a"]},
        {"model": "gpt2", "tokens": ["a", "b"], "merges": ["a b"]},
        {"model": "gpt2", "tokens": ["a", "b"], "merges": [3, 4]},
        {"model": "llama", "tokens": ["a", "b"], "scores": [0.0]},
        {"model": "llama", "tokens": ["a", "b"], "scores": [0.0, 1.0], "unknown_token_id": 9},
    ],
)
def test_a_tokenizer_that_contradicts_itself_is_refused(tmp_path: Path, said) -> None:
    with pytest.raises(bl.BlocklabError, match=r"tokenizer\.ggml"):
        tokenizer_of(tmp_path, **said)


def test_what_a_file_says_about_texts_leaves_in_hugging_faces_layout(tmp_path: Path) -> None:
    tokens = ["a", "b", "ab", "<s>", "</s>", "<eot>", "<pad>"]
    said = {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": [1, 1, 1, 3, 3, 3, 3],
        "merges": ["a b"],
        "bos_token_id": 3,
        "eos_token_id": 4,
        "eot_token_id": 5,
        "padding_token_id": 6,
        "unknown_token_id": 9000,
        "add_bos_token": True,
    }
    more = {f"tokenizer__ggml__{key}": value for key, value in said.items()}
    more |= {"tokenizer__chat_template": "{{ messages }}", "tokenizer__chat_template__tool": "{}"}
    loaded = bl.load(write(tmp_path / "model.gguf", llama_tensors(), LLAMA, **more))
    assert (loaded.start_ids, loaded.stop_ids, loaded.notes) == ((3,), (4, 5), ())
    folder = bl.export_huggingface(loaded.model, tmp_path / "out", tokenizer=loaded.tokenizer)
    ids = {"bos_token_id": 3, "eos_token_id": [4, 5], "pad_token_id": 6}
    assert json.loads((folder / "config.json").read_text()).items() >= ids.items()
    assert json.loads((folder / "generation_config.json").read_text()).items() >= ids.items()
    assert json.loads((folder / "tokenizer_config.json").read_text()) == {
        "model_max_length": 32,
        "clean_up_tokenization_spaces": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": [
            {"name": "default", "template": "{{ messages }}"},
            {"name": "tool", "template": "{}"},
        ],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    again = bl.load(folder)
    assert (again.start_ids, again.stop_ids) == (loaded.start_ids, loaded.stop_ids)


def test_ids_that_are_no_rows_are_left_out_and_said(tmp_path: Path) -> None:
    more = {"tokenizer__ggml__eos_token_id": 4, "tokenizer__ggml__eom_token_id": 400}
    loaded = bl.load(write(tmp_path / "model.gguf", llama_tensors(), LLAMA, **more))
    assert loaded.stop_ids == (4,)
    assert any(note.startswith("eos_token_id 400 is none") for note in loaded.notes)
