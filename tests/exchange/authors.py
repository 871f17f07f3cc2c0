"""Checkpoints whose authors said much about texts, in each of the ways that there have been."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import blocklab as bl
from blocklab.data.tokenizer import Tokenizer, train_bpe

SIZES = {"d_model": 32, "n_layers": 2, "n_heads": 2, "context_length": 64}
D_FF = {"block.feed_forward.d_ff": 40}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "llama": ("modern", D_FF),
    "mistral": ("mistral", D_FF),
    "mixtral": ("modern", {"block.feed_forward": {"kind": "experts", "n_experts": 4, "d_ff": 8}}),
    "gpt_neox": ("gpt2", {"positions.kind": "rotary", "block.parallel": "two_norms"}),
    "opt": ("gpt2", {"block.placement": "post"}),
}
TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}:\r\n {{ m['content'] }}<|eot|>{% endfor %}"
    "{{ eos_token }}"
)
CHAT = [{"role": "user", "content": "the text"}, {"role": "assistant", "content": "again"}]
TEXT = "<s>the text reads<|eot|> again\n  the model<|pad|>"
GENERATION = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1}


def with_tokens(marks_beginnings: bool = False) -> Tokenizer:
    """Ids: 0 <|endoftext|>, 1 <s>, 2 <|eot|>, 3 <|pad|>, 4 <|im|>, then a byte-level BPE."""
    trained = json.loads(train_bpe(["the model reads the text again"] * 50, 300).definition)
    tokens = ["<|endoftext|>", "<s>", "<|eot|>", "<|pad|>", "<|im|>"]
    rest = [token for token in trained["model"]["vocab"] if token != tokens[0]]
    trained["model"]["vocab"] = {token: i for i, token in enumerate([*tokens, *rest])}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    trained["added_tokens"] = [
        {"id": i, "content": token, "special": True, **plain} for i, token in enumerate(tokens)
    ]
    if marks_beginnings:
        mark, text = {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"id": "A", "type_id": 0}
        trained["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [mark, {"Sequence": text}],
            "pair": [mark, {"Sequence": text}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        }
    return Tokenizer(json.dumps(trained), "with tokens", end_of_text=0)


def write(
    folder: Path,
    files: dict[str, Any],
    family: str = "llama",
    config: dict[str, Any] | None = None,
    marks_beginnings: bool = False,
) -> Path:
    """A checkpoint of `family`; `files` are the authors', by name, and `config` into config.json.

    A file that is no text is written as JSON.
    """
    preset, changes = FAMILIES[family]
    tokenizer = with_tokens(marks_beginnings)
    sizes = SIZES | {"vocab_size": tokenizer.vocab_size}
    model = bl.Transformer(bl.presets.preset(preset)(**sizes).with_changes(changes), seed=0)
    with torch.no_grad():
        # Far from uniform, so that what it writes is no accident of rounding.
        model.head.weight.mul_(8)
    bl.export_huggingface(model, folder)
    described = json.loads((folder / "config.json").read_text())
    assert described["model_type"] == family
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        del described[name]
    (folder / "config.json").write_text(json.dumps(described | (config or {})))
    (folder / "generation_config.json").unlink()
    tokenizer.save(folder / "tokenizer.json")
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_bytes(text.encode())
    return folder


_NAMED = {"bos_token": "<s>", "eos_token": "<|endoftext|>", "pad_token": "<|pad|>"}


def _added(token: str) -> dict[str, Any]:
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"__type": "AddedToken", "content": token, **plain}


def today(folder: Path, family: str = "llama") -> Path:
    """As transformers 5 writes: templates and settings of generation in files of their own."""
    files = {
        "tokenizer_config.json": {
            **_NAMED,
            "extra_special_tokens": ["<|eot|>", "<|im|>"],
            "model_max_length": 10**30,
            "padding_side": "left",
            "tokenizer_class": "TokenizersBackend",
            "backend": "tokenizers",
        },
        "chat_template.jinja": TEMPLATE,
        "generation_config.json": {
            **GENERATION,
            "bos_token_id": 1,
            "eos_token_id": [0, 2],
            "pad_token_id": 3,
        },
    }
    return write(folder, files, family, {"bos_token_id": 1, "eos_token_id": 0})


def before(folder: Path, family: str = "llama") -> Path:
    """As transformers 4 wrote: tokens with their properties, all of it in tokenizer_config.json."""
    tokens = ["<|endoftext|>", "<s>", "<|eot|>", "<|pad|>", "<|im|>"]
    named = {name: _added(token) for name, token in _NAMED.items()}
    strings = {"additional_special_tokens": ["<|eot|>"]}
    decoder = {
        str(i): {k: v for k, v in _added(token).items() if k != "__type"} | {"special": True}
        for i, token in enumerate(tokens)
    }
    files = {
        "tokenizer_config.json": {
            **named,
            **strings,
            "added_tokens_decoder": decoder,
            "chat_template": TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 48,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        "special_tokens_map.json": {**_NAMED, **strings},
        "generation_config.json": {**GENERATION, "bos_token_id": 1, "eos_token_id": [2, 0]},
    }
    ids = {"bos_token_id": 1, "eos_token_id": [2, 0], "pad_token_id": 3}
    return write(folder, files, family, ids, marks_beginnings=True)


def long_ago(folder: Path, family: str = "llama") -> Path:
    """Tokens in a map alone, and how the model writes in config.json."""
    files = {
        "tokenizer_config.json": {"model_max_length": 64, "name_or_path": "/home/me/model"},
        "special_tokens_map.json": {**_NAMED, "additional_special_tokens": ["<|eot|>"]},
    }
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
    return write(folder, files, family, GENERATION | ids)


def with_templates(folder: Path, family: str = "llama") -> Path:
    """Several chat templates, and a padding that only tokenizer.json states."""
    named = {name: token for name, token in _NAMED.items() if name != "pad_token"}
    files = {
        "tokenizer_config.json": {
            **named,
            "chat_template": "{{ 'a file comes before this' }}",
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        "chat_template.jinja": TEMPLATE,
        "additional_chat_templates/tool_use.jinja": TEMPLATE.replace("role", "tool"),
        "generation_config.json": {"eos_token_id": 2},
    }
    write(folder, files, family, {"eos_token_id": 2})
    definition = json.loads((folder / "tokenizer.json").read_text())
    definition["padding"] = {
        "strategy": "BatchLongest",
        "direction": "Left",
        "pad_to_multiple_of": None,
        "pad_id": 3,
        "pad_type_id": 0,
        "pad_token": "<|pad|>",
    }
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    return folder


def silent(folder: Path, family: str = "llama") -> Path:
    """Not a word but two ids."""
    return write(folder, {}, family, {"bos_token_id": 1, "eos_token_id": 2})


WAYS: dict[str, Callable[..., Path]] = {
    "today": today,
    "before": before,
    "long ago": long_ago,
    "with templates": with_templates,
}
