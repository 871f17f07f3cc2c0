"""YAML as people write it: a file or a value, in which no key may be said twice.

Not for what the values mean: that is the record's that is made of them.
"""

from pathlib import Path
from typing import Any

import yaml

from blocklab.errors import BlocklabError


def read_yaml(path: str | Path) -> object:
    """What a YAML file says, as plain values.

    Raises BlocklabError naming the file when it cannot be read, is no YAML, or gives a key twice.
    """
    try:
        return parse_yaml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BlocklabError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BlocklabError(f"{path}: cannot be read as YAML: {error}") from None
    except BlocklabError as error:
        raise BlocklabError(f"{path}: {error}") from None


def parse_yaml(text: str) -> object:
    """What YAML text says, as plain values.

    Raises BlocklabError when it is no YAML, or naming the key and the lines when a key is given
    twice in one mapping: YAML itself would keep the last and drop the others without a word.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise BlocklabError(f"cannot be read as YAML: {error}") from None


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which sees a key given twice.

    It looks when a mapping is composed: later, `<<` has been merged in, and what stands beside it
    may say a key again.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        mapping = super().compose_mapping_node(anchor)
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
