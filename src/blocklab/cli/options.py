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
Out = Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Where results go.")]


def settings(given: list[str] | None, option: str = "--set") -> dict[str, Any]:
    """`PATH=VALUE` items as paths and values; a value is read as YAML."""
    return dict(_path_and_value(item, option) for item in given or ())


def variants(given: list[str] | None) -> dict[str, dict[str, Any]]:
    """`NAME:PATH=VALUE` items gathered by name."""
    gathered: dict[str, dict[str, Any]] = {}
    for item in given or ():
        name, colon, change = item.partition(":")
        if not colon or not name:
            raise BlocklabError(f"--variant {item}: expected NAME:PATH=VALUE")
        path, value = _path_and_value(change, f"--variant {name}:")
        gathered.setdefault(name, {})[path] = value
    return gathered


def _path_and_value(item: str, option: str) -> tuple[str, Any]:
    import yaml

    path, equals, text = item.partition("=")
    if not equals or not path:
        raise BlocklabError(f"{option} {item}: expected PATH=VALUE, as in block.norm.kind=layer")
    try:
        return path, yaml.safe_load(text)
    except yaml.YAMLError:
        raise BlocklabError(f"{option} {item}: '{text}' cannot be read as a value") from None
