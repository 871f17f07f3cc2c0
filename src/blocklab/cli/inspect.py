"""`blocklab inspect`: look inside a model on a batch of real text."""

import json
import shlex
import sys
from typing import Annotated

import typer

from blocklab.cli.options import CorpusOption, Encoding, LearntTokenizer, Model, Out, Plugin, Set

DEFAULT_RATE = 3e-4


def inspect(
    model: Model,
    corpus: CorpusOption = None,
    tokenizer: LearntTokenizer = None,
    sequences: Annotated[int, typer.Option(min=1, help="Sequences in the batch.")] = 4,
    length: Annotated[int, typer.Option(min=2, help="Tokens a sequence.")] = 128,
    steps: Annotated[
        int, typer.Option(min=0, help="Steps on a copy, for update-to-weight ratios; 0: none.")
    ] = 3,
    learning_rate: Annotated[
        float | None, typer.Option(help="Of those steps; default: the run's own, or 3e-4.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws the weights of a preset or YAML file.")] = 1,
    out: Out = None,
    encoding: Encoding = None,
    changes: Set = None,
    plugin: Plugin = None,
) -> None:
    """Look inside a model: gradients, the residual stream, heads, hidden units, norms, lens."""
    from dataclasses import replace

    from blocklab.cli.loading import batch_of_text, named_model, text_for
    from blocklab.cli.model_argument import changed_model
    from blocklab.cli.options import settings
    from blocklab.cli.screen import PIPED_WIDTH, console
    from blocklab.cli.tables import terminal_table
    from blocklab.cli.update_steps import measured_updates
    from blocklab.errors import BlocklabError
    from blocklab.files import write_atomically
    from blocklab.inspect.inspection import inspect_model
    from blocklab.model.transformer import Transformer
    from blocklab.report.inspection import block_table, gradient_table, headline, inspection_page
    from blocklab.report.page import write_page
    from blocklab.study.plugins import load_plugins

    def say(line: str) -> None:
        typer.echo(line, err=True)

    load_plugins(plugin or ())
    named = named_model(model)
    changed = settings(changes)
    if changed and named.model is not None:
        raise BlocklabError(
            f"--set {min(changed)}: {model} has weights; only presets and YAML change"
        )
    named = replace(named, config=changed_model(model, named.config, changed))
    data = text_for(named, corpus, encoding, say)
    length = min(length, named.config.context_length)
    config, tokens, targets = batch_of_text(named, data, tokenizer, sequences, length, say)
    looked_at = named.model if named.model is not None else Transformer(config, seed=seed)
    found = inspect_model(looked_at, tokens, targets)
    if steps:
        rate = learning_rate if learning_rate is not None else named.learning_rate or DEFAULT_RATE
        updates = measured_updates(looked_at, tokens, targets, rate, steps)
        found = replace(found, updates=updates)
    screen = console(piped_width=PIPED_WIDTH)
    screen.print(terminal_table(block_table(found), f"{model}: {found.parameters:,} parameters"))
    screen.print(terminal_table(gradient_table(found, compact=True)))
    screen.print(headline(found), soft_wrap=True)
    if out is None:
        return
    write_atomically(out / "inspection.json", json.dumps(found.plain(), indent=1).encode())
    page = inspection_page(found, model, data.corpus, shlex.join(["blocklab", *sys.argv[1:]]))
    screen.print(f"\npage: {write_page(page, out, 'inspection.html')}", soft_wrap=True)
