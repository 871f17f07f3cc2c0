"""A model in float64 computes in float64: every kind of positions against NumPy, to 1e-12."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import blocklab as bl
from blocklab.parts.positions import bias_at, embedding_at
from blocklab.record import Tagged

D, HEADS, LENGTH, BASE = 48, 12, 9, 100.0
TOKENS = torch.randint(11, (2, LENGTH), generator=torch.Generator().manual_seed(0))

Array = NDArray[np.float64]


def normed(x: Array, weights: dict[str, Array], path: str) -> Array:
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    return x * weights[f"{path}.weight"] + weights[f"{path}.bias"]


def mapped(x: Array, weights: dict[str, Array], path: str) -> Array:
    return x @ weights[f"{path}.weight"].T + weights[f"{path}.bias"]


def turned(x: Array) -> Array:
    """Pairs (i, i + half) of queries or keys (B, heads, T, head_dim) turned by their place."""
    half = x.shape[-1] // 2
    angles = np.arange(LENGTH)[:, None] * BASE ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


def reference(kind: str, weights: dict[str, Array]) -> Array:
    """Logits of one block of GPT-2's with these positions."""
    x = weights["embedding.weight"][TOKENS.numpy()]
    places = np.arange(LENGTH, dtype=np.float64)
    if kind == "learned":
        x = x + weights["positions.weight"][:LENGTH]
    if kind == "sinusoidal":
        for i in range(D // 2):
            angles = places / BASE ** (2 * i / D)
            x[..., 2 * i] += np.sin(angles)
            x[..., 2 * i + 1] += np.cos(angles)
    h = mapped(normed(x, weights, "blocks.0.norm.attention"), weights, "blocks.0.attention.qkv")
    q, k, v = (
        part.reshape(2, LENGTH, HEADS, D // HEADS).transpose(0, 2, 1, 3)
        for part in np.split(h, 3, axis=-1)
    )
    if kind == "rotary":
        q, k = turned(q), turned(k)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(D // HEADS)
    if kind == "alibi":  # those of eight heads, then every second of sixteen: no powers of two
        slopes = 2.0 ** -np.array([*range(1, 9), 0.5, 1.5, 2.5, 3.5])
        scores = scores - slopes[:, None, None] * (places[:, None] - places)
    scores = np.where(np.tril(np.ones((LENGTH, LENGTH))) > 0, scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares = shares / shares.sum(-1, keepdims=True)
    mixed = (shares @ v).transpose(0, 2, 1, 3).reshape(2, LENGTH, D)
    x = x + mapped(mixed, weights, "blocks.0.attention.output")
    h = mapped(
        normed(x, weights, "blocks.0.norm.feed_forward"), weights, "blocks.0.feed_forward.expand"
    )
    h = 0.5 * h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
    x = x + mapped(h, weights, "blocks.0.feed_forward.contract")
    return normed(x, weights, "final_norm") @ weights["head.weight"].T


def made(positions: dict[str, Any]) -> bl.Transformer:
    config = bl.presets.gpt2(
        d_model=D,
        n_heads=HEADS,
        n_layers=1,
        vocab_size=11,
        context_length=LENGTH,
        tie_embeddings=False,
    ).with_changes({"positions": positions, "initialization": {"kind": "fan_in", "head_std": 1.0}})
    model = bl.Transformer(config, seed=0).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator).double()
    return model


POSITIONS: list[dict[str, Any]] = [
    {"kind": "learned"},
    {"kind": "sinusoidal", "base": BASE},
    {"kind": "rotary", "base": BASE},
    {"kind": "alibi"},
    {"kind": "none"},
]


def test_no_kind_of_positions_is_left_out() -> None:
    ours = {kind for kind, record in Tagged._kinds["positions"].items() if _is_ours(record)}
    assert ours == {positions["kind"] for positions in POSITIONS}


def _is_ours(record: type) -> bool:
    return record.__module__.startswith("blocklab.")


@pytest.mark.parametrize("positions", POSITIONS, ids=str)
def test_a_model_in_float64_is_its_formula_in_float64(positions: dict[str, Any]) -> None:
    model = made(positions)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        logits = model(TOKENS).numpy()
    np.testing.assert_allclose(
        logits, reference(positions["kind"], weights), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_ours_compute_in_float32_or_the_streams_own_precision(dtype: torch.dtype) -> None:
    wide = torch.promote_types(dtype, torch.float32)
    places, distance = torch.arange(5), torch.arange(5)[:, None] - torch.arange(5)
    added = embedding_at(bl.parts.SinusoidalPositions.Config().build(8, 9), places, dtype)
    bias = bias_at(bl.parts.Alibi.Config().build(8, 9), distance, 3, wide)
    assert added is not None and added.dtype == wide
    assert bias is not None and bias.dtype == wide


def test_a_part_of_ones_own_is_told_the_precision_where_it_takes_it() -> None:
    class Told(bl.parts.Positions):
        def embed(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
            return positions[:, None].to(dtype) / 3

        def score_bias(self, distance: Tensor, n_heads: int, *, dtype: torch.dtype) -> Tensor:
            return (distance.to(dtype) / 3).expand(n_heads, -1, -1)

    class Untold(bl.parts.SinusoidalPositions):
        def embed(self, positions: Tensor) -> Tensor:
            return positions[:, None] + 7.0

    places = torch.arange(3)
    for dtype in (torch.float32, torch.float64):
        third = torch.tensor(1, dtype=dtype) / 3
        added = embedding_at(Told(), places, dtype)
        bias = bias_at(Told(), places[None], 1, dtype)
        assert added is not None and torch.equal(added[1, 0], third)
        assert bias is not None and torch.equal(bias[0, 0, 1], third)
        untold = embedding_at(Untold(8, 9, bl.parts.SinusoidalPositions.Config()), places, dtype)
        assert untold is not None and untold.tolist() == [[7.0], [8.0], [9.0]]
