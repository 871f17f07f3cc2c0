"""The tokenizer in a .gguf file's metadata, as a `tokenizer.json`.

Two kinds exist in the models that are read here: byte-level BPE, whose way of cutting text into
words the file only names, and SentencePiece's BPE, whose merges follow from its scores.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from blocklab.data.exact_cuts import LLAMA_3, QWEN_2
from blocklab.data.tokenizer import Tokenizer
from blocklab.errors import BlocklabError
from blocklab.exchange.conventions import Said, TextConventions, conventions_by_ids

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_GPT2 = _BYTES | {"use_regex": True}


def _split(pattern: str) -> list[dict[str, Any]]:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return [cut, _BYTES]


_DIGITS = {"type": "Digits", "individual_digits": True}
_WORDS: Mapping[str, list[dict[str, Any]]] = {
    "default": [_GPT2],
    "gpt-2": [_GPT2],
    "smollm": [_DIGITS, _GPT2],
    "llama-bpe": _split(LLAMA_3),
    "llama3": _split(LLAMA_3),
    "qwen2": _split(QWEN_2),
}
"""How each `tokenizer.ggml.pre` cuts text into words."""

_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6
_SPACE = "\u2581"
_TEMPLATE = "tokenizer.chat_template"

Found = tuple[Tokenizer | None, tuple[int, ...], TextConventions, tuple[str, ...]]


def gguf_tokenizer(metadata: Mapping[str, object], path: Path) -> Found:
    """The tokenizer, the ids before a text, what the file says about texts, and notes.

    A kind that is not implemented gives no tokenizer and a note, for the model can be used without.
    Raises BlocklabError where the metadata contradicts itself.
    """
    said: dict[str, Any] = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in metadata.items()
        if key.startswith("tokenizer.ggml.")
    }
    ends = [_id(said, name) for name in ("eos", "eot", "eom")]
    stops = tuple(dict.fromkeys(i for i in ends if i is not None))
    begin = _id(said, "bos")
    kind = said.get("model")
    adds = said.get("add_bos_token", kind == "llama")
    starts = (begin,) if begin is not None and adds else ()
    texts = conventions_by_ids(begin, stops, _id(said, "padding"), _named(said, stops, metadata))
    if kind is None:
        return None, starts, texts, ("there is no tokenizer in the file: give token ids",)
    try:
        definition = _definition(said, kind)
        if starts:
            definition["post_processor"] = _beginning_with(said["tokens"][starts[0]], starts[0])
    except _Unknown as unknown:
        note = f"tokenizer.ggml.{unknown}: not implemented; give token ids, or another tokenizer"
        return None, starts, texts, (note,)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BlocklabError(f"{path}: tokenizer.ggml: {str(error)[:120]}") from None
    try:
        tokenizer = Tokenizer(json.dumps(definition), str(path), end_of_text=None)
    except Exception as error:  # the library raises bare Exception on a bad definition
        raise BlocklabError(f"{path}: tokenizer.ggml makes no tokenizer ({error})") from None
    tokenizer.end_of_text = stops[0] if stops else None
    return tokenizer, starts, texts, ()


def _id(said: Mapping[str, Any], name: str) -> int | None:
    found = said.get(f"{name}_token_id")
    return found if type(found) is int else None


def _named(said: Mapping[str, Any], stops: Sequence[int], metadata: Mapping[str, object]) -> Said:
    """Special tokens by their names and the chat templates, as tokenizer_config.json has them."""
    ids = {
        "bos_token": _id(said, "bos"),
        "eos_token": stops[0] if stops else None,
        "pad_token": _id(said, "padding"),
        "unk_token": _id(said, "unknown"),
    }
    tokens = said.get("tokens")
    known = tokens if isinstance(tokens, list) else []
    named: Said = {
        name: known[i]
        for name, i in ids.items()
        if i is not None and 0 <= i < len(known) and isinstance(known[i], str)
    }
    templates: dict[str, JsonValue] = {
        key.removeprefix(_TEMPLATE).removeprefix(".") or "default": value
        for key, value in metadata.items()
        if (key == _TEMPLATE or key.startswith(f"{_TEMPLATE}.")) and isinstance(value, str)
    }
    if templates.keys() == {"default"}:
        named |= {"chat_template": templates["default"]}
    elif templates:
        several: list[JsonValue] = [{"name": n, "template": text} for n, text in templates.items()]
        named |= {"chat_template": several}
    return named


class _Unknown(Exception):
    """A kind of tokenizer that is not implemented, by its field and value."""


def _definition(said: Mapping[str, Any], kind: object) -> dict[str, Any]:
    tokens: list[str] = said.get("tokens") or []
    types: list[int] = said.get("token_type") or [1] * len(tokens)
    if not tokens or len(types) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens and {len(types)} types of tokens")
    if len(set(tokens)) != len(tokens):
        raise ValueError("a token stands there twice")
    if kind == "gpt2":
        parts = _byte_level(said, tokens)
    elif kind == "llama":
        parts = _sentencepiece(said, tokens, types)
    else:
        raise _Unknown(f"model '{kind}'")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(i, token, special=kind == _CONTROL)
            for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (_CONTROL, _USER_DEFINED)
        ],
        "post_processor": None,
        **parts,
    }


def _beginning_with(token: str, i: int) -> dict[str, Any]:
    """What puts a token before every text, for readers that ask for special tokens."""
    mark, text = {"SpecialToken": {"id": token, "type_id": 0}}, {"id": "A", "type_id": 0}
    return {
        "type": "TemplateProcessing",
        "single": [mark, {"Sequence": text}],
        "pair": [mark, {"Sequence": text}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [i], "tokens": [token]}},
    }


def _added(i: int, token: str, special: bool) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": i, "content": token, "special": special, **plain}


def _byte_level(said: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    words = said.get("pre", "default")
    if words not in _WORDS:
        raise _Unknown(f"pre '{words}'")
    merges = [merge.split(" ") for merge in said["merges"]]
    return {
        "normalizer": {"type": "NFC"} if words == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _WORDS[words]},
        "decoder": _GPT2,
        "model": _bpe(tokens, merges, ignore_merges=words in ("llama-bpe", "llama3")),
    }


def _sentencepiece(
    said: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> dict[str, Any]:
    scores: list[float] = said["scores"]
    if len(scores) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens and {len(scores)} scores")
    if any(len(token) > 256 for token in tokens):
        raise ValueError("a token has more than 256 characters")
    spaced = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prefixed = said.get("add_space_prefix", True)
    before = [{"type": "Prepend", "prepend": _SPACE}] if prefixed else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []
    unspaced = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    decoders = [unspaced, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]
    ordinary = [i for i, kind in enumerate(types) if kind not in (_CONTROL, _BYTE)]
    merges = _merges({tokens[i]: scores[i] for i in ordinary})
    unknown = said.get("unknown_token_id", 0)
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, spaced]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(tokens, merges, byte_fallback=True, unk_token=tokens[unknown], fuse_unk=True),
    }


def _merges(scores: Mapping[str, float]) -> list[list[str]]:
    """Every pair of tokens that makes a token, the best scored whole first.

    SentencePiece joins the neighbours whose whole scores best; a list of merges in that order does
    the same. Pairs of one whole keep the order of their cut.
    """
    pairs = [
        (score, whole, cut)
        for whole, score in scores.items()
        for cut in range(1, len(whole))
        if whole[:cut] in scores and whole[cut:] in scores
    ]
    pairs.sort(key=lambda pair: -pair[0])
    return [[whole[:cut], whole[cut:]] for _, whole, cut in pairs]


def _bpe(
    tokens: Sequence[str], merges: Sequence[Sequence[str]], **options: object
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": merges,
        **options,
    }
