"""`blocklab count`: parameters, bytes and FLOPs of a model, without building it."""

import json
from typing import Annotated

import typer

from blocklab.cli.options import Model, Plugin, Set


def count(
    model: Model,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, every row.")] = False,
    changes: Set = None,
    plugin: Plugin = None,
) -> None:
    """Count a model's parameters part by part."""
    from blocklab.cli.model_argument import changed_model, model_config
    from blocklab.cli.options import settings
    from blocklab.model.count import count as counted
    from blocklab.study.plugins import load_plugins

    load_plugins(plugin or ())
    config = changed_model(model, model_config(model), settings(changes))
    table = counted(config)
    if not as_json:
        from blocklab.cli.count_table import print_count

        print_count(model, table)
        return
    rows = [row._asdict() | {"shape": list(row.shape)} for row in table.rows]
    typer.echo(
        json.dumps(
            {
                "model": model,
                "total": table.total,
                "subtotals": table.subtotals,
                "bytes_float32": table.bytes(4),
                "flops_per_token": table.flops_per_token(),
                "rows": rows,
            }
        )
    )
