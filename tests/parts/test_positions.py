"""Positions against the papers' formulas."""

import math

import pytest
import torch
from torch import Tensor

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.parts.positions import alibi_slopes


def rotated(part: bl.parts.Rotary, x: Tensor, places: Tensor) -> Tensor:
    tables = part.tables(places, x.shape[-1], x.dtype)
    return part.rotate(x, tables)


def rotary(**fields: object) -> bl.parts.Rotary:
    return bl.parts.Rotary.Config(**fields).build(32, 64)


def heads(head_dim: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 5, 3, head_dim, generator=generator, dtype=torch.float64)  # (B, T, h, d)


def test_interleaved_rotary_multiplies_complex_pairs() -> None:
    x, places = heads(), torch.arange(5)
    frequencies = 100.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    angles = places[:, None] * frequencies
    turn = torch.polar(torch.ones_like(angles), angles)[:, None, :]  # (T, 1, d / 2)
    expected = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn)
    actual = rotated(rotary(interleaved=True, base=100.0), x, places)
    torch.testing.assert_close(actual, expected.flatten(-2), rtol=1e-12, atol=1e-12)


def test_half_split_rotary_is_interleaved_with_the_dimensions_reordered() -> None:
    x, places = heads(), torch.arange(5)
    to_half = torch.cat((torch.arange(0, 8, 2), torch.arange(1, 8, 2)))
    half = rotated(rotary(), x[..., to_half], places)
    interleaved = rotated(rotary(interleaved=True), x, places)
    torch.testing.assert_close(half, interleaved[..., to_half], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(rotated(rotary(), x, places), interleaved)


@pytest.mark.parametrize("interleaved", [True, False])
def test_scores_depend_on_the_distance_only(interleaved: bool) -> None:
    part = rotary(interleaved=interleaved)
    query, key = heads()[:1, :1], heads()[1:, :1]

    def score(at_query: int, at_key: int) -> float:
        q = rotated(part, query, torch.tensor([at_query]))
        k = rotated(part, key, torch.tensor([at_key]))
        return float((q * k).sum())

    assert score(7, 3) == pytest.approx(score(1007, 1003), abs=1e-9)
    assert score(7, 3) != pytest.approx(score(7, 4), abs=1e-3)


def test_a_fraction_leaves_the_rest_of_the_head_still() -> None:
    x, places = heads(), torch.arange(5)
    out = rotated(rotary(fraction=0.5), x, places)
    assert torch.equal(out[..., 4:], x[..., 4:])
    torch.testing.assert_close(out[..., :4], rotated(rotary(), x[..., :4], places))


def test_rotation_keeps_lengths_and_angles_stay_float32_under_bfloat16() -> None:
    places = torch.tensor([0, 1000, 4095])
    x = torch.ones(1, 3, 1, 8)
    exact = rotated(rotary(), x, places)
    torch.testing.assert_close(exact.norm(dim=-1), x.norm(dim=-1))
    half = rotated(rotary(), x.bfloat16(), places)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), exact, atol=0.01, rtol=0)


@pytest.mark.parametrize(("fraction", "head_dim"), [(1.0, 5), (0.1, 8), (0.5, 6)])
def test_rotary_refuses_an_odd_number_of_dimensions(fraction: float, head_dim: int) -> None:
    config = bl.presets.gpt2(d_model=2 * head_dim, n_heads=2, n_layers=1)
    with pytest.raises(BlocklabError, match=r"positions\.fraction"):
        config.with_changes({"positions": {"kind": "rotary", "fraction": fraction}})


@pytest.mark.parametrize("n_heads", [1, 2, 8, 16])
def test_alibi_slopes_of_a_power_of_two_are_the_papers(n_heads: int) -> None:
    expected = [2 ** (-8 * i / n_heads) for i in range(1, n_heads + 1)]
    assert alibi_slopes(n_heads) == pytest.approx(expected)


def test_alibi_slopes_of_other_numbers_take_every_second_of_twice_as_many() -> None:
    eight = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    between = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert alibi_slopes(12) == pytest.approx(eight + between)


def test_alibi_falls_linearly_with_distance() -> None:
    distance = torch.arange(4)[:, None] - torch.arange(4)
    bias = bl.parts.Alibi.Config().build(8, 4).score_bias(distance, 2)
    assert bias.shape == (2, 4, 4)
    assert bias[0, 3].tolist() == pytest.approx([-3 / 16, -2 / 16, -1 / 16, 0])
    assert bias[1, 3].tolist() == pytest.approx([-3 / 256, -2 / 256, -1 / 256, 0])


def test_sinusoidal_is_the_formula_of_the_paper() -> None:
    table = bl.parts.SinusoidalPositions.Config().build(6, 9).embed(torch.arange(9))
    for place in range(9):
        for i in range(3):
            angle = place / 10_000 ** (2 * i / 6)
            assert table[place, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[place, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_sinusoidal_refuses_an_odd_width() -> None:
    with pytest.raises(BlocklabError, match="even d_model, not 7"):
        bl.parts.SinusoidalPositions.Config().build(7, 9)


def test_learned_positions_are_rows_of_one_table() -> None:
    part = bl.parts.LearnedPositions.Config().build(6, 9)
    assert torch.equal(part.embed(torch.tensor([4, 0])), part.weight[[4, 0]])


def test_more_tokens_than_learned_positions_are_refused_by_number() -> None:
    config = bl.presets.gpt2(d_model=8, n_heads=2, n_layers=1, vocab_size=5, context_length=4)
    with pytest.raises(BlocklabError, match="5 tokens do not fit context_length 4"):
        bl.Transformer(config)(torch.zeros(1, 5, dtype=torch.long))


def test_without_positions_the_last_logits_ignore_the_order_of_the_others() -> None:
    config = bl.presets.gpt2(d_model=8, n_heads=2, n_layers=1, vocab_size=9, context_length=8)
    tokens = torch.tensor([[1, 2, 3, 4], [3, 1, 2, 4]])
    for kind in ("none", "learned", "rotary", "alibi", "sinusoidal"):
        changed = config.with_changes({"positions": kind, "initialization.kind": "fan_in"})
        last = bl.Transformer(changed, seed=0).eval()(tokens)[:, -1]
        assert torch.allclose(last[0], last[1], atol=1e-6) == (kind == "none"), kind


def test_what_a_rotation_turns_by_may_be_learned() -> None:
    turning = rotary()
    cos, sin = turning.tables(torch.arange(8), 16, torch.float32)
    speed = torch.ones((), requires_grad=True)
    x = torch.randn(1, 8, 2, 16, requires_grad=True)
    (turning.rotate(x, (cos * speed, sin * speed)) * torch.randn_like(x)).sum().backward()
    assert speed.grad is not None and speed.grad != 0
    assert x.grad is not None
