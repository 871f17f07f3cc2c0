"""Every field of a record counts: what is computed otherwise is named, or refused, never agreed."""

import math
from types import SimpleNamespace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import blocklab as bl
from blocklab.errors import BlocklabError
from tests.comparison import learners
from tests.comparison.test_compare import ATTENTION, SIZES, D, gpt

Causal = bl.parts.CausalAttention.Config
Rotary = bl.parts.Rotary.Config
LINEAR = {"kind": "linear", "factor": 4.0}


class Windowed(learners.Attention):
    """Sees so many tokens, itself included."""

    def __init__(self, d: int, n_heads: int, window: int) -> None:
        super().__init__(d, n_heads)
        self.window = window

    def weighted(self, scores: Tensor) -> Tensor:
        places = torch.arange(scores.shape[-1])
        distance = places[:, None] - places
        hidden = (distance < 0) | (distance >= self.window)
        return scores.masked_fill(hidden, -math.inf).softmax(-1)


class Capped(learners.Attention):
    def weighted(self, scores: Tensor) -> Tensor:
        return super().weighted(2.0 * torch.tanh(scores / 2.0))


class Stretched(learners.Attention):
    """Rotates by a quarter of its place."""

    def turned(self, x: Tensor) -> Tensor:
        half = self.hd // 2
        frequency = 10_000.0 ** (-torch.arange(half, dtype=x.dtype) / half) / 4
        angle = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * frequency
        a, b = x.chunk(2, -1)
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


class Parted(learners.FusedAttention):
    """Parts heads, or shares two of keys and values among four heads, in a way to choose."""

    def __init__(self, d: int, n_heads: int, way: str, n_kv_heads: int = 0) -> None:
        nn.Module.__init__(self)
        self.n_heads, self.way, self.hd = n_heads, way, d // n_heads
        narrow = (n_kv_heads or n_heads) * self.hd
        self.q, self.out = nn.Linear(d, d), nn.Linear(d, d)
        self.k, self.v = nn.Linear(d, narrow), nn.Linear(d, narrow)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.parted(f(x)) for f in (self.q, self.k, self.v))
        n = q.shape[1] // k.shape[1]
        if self.way == "repeat":
            k, v = k.repeat(1, n, 1, 1), v.repeat(1, n, 1, 1)
        else:
            k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def parted(self, y: Tensor) -> Tensor:
        if self.way == "interleaved":
            return y.unflatten(-1, (self.hd, -1)).permute(0, 3, 1, 2)
        return y.unflatten(-1, (-1, self.hd)).transpose(1, 2)


def plain(mistake: str = "", rotary: str = "") -> learners.Attention:
    return learners.Attention(D, 4, mistake, rotary)


@pytest.mark.parametrize(
    ("module", "config", "positions", "names"),
    [
        (Windowed(D, 4, 3), Causal(n_heads=4, window=3), None, ()),
        (Windowed(D, 4, 4), Causal(n_heads=4, window=3), None, ("window-one-too-wide",)),
        (Windowed(D, 4, 2), Causal(n_heads=4, window=3), None, ("window-one-too-narrow",)),
        (plain(), Causal(n_heads=4, window=3), None, ("no-window",)),
        (Windowed(D, 4, 20), Causal(n_heads=4, window=20), None, ()),
        (Windowed(D, 4, 21), Causal(n_heads=4, window=20), None, ("window-one-too-wide",)),
        (plain(), Causal(n_heads=4, window=20), None, ("no-window",)),
        (Capped(D, 4), Causal(n_heads=4, softcap=2.0), None, ()),
        (plain(), Causal(n_heads=4, softcap=2.0), None, ("no-softcap",)),
        (plain(), Causal(n_heads=4, scale=1.0), None, ("scaled-by-root",)),
        (Stretched(D, 4, rotary="halves"), ATTENTION, Rotary(scaling=LINEAR), ()),
        (plain(rotary="halves"), ATTENTION, Rotary(scaling=LINEAR), ("rotary-not-stretched",)),
        (Parted(D, 4, "", 2), Causal(n_heads=4, n_kv_heads=2), None, ()),
        (Parted(D, 4, "repeat", 2), Causal(n_heads=4, n_kv_heads=2), None, ("groups-apart",)),
        (Parted(D, 4, "interleaved"), ATTENTION, None, ("heads-interleaved",)),
    ],
)
def test_how_attention_departs_from_a_field_is_named(
    module: nn.Module,
    config: bl.parts.AttentionConfig,
    positions: bl.parts.PositionsConfig | None,
    names: tuple[str, ...],
) -> None:
    found = bl.compare(module, config, positions=positions)
    assert found.names == names, str(found)
    assert found.agrees == (not names)
    assert found.explained


def test_a_gain_that_is_stored_as_its_distance_from_one_is_told_from_one_that_is_not() -> None:
    found = bl.compare(learners.RootNorm(D), bl.parts.RMSNorm.Config(unit_offset=True))
    assert found.names == ("gain-without-one",)


def test_a_shift_that_ours_has_not_is_surplus_and_not_unexplained() -> None:
    found = bl.compare(learners.Norm(D), bl.parts.LayerNorm.Config(bias=False))
    assert found.explained
    assert not found.mistakes
    assert found.notes == ("has bias, which ours has not",)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"final_norm": "none"}, ("final-norm-there",)),
        ({"block.placement": "post"}, ("placement-pre", "final-norm-there")),
    ],
)
def test_a_norm_before_the_head_that_ours_has_not_is_named(
    changes: dict[str, object], names: tuple[str, ...]
) -> None:
    assert bl.compare(learners.GPT(SIZES), gpt(**changes)).names == names


def test_a_model_without_norms_is_told_so() -> None:
    config = gpt(**{"block.norm": {"kind": "none"}, "final_norm": "none"})
    assert bl.compare(bl.Transformer(config, seed=0), gpt()).names == ("no-norm",)


class Sinusoids(learners.GPT):
    def __init__(self, cfg: SimpleNamespace, base: float, first: int) -> None:
        super().__init__(cfg)
        del self.pos_emb
        self.base, self.first = base, first

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_emb(tokens)
        place = torch.arange(self.first, self.first + x.shape[1], dtype=x.dtype)
        angle = place[:, None] * self.base ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
        x = x + torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)
        return self.out_head(self.final_norm(self.trf_blocks(x)))


@pytest.mark.parametrize(
    ("base", "first", "names"),
    [(500.0, 0, ()), (10_000.0, 0, ("sinusoid-base",)), (500.0, 1, ("positions-from-one",))],
)
def test_which_sinusoids_a_model_adds_is_named(
    base: float, first: int, names: tuple[str, ...]
) -> None:
    config = gpt(positions={"kind": "sinusoidal", "base": 500.0})
    found = bl.compare(Sinusoids(SIZES, base, first), config)
    assert found.names == names, str(found)
    assert found.agrees == (not names)


class Block(learners.Block):
    def forward(self, x: Tensor) -> Tensor:
        if self.mistake == "sublayers-in-parallel":
            return x + self.att(self.norm1(x)) + self.ff(self.norm2(x))
        x = x + self.norm1(self.att(x))
        return x + self.norm2(self.ff(x))


@pytest.mark.parametrize("mistake", ["sublayers-in-parallel", "placement-output"])
def test_how_the_sublayers_of_a_model_are_joined_is_named(mistake: str) -> None:
    model = learners.GPT(SIZES)
    model.trf_blocks = nn.Sequential(*(Block(16, 2, mistake) for _ in range(2)))
    assert bl.compare(model, gpt()).names == (mistake,)


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": {"kind": "sinusoidal", "base": 500.0}},
        {"positions": {"kind": "rotary", "scaling": LINEAR}},
        {"positions": {"kind": "rotary", "scaling": {"kind": "llama3", "original_context": 16}}},
        {"positions": {"kind": "rotary", "scaling": {"kind": "yarn", "original_context": 16}}},
        {"block.attention.window": 8},
        {"block.attention.window": 500},
    ],
)
def test_our_own_models_agree_in_these_fields_too(changes: dict[str, object]) -> None:
    config = gpt(**changes)
    found = bl.compare(bl.Transformer(config, seed=0), config)
    assert found.agrees, str(found)


@bl.part("norm", "twice-normed")
class TwiceNorm(bl.parts.LayerNorm):
    class Config(bl.parts.LayerNorm.Config):
        kind: Literal["twice-normed"] = "twice-normed"


@bl.part("feed_forward", "twice-fed")
class TwiceFed(bl.parts.MLP):
    class Config(bl.parts.MLP.Config):
        kind: Literal["twice-fed"] = "twice-fed"


@bl.part("attention", "twice-mixed")
class TwiceMixed(bl.parts.CausalAttention):
    class Config(bl.parts.CausalAttention.Config):
        kind: Literal["twice-mixed"] = "twice-mixed"


@bl.part("residual", "twice-added")
class TwiceAdded(bl.parts.Add):
    class Config(bl.parts.Add.Config):
        kind: Literal["twice-added"] = "twice-added"


@bl.part("positions", "twice-turned")
class TwiceTurned(bl.parts.Rotary):
    class Config(bl.parts.Rotary.Config):
        kind: Literal["twice-turned"] = "twice-turned"


DYNAMIC = {"kind": "dynamic", "original_context": 64}


@pytest.mark.parametrize(
    ("module", "config", "positions", "words"),
    [
        (plain(), ATTENTION, bl.parts.Alibi.Config(), "positions kind 'alibi'"),
        (plain(), ATTENTION, TwiceTurned.Config(), "positions kind 'twice-turned'"),
        (plain(rotary="halves"), ATTENTION, Rotary(scaling=DYNAMIC), "scaling kind 'dynamic'"),
        (plain(), Causal(n_heads=4, window=4096), None, "window: 4096 is more than"),
        (plain(), TwiceMixed.Config(n_heads=4), None, "attention kind 'twice-mixed'"),
        (learners.Norm(D), TwiceNorm.Config(), None, "norm kind 'twice-normed'"),
        (learners.FeedForward(D), TwiceFed.Config(), None, "feed_forward kind 'twice-fed'"),
    ],
)
def test_a_part_that_the_comparison_cannot_say_is_refused(
    module: nn.Module,
    config: bl.parts.PartConfig,
    positions: bl.parts.PositionsConfig | None,
    words: str,
) -> None:
    with pytest.raises(BlocklabError, match=words):
        bl.compare(module, config, positions=positions)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block.residual": {"kind": "twice-added"}}, "residual kind 'twice-added'"),
        ({"positions": {"kind": "twice-turned"}}, "positions kind 'twice-turned'"),
        ({"positions": {"kind": "alibi"}}, "positions kind 'alibi'"),
        ({"block.norm": {"kind": "twice-normed"}}, "norm kind 'twice-normed'"),
        ({"block.feed_forward": {"kind": "twice-fed"}}, "feed_forward kind 'twice-fed'"),
    ],
)
def test_a_model_with_such_a_part_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(BlocklabError, match=words):
        bl.compare(learners.GPT(SIZES), gpt(**changes))
