"""YAML as people write it: a file or a value, in which no key may be said twice.

Plain words and numbers are read as in YAML 1.2: what 1.1 makes of `1:4` (base 60), `010` (octal),
`off` (false) or `2026-01-01` (a date) is never what is meant here. Not for what the values mean:
that is the record's that is made of them.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from blocklab.errors import BlocklabError
from blocklab.expected import require_place


def read_yaml(path: str | Path) -> object:
    """What a YAML file says, as plain values.

    Raises BlocklabError naming the file when it cannot be read, is no YAML, or gives a key twice.
    """
    require_place(path, "from_yaml")
    try:
        return parse_yaml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BlocklabError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BlocklabError(f"{path}: cannot be read as YAML: {error}") from None
    except BlocklabError as error:
        raise BlocklabError(f"{path}: {error}") from None


def parse_yaml(text: str) -> object:
    """What YAML text says, as plain values; the keys of a mapping are text, as they are written.

    A word is null, a switch (true, false) or a number (`400_000`, `0x10`, `1e-3`, `.5`, `010` for
    ten) where it is exactly that, and otherwise text: `1:4`, `off`, `2026-01-01`. Raises
    BlocklabError when it is no YAML, or naming the key and the lines when a key is given twice in
    one mapping: YAML itself would keep the last and drop the others without a word.
    """
    try:
        return yaml.load(text, _Loader)
    # ValueError: an integer of thousands of digits.
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, BlocklabError):
            raise
        raise BlocklabError(f"cannot be read as YAML: {_problem(error)}") from None
    except RecursionError:
        raise BlocklabError("cannot be read as YAML: it is nested too deeply") from None


def _problem(error: Exception) -> str:
    """What is wrong and where, on one line; PyYAML takes several and shows the text again."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


def write_yaml(value: object) -> str:
    """YAML text of plain values, which `parse_yaml` reads as the same values again."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


_TAG = "tag:yaml.org,2002:"
_DIGITS = "[0-9]+(?:_[0-9]+)*"
_EXPONENT = "[eE][-+]?[0-9]+"
_DECIMAL = rf"{_DIGITS}\.(?:{_DIGITS})?(?:{_EXPONENT})?|\.{_DIGITS}(?:{_EXPONENT})?"
_WORDS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": rf"[-+]?(?:{_DIGITS}|0x[0-9a-fA-F]+(?:_[0-9a-fA-F]+)*|0b[01]+(?:_[01]+)*)",
    "float": rf"[-+]?(?:{_DECIMAL}|{_DIGITS}{_EXPONENT}|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
    "merge": r"<<",
}
"""What a word must be, without quotes, to be no text."""
# Under None: tried whatever a word begins with.
_RESOLVERS: dict[Any, list[tuple[str, re.Pattern[str]]]] = {
    None: [(f"{_TAG}{name}", re.compile(rf"(?:{words})\Z")) for name, words in _WORDS.items()]
}
_NAMES = {f"{_TAG}{name}" for name in ("null", "bool", "int", "float")}
"""What a key is read as text instead of."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the words of YAML 1.2, which sees a key given twice.

    It looks when a mapping is composed: later, `<<` has been merged in, and what stands beside it
    may say a key again.
    """

    yaml_implicit_resolvers = _RESOLVERS

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        mapping = super().compose_mapping_node(anchor)
        mapping.value = [(_as_text(key), value) for key, value in mapping.value]
        lines: dict[tuple[str, str], int] = {}
        for key, _ in mapping.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line, name = key.start_mark.line + 1, (key.tag, key.value)
            if name in lines:
                raise BlocklabError(
                    f"line {line}: '{key.value}' is given twice, first in line {lines[name]}; "
                    "keep one"
                )
            lines[name] = line
        return mapping

    def integer(self, node: yaml.ScalarNode) -> int:
        """Zeros before it make it no octal number."""
        digits = node.value.replace("_", "")
        return int(digits, 0 if digits.lstrip("-+")[:2] in ("0x", "0b") else 10)

    def word(self, node: yaml.ScalarNode) -> str:
        """`<<` merges as a key alone; as a value it is text like any other."""
        return str(node.value)


_Loader.add_constructor(f"{_TAG}int", _Loader.integer)
_Loader.add_constructor(f"{_TAG}merge", _Loader.word)


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which quotes what the loader would not read as text."""

    yaml_implicit_resolvers = _RESOLVERS


def _as_text(key: yaml.Node) -> yaml.Node:
    """A key as the name that it is: `8`, `1e-3` and `off` may name a variant.

    A copy, for the same node may be a value elsewhere (`&anchor`).
    """
    if isinstance(key, yaml.ScalarNode) and key.tag in _NAMES:
        return yaml.ScalarNode(f"{_TAG}str", key.value, key.start_mark, key.end_mark, key.style)
    return key
