"""Stretched rotations against transformers, their papers, and their own limits."""

import math
from types import SimpleNamespace

import pytest
import torch

import blocklab as bl
from blocklab.generation.cache import KeyValueCache
from blocklab.parts.positions import Rotary
from blocklab.parts.rotary_scaling import RotaryScaling

HEAD_DIM = 16
FACTORS = {"short": [1.0, 1.1, 1.3, 1.2] * 2, "long": [1.5, 2.0, 3.0, 4.0] * 2}
LONGROPE = {"kind": "longrope", "original_context": 8, "factor": 4.0, **FACTORS}


def tables(scaling: dict, length: int, base: float = 500.0) -> tuple[torch.Tensor, torch.Tensor]:
    part = Rotary.Config(base=base, scaling=RotaryScaling.parse(scaling)).build(64, 512)
    return part.tables(torch.arange(length), HEAD_DIM, torch.float64)


def angles(scaling: dict, length: int) -> torch.Tensor:
    """Frequencies, read off the place after the first."""
    cos, sin = tables(scaling, length)
    return torch.atan2(sin, cos)[1]


PLAIN = 500.0 ** -(torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)

THEIRS = {
    "linear": ({"kind": "linear", "factor": 3.0}, {"factor": 3.0}),
    "llama3": (
        {"kind": "llama3", "factor": 8.0, "original_context": 64},
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "yarn": (
        {"kind": "yarn", "factor": 4.0, "original_context": 64, "beta_fast": 8.0},
        {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0},
    ),
    "longrope": (
        LONGROPE,
        {
            "factor": 4.0,
            "original_max_position_embeddings": 8,
            "short_factor": FACTORS["short"],
            "long_factor": FACTORS["long"],
        },
    ),
    "dynamic": ({"kind": "dynamic", "factor": 3.0, "original_context": 8}, {"factor": 3.0}),
}


@pytest.mark.parametrize("length", [6, 30])
@pytest.mark.parametrize("kind", THEIRS)
def test_frequencies_and_sizes_are_those_of_transformers(kind: str, length: int) -> None:
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    ours, theirs = THEIRS[kind]
    config = SimpleNamespace(
        rope_parameters={"rope_type": kind, "rope_theta": 500.0, **theirs},
        head_dim=HEAD_DIM,
        max_position_embeddings=8,
        hidden_size=64,
        num_attention_heads=4,
        standardize_rope_params=lambda: None,
    )
    frequencies, size = rope.ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=length)
    cos, sin = tables(ours, length)
    torch.testing.assert_close((cos**2 + sin**2).sqrt()[1], torch.full((8,), size).double())
    torch.testing.assert_close(angles(ours, length), frequencies.double(), rtol=1e-5, atol=0)


def test_a_linear_scaling_divides_places() -> None:
    cos, _ = tables({"kind": "linear", "factor": 4.0}, 9)
    plain, _ = tables({"kind": "none"}, 3)
    torch.testing.assert_close(cos[8], plain[2])


def test_llama3_keeps_fast_frequencies_and_divides_slow_ones() -> None:
    scaling = {"kind": "llama3", "factor": 8.0, "original_context": 64}
    turns = 64 * PLAIN / (2 * math.pi)
    found = angles(scaling, 2)
    torch.testing.assert_close(found[turns > 4], PLAIN[turns > 4])
    torch.testing.assert_close(found[turns < 1], PLAIN[turns < 1] / 8)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert ((found < PLAIN) & (found > PLAIN / 8))[between].all()


def test_yarn_sharpens_attention_by_the_logarithm_of_its_factor() -> None:
    cos, sin = tables({"kind": "yarn", "factor": 4.0, "original_context": 64}, 3)
    size = 0.1 * math.log(4) + 1
    torch.testing.assert_close((cos**2 + sin**2).sqrt(), torch.full((3, 8), size).double())


def test_a_dynamic_base_leaves_short_sequences_alone_and_follows_each_ones_length() -> None:
    scaling = {"kind": "dynamic", "factor": 2.0, "original_context": 8}
    torch.testing.assert_close(angles(scaling, 8), PLAIN)
    growth = (2.0 * 20 / 8 - 1.0) ** (HEAD_DIM / (HEAD_DIM - 2))
    steps = torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM
    torch.testing.assert_close(angles(scaling, 20), (500.0 * growth) ** -steps)
    # In a padded batch each sequence turns as it would alone.
    part = Rotary.Config(base=500.0, scaling=RotaryScaling.parse(scaling)).build(64, 512)
    places = torch.stack((torch.arange(20), (torch.arange(20) - 12).clamp(min=0)))
    _, sin = part.tables(places, HEAD_DIM, torch.float64)
    _, alone = part.tables(torch.arange(8), HEAD_DIM, torch.float64)
    torch.testing.assert_close(sin[1, 12:], alone)


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"kind": "longrope", "short": [1.0], "long": [1.0]}, "short"),
        ({"kind": "longrope", "short": [1.0] * 8, "long": [0.0] * 8}, "long"),
        ({"kind": "llama3", "low_frequency": 4.0}, "high_frequency"),
        ({"kind": "yarn", "beta_fast": 1.0, "beta_slow": 1.0}, "beta_fast"),
        ({"kind": "yarn", "beta_slow": 33.0}, "beta_fast"),
    ],
)
def test_a_scaling_that_does_not_fit_is_refused_by_its_field(scaling, named) -> None:
    config = bl.presets.modern(d_model=32, n_heads=2)
    with pytest.raises(bl.BlocklabError, match=rf"positions\.scaling\.{named}"):
        config.with_changes({"positions.scaling": scaling})


def model(scaling: dict) -> bl.Transformer:
    config = bl.presets.modern(
        d_model=32, n_layers=2, n_heads=2, vocab_size=13, context_length=32
    ).with_changes({"positions.scaling": scaling, "initialization.gain": 2.0})
    return bl.Transformer(config, seed=0).double().eval()


DYNAMIC = {"kind": "dynamic", "factor": 4.0, "original_context": 8}


@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE])
def test_a_cache_whose_keys_would_be_turned_anew_is_refused(scaling) -> None:
    built = model(scaling)
    cache = KeyValueCache.of(built, 1, 20)
    tokens = torch.randint(13, (1, 12), generator=torch.Generator().manual_seed(0))
    built(tokens[:, :6], cache=cache)
    with pytest.raises(bl.BlocklabError, match=r"positions\.scaling"):
        built(tokens[:, 6:], cache=cache)


def test_a_long_rope_filled_beyond_its_original_context_may_grow() -> None:
    built = model(LONGROPE)
    cache = KeyValueCache.of(built, 1, 20)
    tokens = torch.randint(13, (1, 12), generator=torch.Generator().manual_seed(0))
    pieces = [built(tokens[:, :10], cache=cache), built(tokens[:, 10:], cache=cache)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), built(tokens), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE])
@pytest.mark.parametrize("length", [5, 11])
def test_generation_past_the_original_context_is_the_same_with_a_cache_and_without(
    scaling, length: int, padded: bool
) -> None:
    built = model(scaling)
    prompt = torch.randint(13, (2, length), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(prompt)
    mask[1, :3] = 0
    options = {"max_new_tokens": 12, "attention_mask": mask if padded else None}
    cached = bl.generate(built, prompt, use_cache=True, **options)
    assert torch.equal(cached, bl.generate(built, prompt, use_cache=False, **options))
