"""`blocklab evaluate`: how well a model predicts a text."""

import json
from typing import Annotated

import typer

from blocklab.cli.options import (
    WORD,
    CorpusOption,
    Device,
    Dtype,
    Encoding,
    Model,
    Plugin,
    TokenizerOption,
    word,
)


def evaluate(
    model: Model,
    corpus: CorpusOption = None,
    part: Annotated[
        str | None,
        typer.Option(
            metavar=WORD,
            parser=word,
            help="all or validation; default: validation of what a run was trained on, else all.",
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(help="Tokens from window to window; default: the whole context."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Windows at once.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    dtype: Dtype = None,
    device: Device = "cpu",
    tokenizer: TokenizerOption = None,
    encoding: Encoding = None,
    plugin: Plugin = None,
) -> None:
    """Print loss, perplexity and bits per byte on a corpus."""
    from rich.progress import Progress

    from blocklab.cli.evaluated_text import evaluated_text
    from blocklab.cli.models import named_model
    from blocklab.cli.screen import console
    from blocklab.study.plugins import load_plugins
    from blocklab.training.memory import keep_freed_memory
    from blocklab.training.perplexity import encode_text, perplexity
    from blocklab.training.strict_json import strict

    load_plugins(plugin or ())
    asked = evaluated_text(model, corpus, part, encoding)
    named = named_model(model, dtype, tokenizer, device)
    asked = asked.compared()
    for note in (*named.notes, *asked.notes):
        typer.echo(note, err=True)
    reader = named.read_by()
    read = asked.documents(reader, lambda note: typer.echo(note, err=True))
    text = encode_text(read, reader, named.start_ids)
    keep_freed_memory()  # every batch of windows asks for the same memory again
    screen = console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("windows")
        found = perplexity(
            named.model,
            text,
            stride=stride,
            batch_size=batch_size,
            on_windows=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        fields = {
            "model": model,
            "corpus": asked.corpus,
            "part": asked.part,
            "loss": found.loss,
            "perplexity": found.perplexity,
            "bits_per_byte": found.bits_per_byte,
            "tokens": found.n_tokens,
            "bytes": found.n_bytes,
            "documents": found.n_documents,
            "windows": found.n_windows,
            "stride": found.stride,
            "context": found.context,
        }
        typer.echo(json.dumps(strict(fields), allow_nan=False))
        return
    typer.echo(f"loss           {found.loss:.4f} nats a token")
    typer.echo(f"perplexity     {found.perplexity:,.2f}")
    if found.bits_per_byte is not None:
        typer.echo(f"bits per byte  {found.bits_per_byte:.4f}")
    size = f"{found.n_tokens:,} tokens, {found.n_bytes or 0:,} bytes"
    documents = "1 document" if found.n_documents == 1 else f"{found.n_documents:,} documents"
    typer.echo(f"on {asked.told()}: {size}, {documents}")
    least = found.context - found.stride
    before = f"every token after {least} others or more" if least else "each begins anew"
    windows = "1 window" if found.n_windows == 1 else f"{found.n_windows:,} windows"
    typer.echo(f"{windows} of {found.context}, {found.stride} apart: {before}")
