"""The parameter table as a terminal shows it."""

from rich.console import Console
from rich.table import Table

from blocklab.model.count import Count


def print_count(name: str, count: Count) -> None:
    """Subtotals by part, then what follows from them."""
    config = count.config
    table = Table(title=f"{name}: {count.total:,} parameters", title_justify="left")
    table.add_column("part")
    table.add_column("parameters", justify="right")
    table.add_column("share", justify="right")
    for part, parameters in count.subtotals.items():
        layers = f" × {config.n_layers}" if part.startswith("block.") else ""
        table.add_row(part + layers, f"{parameters:,}", f"{parameters / count.total:.1%}")
    tied = "the head is the embedding" if config.tie_embeddings else "the head has its own table"
    console = Console()
    console.print(table)
    console.print(f"  {tied}")
    console.print(f"  float32 {count.bytes(4):,} bytes, bf16 {count.bytes(2):,} bytes")
    console.print(
        f"  training {flops_text(count)} FLOPs a token at context {config.context_length}"
    )


def flops_text(count: Count) -> str:
    """The FLOPs of training on a token, with what is not known of them."""
    known = f"{count.flops_per_token():,}"
    if count.untold_scores is not None:
        return f"≥ {known} (without the scores of {count.untold_scores}, which does not tell them)"
    if count.assumed_scores is not None:
        return f"{known} (scores of {count.assumed_scores} as its heads would take)"
    return known
