"""Options that several commands share, and how PATH=VALUE is read."""

from pathlib import Path
from typing import Annotated, Any

import typer

from blocklab.errors import BlocklabError

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A preset, a YAML file, a run, a Hugging Face folder, a .gguf file or hf:org/name.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(help="float32, bf16 or float64; default: as the weights are stored."),
]
Device = Annotated[str, typer.Option(help="Where it computes: cpu, cuda or mps.")]
TokenizerOption = Annotated[
    str | None,
    typer.Option("--tokenizer", help="bytes, gpt2 or a tokenizer.json; default: the model's own."),
]
StudyName = Annotated[
    str | None, typer.Argument(metavar="STUDY", help="A shipped question or a YAML file.")
]
Budget = Annotated[
    str | None, typer.Option(help="quick, standard or thorough (what the study defines).")
]
Seeds = Annotated[
    str | None,
    typer.Option(metavar="N|two-look", help="How many seeds; two-look: 5, and 5 more if need be."),
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
    typer.Option("--plugin", metavar="FILE", help="Import parts of your own from a Python file."),
]
CorpusOption = Annotated[
    str | None, typer.Option("--corpus", metavar="NAME|FILE|FOLDER|URL", help="The text.")
]
Encoding = Annotated[
    str | None, typer.Option("--encoding", help="Of the corpus's files; default: utf-8.")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Where results go.")]


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
