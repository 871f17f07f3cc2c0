"""The parts that a reader can check by hand: layer norm, RMSNorm, GELU, the gated width."""

from typing import Any

import torch

from blocklab.parts.activation import ACTIVATIONS
from blocklab.parts.feed_forward import Gated
from blocklab.parts.norm import LayerNorm, RMSNorm
from blocklab.report.drawing import Chart
from blocklab.report.lines import Lines, line_chart
from blocklab.reproduce.comparison import Row, claim, number, whole
from blocklab.reproduce.experiment import Found, Place


def layer_norm(figures: dict[str, Any], _: Place) -> Found:
    vectors = torch.tensor(figures["input"], dtype=torch.float32)
    norm = LayerNorm.Config(eps=figures["eps"]).build(vectors.shape[-1])
    with torch.no_grad():
        found = norm(vectors).tolist()
    rows = [
        number(f"{tuple(vector)}, coordinate {i + 1}", wanted, ours, 4)
        for vector, outputs, mine in zip(figures["input"], figures["output"], found, strict=True)
        for i, (wanted, ours) in enumerate(zip(outputs, mine, strict=True))
    ]
    return Found(tuple(rows), notes=("The variance divides by 4, not by 3.",))


def rms_norm(figures: dict[str, Any], _: Place) -> Found:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 256, generator=generator, dtype=torch.float64)
    norm = RMSNorm.Config(eps=figures["eps"]).build(256).double()
    weight = torch.randn(256, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        norm.load_state_dict({"weight": weight})
        found: torch.Tensor = norm(x)
    formula = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + figures["eps"]) * weight
    worst = float((found - formula).abs().max())
    rows = (
        claim("largest deviation from the formula, float64", "none", f"{worst:.0e}", worst < 1e-12),
        number("eps by default", figures["eps"], RMSNorm.Config().eps, 6),
    )
    return Found(rows)


def gelu_tanh(figures: dict[str, Any], _: Place) -> Found:
    points = torch.tensor(figures["input"], dtype=torch.float32)
    rows: list[Row] = []
    for name, kind in (("ReLU", "relu"), ("GELU", "gelu_tanh")):
        found = ACTIVATIONS[kind](points).tolist()
        wanted = figures["relu" if kind == "relu" else "gelu"]
        rows += [
            number(f"{name}({x:g})", w, ours, 4)
            for x, w, ours in zip(figures["input"], wanted, found, strict=True)
        ]
    grid = torch.linspace(-3, 3, 60_001, dtype=torch.float64)
    curve = ACTIVATIONS["gelu_tanh"](grid)
    lowest = int(curve.argmin())
    rows.append(number("GELU's minimum", figures["minimum"]["value"], float(curve[lowest]), 2))
    rows.append(number("where it lies", figures["minimum"]["x"], float(grid[lowest]), 2))
    return Found(tuple(rows), (_gelu_chart(),))


def swiglu_hidden(figures: dict[str, Any], _: Place) -> Found:
    rows = [
        whole(f"d_model {d:,}", width, Gated.Config().width(d))
        for d, width in figures["widths"].items()
    ]
    return Found(tuple(rows))


def _gelu_chart() -> Chart:
    xs = torch.linspace(-3, 3, 61, dtype=torch.float64)
    curves = {
        name: list(zip(xs.tolist(), ACTIVATIONS[kind](xs).tolist(), strict=True))
        for name, kind in (("ReLU", "relu"), ("GELU (tanh)", "gelu_tanh"))
    }
    return line_chart(
        "gelu-against-relu",
        "GELU and ReLU",
        "Both at 61 points from −3 to 3. GELU dips below zero to about −0.17 near −0.75 and has a "
        "slope almost everywhere; ReLU has none left of zero.",
        Lines(curves, "x", "activation"),
    )
