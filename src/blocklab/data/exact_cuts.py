"""Where a text may be cut so that the ids of its pieces are those of the whole.

Read off a tokenizer's own definition, the content of a `tokenizer.json`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 splits a text into words; its numbers are of up to three digits."""

QWEN_2 = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
"""The same with every digit by itself."""


def exact_cut(definition: Mapping[str, Any]) -> re.Pattern[str] | None:
    """What precedes the last exact cut of a text; None where no cut is known to be exact."""
    whitespace = _exact_before(definition)
    return re.compile(rf"(?s:.*)\S(?=[{whitespace}])") if whitespace else None


def _exact_before(definition: Mapping[str, Any]) -> str:
    """The whitespace before which a cut after a visible character changes no id: some of " \\n".

    There `safe_cut`'s reason must hold of all that looks beyond a word. Normalisation: NFC composes
    nothing with whitespace. Added tokens: none reaches from visible characters into whitespace.
    Words: one ends before the whitespace, and no space is put before a piece that begins with one.
    """
    if any(step["type"] != "NFC" for step in _steps(definition["normalizer"])):
        return ""
    for token in definition["added_tokens"]:
        beyond = token["rstrip"] or token["single_word"]
        if beyond or re.search(r"\S\s", token["content"]):
            return ""
    words = [step for step in _steps(definition["pre_tokenizer"]) if step["type"] != "Digits"]
    match words:
        case [{"type": "ByteLevel", "use_regex": True, "add_prefix_space": prefixed}]:
            return " " if prefixed else " \n"
        case [
            {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "use_regex": False},
        ] if p in (LLAMA_3, QWEN_2):
            return " "  # a run of punctuation takes the line ends after it
        case [{"type": "Metaspace", "split": True}]:
            return " "
    return ""


def _steps(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """A normalizer or pre-tokenizer as its steps, none where there is none."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for inner in part.get("normalizers") or part.get("pretokenizers") or ():
        yield from _steps(inner)
