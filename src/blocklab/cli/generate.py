"""`blocklab generate`: write on from a prompt, shown while it is written."""

import sys
from typing import Annotated

import typer

from blocklab.cli.options import Device, Dtype, Model, Plugin, TokenizerOption
from blocklab.errors import BlocklabError


def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text; - reads stdin.")],
    max_new_tokens: Annotated[int, typer.Option(min=0, help="How many tokens at most.")] = 200,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="0 takes the likeliest token; default: 0, or 1 with an option to draw or a seed."
        ),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the K likeliest.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the fewest that reach probability P.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Draw from those P times as probable as the likeliest.")
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1 makes tokens that were there less likely.")
    ] = 1.0,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End before this text; repeatable.")
    ] = None,
    special_tokens: Annotated[
        bool,
        typer.Option(
            "--special-tokens",
            help="Read special tokens in the prompt, as <|im_start|>, as what they are.",
        ),
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Makes what is drawn repeatable.")] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Read every token anew at each step.")
    ] = False,
    past_context: Annotated[
        str, typer.Option(help="Where the context ends: window, error or extend.")
    ] = "window",
    compiled: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile",
            help="Write by compiled code; default: where it saves more time than it takes.",
        ),
    ] = None,
    dtype: Dtype = None,
    device: Device = "cpu",
    tokenizer: TokenizerOption = None,
    plugin: Plugin = None,
) -> None:
    """Print a prompt and what the model writes after it."""
    from blocklab.cli.models import named_model
    from blocklab.generation.sampler import checked_policy
    from blocklab.generation.sampling import Sampling
    from blocklab.generation.text import generate_text
    from blocklab.study.plugins import load_plugins

    draws = any(option is not None for option in (top_k, top_p, min_p, seed))
    if temperature is None:
        temperature = 1.0 if draws else 0.0
    elif temperature == 0 and draws:
        typer.echo("temperature 0 takes the likeliest token, whatever else is asked", err=True)
    sampling = Sampling(
        repetition_penalty=repetition_penalty,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
    )
    policy = checked_policy(past_context)
    load_plugins(plugin or ())
    named = named_model(model, dtype, tokenizer, device)
    for note in named.notes:
        typer.echo(note, err=True)
    text = _from_stdin() if prompt == "-" else prompt
    shown = _Shown(text)
    try:
        generate_text(
            named.model,
            named.read_by(),
            text,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stop=stop or (),
            stop_ids=named.stop_ids or None,
            start_ids=named.start_ids,
            special_tokens=special_tokens,
            use_cache=not no_cache,
            past_context=policy,
            compiled=compiled,
            on_text=lambda _, piece: shown.add(piece),
        )
    except BaseException:
        shown.break_off()
        raise
    shown.end()


def _from_stdin() -> str:
    # Whoever starts a process may leave it none.
    if sys.stdin is None:
        raise BlocklabError("-: standard input is closed; give the prompt as an argument")
    return sys.stdin.read()


class _Shown:
    """The prompt and what follows; nothing before the first piece, so that errors stand alone."""

    def __init__(self, prompt: str) -> None:
        self.prompt: str | None = prompt

    def add(self, piece: str) -> None:
        if self.prompt is not None:
            piece, self.prompt = self.prompt + piece, None
        sys.stdout.write(piece)
        sys.stdout.flush()

    def end(self) -> None:
        self.add("\n")

    def break_off(self) -> None:
        """So that what went wrong begins a line."""
        if self.prompt is None:
            self.end()
