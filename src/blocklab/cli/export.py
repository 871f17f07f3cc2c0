"""`blocklab export`: a model in Hugging Face's layout, for other programs to read."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from blocklab.cli.options import Dtype, Model, Plugin, TokenizerOption, folder_to_write


def export(
    model: Model,
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", parser=folder_to_write, help="Where it goes; made anew."),
    ],
    dtype: Dtype = None,
    tokenizer: TokenizerOption = None,
    plugin: Plugin = None,
) -> None:
    """Write a model to a folder that transformers, vLLM and llama.cpp read."""
    import blocklab
    from blocklab.cli.models import named_model
    from blocklab.exchange.conventions import came_with
    from blocklab.study.plugins import load_plugins

    load_plugins(plugin or ())
    named = named_model(model, dtype, tokenizer)
    for note in named.notes:
        typer.echo(note, err=True)
    if tokenizer is not None and came_with(named.model) is not None:
        typer.echo(
            "--tokenizer: the model leaves without what its authors said about texts: "
            "special tokens, chat templates, ids to stop after and settings of generation",
            err=True,
        )
    blocklab.export_huggingface(
        named.model, folder, tokenizer=named.tokenizer, say=partial(typer.echo, err=True)
    )
    typer.echo(f"the model is in {folder}", err=True)
