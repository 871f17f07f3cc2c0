"""A count as a reader meets it: subtotals by part, then what follows from them, in plain text."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blocklab.model.count import Count

HEADINGS = ("part", "parameters", "share")


def count_text(count: "Count") -> str:
    """The whole table, a line a part."""
    title = f"{count.total:,} parameters"
    rows = [HEADINGS, *part_rows(count)]
    parts, numbers, shares = (max(map(len, column)) for column in zip(*rows, strict=True))
    table = (f"  {a:<{parts}}  {b:>{numbers}}  {c:>{shares}}" for a, b, c in rows)
    return "\n".join([title, *table, *(f"  {fact}" for fact in facts(count))])


def part_rows(count: "Count") -> list[tuple[str, str, str]]:
    """Under `HEADINGS`, for each part: its name with how many blocks have it, and its size."""
    return [
        (
            part + (f" × {count.config.n_layers}" if part.startswith("block.") else ""),
            f"{parameters:,}",
            f"{parameters / count.total:.1%}",
        )
        for part, parameters in count.subtotals.items()
    ]


def facts(count: "Count") -> tuple[str, str, str]:
    """Whether the head is tied, the bytes of the weights, the FLOPs of training."""
    tied = count.config.tie_embeddings
    return (
        "the head is the embedding" if tied else "the head has its own table",
        f"float32 {count.bytes(4):,} bytes, bf16 {count.bytes(2):,} bytes",
        f"training {_flops(count)} FLOPs a token at context {count.config.context_length}",
    )


def _flops(count: "Count") -> str:
    """The FLOPs of training on a token, with what is not known of them."""
    known = f"{count.flops_per_token():,}"
    if count.untold_scores is not None:
        return f"≥ {known} (without the scores of {count.untold_scores}, which does not tell them)"
    if count.assumed_scores is not None:
        return f"{known} (scores of {count.assumed_scores} as its heads would take)"
    return known
