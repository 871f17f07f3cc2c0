"""`blocklab compare`: a learner's own module beside ours."""

from typing import Annotated

import typer

from blocklab.cli.options import Set


def compare(
    module: Annotated[str, typer.Argument(metavar="FILE:CLASS", help="Your torch module.")],
    part: Annotated[
        str,
        typer.Argument(
            metavar="PART",
            help="norm.layer, norm.rms, feed_forward.mlp, feed_forward.gated, attention.causal; "
            "or a preset, a YAML file or a checkpoint, for a whole model.",
        ),
    ],
    d_model: Annotated[int, typer.Option(min=2, help="Width to build both at.")] = 48,
    n_heads: Annotated[int, typer.Option(min=1, help="Heads of attention.")] = 4,
    n_layers: Annotated[int, typer.Option(min=1, help="Blocks of a whole model.")] = 2,
    rotary: Annotated[bool, typer.Option("--rotary", help="Attention that rotates.")] = False,
    arguments: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME=VALUE", help="An argument of your constructor."),
    ] = None,
    changes: Set = None,
) -> None:
    """Compare your norm, feed-forward, attention or whole GPT with ours, in words.

    `--set PATH=VALUE` changes our record: eps=1e-6 of a norm, block.norm.eps=1e-6 of a model. A
    whole model is compared small; widths that it fixes for its own size (d_ff) follow the rule.
    """
    from blocklab.cli.learners_class import built
    from blocklab.cli.options import settings
    from blocklab.cli.part_argument import named_part, sizes_of
    from blocklab.comparison.compare import compare as compared
    from blocklab.parts.positions import Rotary

    config = named_part(part, settings(changes), d_model, n_heads, n_layers)
    theirs = built(module, sizes_of(config, d_model), settings(arguments, "--with"))
    positions = Rotary.Config() if rotary else None
    typer.echo(str(compared(theirs, config, d_model=d_model, positions=positions)))
