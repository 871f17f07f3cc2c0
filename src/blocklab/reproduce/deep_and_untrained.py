"""Deep models before training: gradients and positions with and without residuals, pre and post.

All build the published model (256 wide, 4 heads, seed 123) and measure it once.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from blocklab.inspect.gradients import gradient_norms
from blocklab.inspect.stream import position_similarity
from blocklab.model import presets
from blocklab.model.transformer import Transformer
from blocklab.report.drawing import Chart
from blocklab.report.lines import Lines, line_chart
from blocklab.reproduce.comparison import Row, alone, between, number
from blocklab.reproduce.experiment import Found, Place

VOCABULARY = 50257
DEPTHS = (6, 12, 48)
LAW_TOLERANCE = 0.05
"""How far a ratio may lie from the law that theory gives it, which holds for wide models."""


class Drawn(NamedTuple):
    """A model and its batch, as drawn after torch.manual_seed(123)."""

    model: Transformer
    tokens: Tensor
    targets: Tensor


def drawn(n_layers: int, changes: dict[str, Any]) -> Drawn:
    """The published model with `n_layers` blocks and `changes`; then its batch (4, 64)."""
    config = presets.preset("gpt2")(
        d_model=256,
        n_heads=4,
        n_layers=n_layers,
        context_length=64,
        dropout=0.0,
        tie_embeddings=False,
    ).with_changes(changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        model = Transformer(config)
        tokens = torch.randint(0, VOCABULARY, (4, 64))
        targets = torch.randint(0, VOCABULARY, (4, 64))
    return Drawn(model, tokens, targets)


def first_matrices(case: Drawn) -> list[float]:
    """Gradient norm of each block's first feed-forward weight."""
    norms = gradient_norms(*case)
    n_layers = len(case.model.blocks)
    return [norms[f"blocks.{i}.feed_forward.expand.weight"] for i in range(n_layers)]


def residual_gradients(figures: dict[str, Any], place: Place) -> Found:
    place.say("12 blocks with and without residuals")
    with_residuals = first_matrices(drawn(12, {}))
    without = first_matrices(drawn(12, {"block.residual.kind": "none"}))
    rows = [
        number(f"with residuals, block {i}", wanted, ours, 2)
        for i, (wanted, ours) in enumerate(
            zip(figures["with_residuals"], with_residuals, strict=True)
        )
    ]
    low, high = figures["without_residuals_between"]
    rows.append(between("without residuals, all blocks", low, high, without))
    rows.append(
        alone("without residuals, last block over first", f"{without[-1] / without[0]:.2f}")
    )
    curves = {
        "with residuals": with_residuals,
        "with, published": figures["with_residuals"],
        "without residuals": without,
        "without, published": figures["without_residuals"],
    }
    chart = line_chart(
        "residual-gradients",
        "Gradient norm by block",
        "Norm of the gradient of each block's first feed-forward weight, before any training. "
        "Dashed: as published; without residuals from another batch.",
        Lines(
            {name: list(enumerate(values)) for name, values in curves.items()},
            "block",
            "gradient norm",
            dashed=("with, published", "without, published"),
        ),
    )
    return Found(tuple(rows), (chart,))


def similarity(figures: dict[str, Any], place: Place) -> Found:
    rows: list[Row] = []
    curves: dict[str, list[tuple[float, float]]] = {}
    for kind, name in (("with_residuals", "with"), ("without_residuals", "without")):
        for n_layers, wanted in figures[kind].items():
            place.say(f"{n_layers} blocks {name} residuals")
            changes = {} if name == "with" else {"block.residual.kind": "none"}
            case = drawn(n_layers, changes)
            found = [float(one[0]) for one in position_similarity(case.model, case.tokens)]
            rows.append(number(f"{n_layers} blocks {name} residuals", wanted, found[-1], 3))
            curves[f"{name}, {n_layers}"] = [(i + 1.0, value) for i, value in enumerate(found)]
    chart = line_chart(
        "position-similarity",
        "How alike the positions become",
        "Mean cosine similarity between different positions after each block, at 12 and 48 blocks. "
        "Without residuals the positions become one after a few blocks.",
        Lines(curves, "blocks passed", "cosine similarity"),
    )
    return Found(tuple(rows), (chart,))


def placement_gradients(_: dict[str, Any], place: Place) -> Found:
    rows: list[Row] = []
    charts = []
    for name, initialization in (
        ("N(0, 0.02)", {"kind": "normal", "std": 0.02}),
        ("fan-in", {"kind": "fan_in"}),
    ):
        curves: dict[str, list[tuple[float, float]]] = {}
        last: dict[tuple[str, int], float] = {}
        for placement in ("pre", "post"):
            for n_layers in DEPTHS:
                place.say(f"{placement}-norm, {n_layers} blocks, {name}")
                changes = {"block.placement": placement, "initialization": initialization}
                norms = first_matrices(drawn(n_layers, changes))
                last[placement, n_layers] = norms[-1]
                share = [(i / (n_layers - 1), norm) for i, norm in enumerate(norms)]
                curves[f"{placement}, {n_layers}"] = share
                rows.append(
                    alone(
                        f"{name}: {placement}-norm, {n_layers} blocks, first and last",
                        f"{norms[0]:.3f}, {norms[-1]:.3f}",
                    )
                )
        if initialization["kind"] == "normal":
            rows = _laws(last) + rows
        charts.append(_placement_chart(name, str(initialization["kind"]), curves))
    note = (
        "After post-norm the last block's gradient is the same at any depth; with pre-norm it "
        "shrinks as the model gets deeper. Drawn by fan-in, a deep post-norm model starts with "
        "gradients several times those of a pre-norm one, in its first blocks most of all, and "
        "those first steps are what warm-up slows down. Drawn N(0, 0.02) at this width they are "
        "smaller than pre-norm's: how weights are drawn decides how much warm-up matters."
    )
    return Found(tuple(rows), tuple(charts), (note,))


def _laws(last: dict[tuple[str, int], float]) -> list[Row]:
    """The last block's gradient, deeper over shallower, beside what theory says."""
    rows = []
    for placement in ("pre", "post"):
        for shallow, deep in ((6, 12), (12, 48)):
            law = (shallow / deep) ** 0.5 if placement == "pre" else 1.0
            ratio = last[placement, deep] / last[placement, shallow]
            rows.append(
                number(
                    f"{placement}-norm: last block's gradient, {deep} over {shallow} blocks (law)",
                    law,
                    ratio,
                    2,
                    LAW_TOLERANCE,
                )
            )
    return rows


def _placement_chart(name: str, kind: str, curves: dict[str, list[tuple[float, float]]]) -> Chart:
    return line_chart(
        f"placement-gradients-{kind.replace('_', '-')}",
        f"Gradient norm by place in the model, weights drawn {name}",
        "Norm of the gradient of each block's first feed-forward weight at step 0, from the first "
        "block (0) to the last (1), at 6, 12 and 48 blocks.",
        Lines(curves, "place in the model", "gradient norm", log=True, whole_x=False),
    )
