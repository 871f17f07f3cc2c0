"""Options that several commands share, and how PATH=VALUE is read."""

from pathlib import Path
from typing import Annotated, Any

import typer

from blocklab.errors import BlocklabError

WORD = "<str>"
"""How help shows a value that is any word; typer would show the name of what reads it."""


def word(value: str) -> str:
    """A name or a path as it was typed. An empty one would mean the folder one happens to be in."""
    if not value.strip():
        raise typer.BadParameter("it is empty; is a shell variable not set?")
    return value


def path_to_read(value: str) -> Path:
    """The path of something that is read."""
    return Path(word(value))


def folder_to_write(value: str) -> Path:
    """The path of a folder that is written to: refused before anything is computed for it."""
    from blocklab.files import require_room_for_folder

    place = path_to_read(value)
    try:
        require_room_for_folder(place)
    except BlocklabError as error:
        raise typer.BadParameter(f"{error}.") from None
    return place


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        parser=word,
        help="A preset, a YAML file, a run, a Hugging Face folder, a .gguf file or hf:org/name.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar=WORD,
        parser=word,
        help="float32, bf16, float16 or float64; default: as the weights are stored.",
    ),
]
Device = Annotated[
    str, typer.Option(metavar=WORD, parser=word, help="Where it computes: cpu, cuda or mps.")
]
TokenizerOption = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        metavar=WORD,
        parser=word,
        help="bytes, gpt2 or a tokenizer.json; default: the model's own.",
    ),
]
LearntTokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        metavar=WORD,
        parser=word,
        help="bytes, bpe:N, gpt2 or a tokenizer.json; default: the model's own, or what fits it.",
    ),
]
StudyName = Annotated[
    str | None,
    typer.Argument(metavar="STUDY", parser=word, help="A shipped question or a YAML file."),
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar=WORD, parser=word, help="quick, standard or thorough (what the study defines)."
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        metavar="N|two-look",
        parser=word,
        help="How many seeds; two-look: 5, and 5 more if need be.",
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes, one thread each; default: the cores.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a value by its dotted path."),
]
Variant = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        metavar="NAME:PATH=VALUE",
        help="Add a variant; repeated with one name it accumulates.",
    ),
]
Plugin = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        parser=path_to_read,
        help="Import parts of your own from a Python file.",
    ),
]
CorpusOption = Annotated[
    str | None,
    typer.Option("--corpus", metavar="NAME|FILE|FOLDER|URL", parser=word, help="The text."),
]
Encoding = Annotated[
    str | None,
    typer.Option(metavar=WORD, parser=word, help="Of the corpus's files; default: utf-8."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", parser=folder_to_write, help="Where results go."),
]


def settings(given: list[str] | None, option: str = "--set") -> dict[str, Any]:
    """`PATH=VALUE` items as paths and values; a value is read as YAML.

    Raises BlocklabError for an item that is none, and for a path that is given two values.
    """
    found: dict[str, Any] = {}
    for item in given or ():
        _add(found, *_path_and_value(item, option), option)
    return found


def variants(given: list[str] | None) -> dict[str, dict[str, Any]]:
    """`NAME:PATH=VALUE` items gathered by name."""
    gathered: dict[str, dict[str, Any]] = {}
    for item in given or ():
        name, colon, change = item.partition(":")
        if not colon or not name:
            raise BlocklabError(f"--variant {item}: expected NAME:PATH=VALUE")
        option = f"--variant {name}:"
        _add(gathered.setdefault(name, {}), *_path_and_value(change, option), option)
    return gathered


def _add(known: dict[str, Any], path: str, value: Any, option: str) -> None:
    if path in known and known[path] != value:
        raise BlocklabError(
            f"{option} {path}: given twice, as {known[path]!r} and as {value!r}; give one"
        )
    known[path] = value


def _path_and_value(item: str, option: str) -> tuple[str, Any]:
    from blocklab.yaml_file import parse_yaml

    path, equals, text = item.partition("=")
    if not equals or not path:
        raise BlocklabError(f"{option} {item}: expected PATH=VALUE, as in block.norm.kind=layer")
    try:
        return path, parse_yaml(text)
    except BlocklabError as error:
        raise BlocklabError(f"{option} {item}: {error}") from None
