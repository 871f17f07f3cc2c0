"""What an inspection of a model shows: tables by block, charts over the blocks, one page."""

import math
from collections.abc import Mapping, Sequence

from blocklab.inspect.inspection import Inspection, by_block
from blocklab.report.drawing import Chart
from blocklab.report.formats import counted
from blocklab.report.heat import Panels, heat_chart
from blocklab.report.lines import Lines, line_chart
from blocklab.report.page import Page, Section, Table
from blocklab.study.wording import percent

MOST_MAPS = 12


def block_table(found: Inspection) -> Table:
    """One row a block: the stream, its gradients, its heads, its hidden units, the lens."""
    gradients = gradients_of_blocks(found)
    rows = []
    for i in range(len(found.hidden)):
        heads, hidden = found.heads[i], found.hidden[i]
        rows.append(
            (
                str(i),
                _number(found.stream.rms[i + 1]),
                f"{found.stream.rms[i + 1] / found.stream.rms[i]:.3f}"
                if found.stream.rms[i]
                else "",
                f"{found.similarity[i]:.3f}",
                _number(gradients[i]),
                f"{min(heads.entropy):.2f}–{max(heads.entropy):.2f}" if heads else "",
                f"{max(heads.largest_logit):.2f}" if heads else "",
                f"{hidden.dead} of {hidden.units:,}" if hidden else "",
                f"{hidden.largest:.1f}" if hidden else "",
                percent(hidden.outliers, 2) if hidden else "",
                f"{found.lens[i + 1].loss:.3f}",
            )
        )
    return Table(
        (
            "block",
            "stream rms",
            "growth",
            "similarity",
            "gradient norm",
            "head entropy",
            "largest logit",
            "dead units",
            "largest unit",
            "outliers",
            "lens loss",
        ),
        tuple(rows),
        "Stream after the block and its growth through it; mean cosine similarity between "
        "positions; norm of all the block's gradients together; entropy of its heads in nats and "
        "the largest score that enters a softmax; hidden units that no position lifts above a "
        "thousandth of the layer's rms, the largest activation in units of that rms, and the share "
        "beyond six; cross-entropy in nats if the model stopped here, at "
        f"{found.lens_positions:,} of the positions.",
    )


def gradient_table(found: Inspection, *, compact: bool = False) -> Table:
    """Gradient norm and update ratio of every parameter; `compact` leaves single biases out."""
    updates = found.updates or {}
    ratios = by_block(updates)
    rows = []
    for path, norms in by_block(found.gradients).items():
        if compact and path.endswith(".bias"):
            continue
        values = [norms[block] for block in sorted(norms)]
        moved = list(ratios.get(path, {}).values())
        mean = _number(sum(moved) / len(moved)) if moved else ""
        shown = (values[0], min(values), max(values), values[-1])
        rows.append((f"blocks.*.{path}", *map(_number, shown), mean))
    for path, norm in found.gradients.items():
        if not path.startswith("blocks."):
            moved_by = _number(updates[path]) if path in updates else ""
            rows.append((path, _number(norm), "", "", "", moved_by))
    return Table(
        ("gradient norm of", "first block", "smallest", "largest", "last block", "update ratio"),
        tuple(rows),
        "Norm of the gradient of the mean loss, after one backward pass without dropout; norm of "
        "one AdamW step's change over that of the weight, mean over the steps and the blocks; "
        "“from 0” where the weight had no size yet.",
        words=(0,),
    )


def norm_table(found: Inspection) -> Table:
    """What each norm is given and gives."""
    return Table(
        ("norm", "input rms", "smallest", "output rms", "gain", "largest coordinate"),
        tuple(
            (
                norm.path,
                _number(norm.input_rms),
                _number(norm.smallest_input_rms),
                _number(norm.output_rms),
                f"{norm.gain[0]:.2f} to {norm.gain[1]:.2f}" if norm.gain else "",
                f"{norm.largest_coordinate:.1f} at {norm.coordinate}",
            )
            for norm in found.norms
        ),
        "Root mean square of what comes in, over all positions and at the smallest one; of what "
        "goes out; smallest and largest learned gain; the coordinate that stands out most from "
        "its own vector, in units of the vector's rms.",
        words=(0,),
    )


def gradients_of_blocks(found: Inspection) -> list[float]:
    """Norm of all gradients of each block together."""
    squares = [0.0] * len(found.hidden)
    for norms in by_block(found.gradients).values():
        for block, norm in norms.items():
            squares[block] += norm**2
    return [math.sqrt(total) for total in squares]


def inspection_page(found: Inspection, model: str, text: str, command: str) -> Page:
    """The page of an inspection of `model` on `text`."""
    sequences, length = found.tokens
    return Page(
        title=f"Inside {model}",
        kicker=f"{found.parameters:,} parameters · {counted(sequences, 'sequence')} of "
        f"{counted(length, 'token')} of {text}",
        headline=headline(found),
        sections=(
            Section("blocks", "Block by block", tables=(block_table(found),)),
            Section(
                "stream",
                "The residual stream",
                charts=(stream_chart(found), similarity_chart(found), lens_chart(found)),
            ),
            Section(
                "gradients",
                "Gradients",
                charts=(_by_block_chart("gradient-norms", "Gradient norm by block", found.gradients,
                        "Norm of each matrix's gradient after one backward pass."),),
                tables=(gradient_table(found),),
            ),
            *_attention_sections(found),
            *_update_sections(found),
            Section("norms", "Norms", tables=(norm_table(found),)),
        ),
        command=command,
    )  # fmt: skip


def headline(found: Inspection) -> str:
    """What stands out, in two sentences."""
    text = (
        f"The loss on this batch is {found.loss:.3f} nats. The stream's rms goes from "
        f"{_number(found.stream.rms[0])} to {_number(found.stream.rms[-1])}, a factor of "
        f"{found.stream.growth:.3f} a block; the mean cosine similarity of its positions ends at "
        f"{found.similarity[-1]:.2f}."
    )
    dead = sum(hidden.dead for hidden in found.hidden if hidden)
    units = sum(hidden.units for hidden in found.hidden if hidden)
    return text + (f" {dead:,} of {units:,} hidden units are dead." if units else "")


def stream_chart(found: Inspection) -> Chart:
    return line_chart(
        "stream-rms",
        "Size of the residual stream",
        "Root mean square over all positions as the stream enters (0) and after each block.",
        Lines({"stream": list(enumerate(found.stream.rms))}, "blocks passed", "rms", log=True),
    )


def similarity_chart(found: Inspection) -> Chart:
    curve = [(i + 1.0, value) for i, value in enumerate(found.similarity)]
    return line_chart(
        "position-similarity",
        "How alike the positions are",
        "Mean cosine similarity between the vectors of different positions after each block; at 1 "
        "the model can no longer tell its positions apart.",
        Lines({"similarity": curve}, "blocks passed", "cosine similarity"),
    )


def lens_chart(found: Inspection) -> Chart:
    curve = [(float(i), reading.loss) for i, reading in enumerate(found.lens)]
    return line_chart(
        "logit-lens",
        "Logit lens",
        "The loss if the stream were read after each block: taken through the final norm and the "
        f"head as if it were the last one's, at {found.lens_positions:,} of the positions.",
        Lines({"loss": curve}, "blocks passed", "cross-entropy, nats"),
    )


def _by_block_chart(
    name: str, title: str, values: Mapping[str, float], reading: str, levels: Sequence[float] = ()
) -> Chart:
    """Matrices only: gains and biases would drown them."""
    matrices = {
        path.removesuffix(".weight"): [(float(i), v) for i, v in sorted(norms.items()) if v > 0]
        for path, norms in by_block(values).items()
        if path.endswith(".weight") and not path.startswith("norm.")
    }
    named = {f"{value:g}": value for value in levels}
    return line_chart(
        name, title, reading, Lines(matrices, "block", title.split(" by ")[0].lower(), log=True,
                                    levels=named),
    )  # fmt: skip


def _attention_sections(found: Inspection) -> tuple[Section, ...]:
    heads = [measures for measures in found.heads if measures]
    if not heads:
        return ()
    entropies = [list(measures.entropy) for measures in heads]
    logits = [list(measures.largest_logit) for measures in heads]
    charts = [
        heat_chart(
            "head-entropy",
            "Entropy of every head",
            "Mean entropy of a query's attention weights in nats: 0 looks at a single key, "
            f"{max(m.uniform_entropy for m in heads):.2f} at all visible ones alike.",
            Panels({"": entropies}, "head", "block", (0.0, heads[0].uniform_entropy), numbers=True),
        ),
        heat_chart(
            "largest-logit",
            "Largest attention logit of every head",
            "The largest score that enters the softmax. Scores that keep growing in training are "
            "an early sign of divergence.",
            Panels({"": logits}, "head", "block", _ends(logits), numbers=True),
        ),
    ]
    chosen = _sharpest(found)
    if chosen is not None:
        charts.append(_maps_chart(found, chosen))
    return (Section("attention", "Attention", charts=tuple(charts)),)


def _maps_chart(found: Inspection, block: int) -> Chart:
    maps = found.maps[block]
    assert maps is not None
    grids = {
        f"head {head}": [
            [float(weight) if key <= query else None for key, weight in enumerate(row)]
            for query, row in enumerate(weights)
        ]
        for head, weights in enumerate(maps[:MOST_MAPS])
    }
    largest = max(w for grid in grids.values() for row in grid[1:] for w in row if w is not None)
    return heat_chart(
        "attention-maps",
        f"Attention maps of block {block}",
        f"The first {maps.shape[-1]} tokens of the first sequence, in the block whose heads are "
        "sharpest: rows are queries from top to bottom, columns the keys they look at, darker "
        "where more weight goes.",
        Panels(grids, "key", "query", (0.0, largest)),
    )


def _sharpest(found: Inspection) -> int | None:
    """The block with the lowest mean entropy among those with maps."""
    known = [
        (sum(measures.entropy) / len(measures.entropy), i)
        for i, measures in enumerate(found.heads)
        if measures and found.maps[i] is not None
    ]
    return min(known)[1] if known else None


def _update_sections(found: Inspection) -> tuple[Section, ...]:
    if found.updates is None:
        return ()
    finite = {path: ratio for path, ratio in found.updates.items() if math.isfinite(ratio)}
    chart = _by_block_chart(
        "update-ratios",
        "Update-to-weight ratio by block",
        finite,
        "Norm of one optimiser step's change over the norm of the weight, mean over a few steps. "
        "About a thousandth is a common rule of thumb at the peak rate.",
        (1e-3,),
    )
    return (Section("updates", "Updates", charts=(chart,)),)


def _ends(rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    values = [value for row in rows for value in row]
    return min(0.0, min(values)), max(values)


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "from 0"
