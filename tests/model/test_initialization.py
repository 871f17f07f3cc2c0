"""First values: the std of every role, and the loss they start from."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import blocklab as bl
from blocklab.model.config import ModelConfig

VOCABULARY = 1024


def small(preset: str, **sizes: Any) -> ModelConfig:
    fixed = {"d_model": 128, "n_heads": 4, "n_layers": 3, "context_length": 64}
    return bl.presets.preset(preset)(**{**fixed, "vocab_size": VOCABULARY, **sizes})


def loss_at_step_0(config: ModelConfig) -> float:
    """Against targets drawn at random: what no model can know at the start."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (8, 64), generator=generator)
    targets = torch.randint(0, VOCABULARY, (8, 64), generator=generator)
    with torch.no_grad():
        logits = bl.Transformer(config, seed=0).eval()(tokens)
    return float(F.cross_entropy(logits.flatten(0, 1), targets.flatten()))


def implied(config: ModelConfig) -> float:
    """ln V + σ²/2, where each logit sums d_model products of unit features and the head's std."""
    variance = config.d_model * config.initialization.output_std() ** 2
    return math.log(VOCABULARY) + variance / 2


@pytest.mark.parametrize("name", bl.presets.names())
def test_every_preset_starts_at_the_loss_its_head_implies(name: str) -> None:
    assert loss_at_step_0(small(name)) == pytest.approx(implied(small(name)), abs=0.1)


VARIANTS = {
    "layer norm": {"block.norm.kind": "layer"},
    "plain mlp": {"block.feed_forward": {"kind": "mlp", "activation": "gelu_tanh"}},
    "relu2": {"block.feed_forward.activation": "relu2"},
    "post": {"block.placement": "post"},
    "output": {"block.placement": "output"},
    "sandwich": {"block.placement": "sandwich"},
    "no residual": {"block.residual.kind": "none"},
    "rezero": {"block.residual": {"kind": "scaled", "scale": 0.0, "learned": True}},
    "one norm": {"block.parallel": "one_norm"},
    "two norms": {"block.parallel": "two_norms"},
    "grouped": {"block.attention.n_kv_heads": 1},
    "qk norm": {"block.attention.qk_norm": {"kind": "rms"}},
    "window": {"block.attention.window": 8},
    "no positions": {"positions": "none"},
    "alibi": {"positions": "alibi"},
    "learned": {"positions": "learned"},
    "sinusoidal": {"positions": "sinusoidal"},
    "head bias": {"head.bias": True},
    "zero writers": {"initialization.residual_writers": "zero"},
    "small init": {"initialization": {"kind": "normal", "std": 0.02}},
    "depth init": {"initialization": {"kind": "depth", "std": 0.02}},
    "wide head": {"initialization.head_std": 0.08},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_starts_at_the_loss_its_head_implies(variant: str) -> None:
    config = small("modern").with_changes(VARIANTS[variant])
    assert loss_at_step_0(config) == pytest.approx(implied(config), abs=0.1)


@pytest.mark.parametrize("kind", ["normal", "fan_in"])
def test_a_tied_table_is_drawn_as_a_head_and_looked_up_at_the_embeddings_std(kind: str) -> None:
    config = small("modern", tie_embeddings=True).with_changes(
        {"initialization": {"kind": kind, "embedding_std": 1.0, "head_std": 0.02}}
    )
    model = bl.Transformer(config, seed=0)
    assert model.head.weight.std().item() == pytest.approx(0.02, rel=0.02)
    looked_up = model.embedding(torch.arange(VOCABULARY)) * model.embedding_scale
    assert looked_up.std().item() == pytest.approx(1.0, rel=0.02)
    assert loss_at_step_0(config) == pytest.approx(implied(config), abs=0.1)


def drawn(initialization: dict[str, Any]) -> dict[str, float]:
    """Std of each parameter of one model under this initialization."""
    config = small("gpt2", tie_embeddings=False).with_changes(
        {"initialization": initialization, "head.bias": True}
    )
    parameters = bl.Transformer(config, seed=0).named_parameters()
    return {name: p.std(correction=0).item() for name, p in parameters}


@pytest.mark.parametrize(
    ("initialization", "embedding", "matrix", "attention_writer", "feed_forward_writer", "head"),
    [
        ({"kind": "normal", "std": 0.05}, 0.05, 0.05, 0.05, 0.05, 0.05),
        ({"kind": "normal", "embedding_std": 0.7, "head_std": 0.3}, 0.7, 0.02, 0.02, 0.02, 0.3),
        ({"kind": "depth"}, 0.02, 0.02, 0.02 / 6**0.5, 0.02 / 6**0.5, 0.02),
        ({"kind": "depth", "residual_writers": "plain"}, 0.02, 0.02, 0.02, 0.02, 0.02),
        ({"kind": "fan_in"}, 1.0, 128**-0.5, 128**-0.5, 512**-0.5, 0.02),
        ({"kind": "fan_in", "gain": 2.0}, 1.0, 2 * 128**-0.5, 2 * 128**-0.5, 2 * 512**-0.5, 0.02),
        (
            {"kind": "fan_in", "residual_writers": "depth"},
            *(1.0, 128**-0.5, 768**-0.5, 3072**-0.5, 0.02),
        ),
        ({"kind": "fan_in", "residual_writers": "zero"}, 1.0, 128**-0.5, 0.0, 0.0, 0.02),
    ],
    ids=str,
)
def test_every_role_has_its_std(
    initialization: dict[str, Any],
    embedding: float,
    matrix: float,
    attention_writer: float,
    feed_forward_writer: float,
    head: float,
) -> None:
    std = drawn(initialization)
    expected = {
        "embedding.weight": embedding,
        "positions.weight": embedding,
        "head.weight": head,
        "head.bias": 0.0,
        "final_norm.weight": 0.0,
        "final_norm.bias": 0.0,
    }
    for i in range(3):
        for name, value in {
            "norm.attention.weight": 0.0,
            "norm.feed_forward.bias": 0.0,
            "attention.qkv.weight": matrix,
            "attention.qkv.bias": 0.0,
            "attention.output.weight": attention_writer,
            "attention.output.bias": 0.0,
            "feed_forward.expand.weight": matrix,
            "feed_forward.expand.bias": 0.0,
            "feed_forward.contract.weight": feed_forward_writer,
            "feed_forward.contract.bias": 0.0,
        }.items():
            expected[f"blocks.{i}.{name}"] = value
    for name, value in expected.items():
        assert std[name] == pytest.approx(value, rel=0.04, abs=1e-9), name


def test_norms_start_as_the_identity_after_scaling() -> None:
    model = bl.Transformer(small("gpt2"), seed=0)
    assert torch.equal(model.final_norm.weight, torch.ones(128))
    offset = small("gpt2").with_changes({"block.norm.unit_offset": True})
    assert torch.equal(bl.Transformer(offset, seed=0).final_norm.weight, torch.zeros(128))


def test_an_embedding_std_that_a_stated_scale_would_hide_is_refused() -> None:
    tied = small("modern", tie_embeddings=True)
    message = (
        r"initialization\.embedding_std: 0\.7 is never reached: .* embedding\.scale, here 2\.0"
    )
    for first, second in (
        ({"embedding.scale": 2.0}, {"initialization.embedding_std": 0.7}),
        ({"initialization.embedding_std": 0.7}, {"embedding.scale": 2.0}),
        ({"embedding.scale": 2.0, "tie_embeddings": False}, {"tie_embeddings": True}),
    ):
        config = tied.with_changes(first)
        if "tie_embeddings" in first:
            config = config.with_changes({"initialization.embedding_std": 0.7})
        with pytest.raises(bl.BlocklabError, match=message):
            config.with_changes(second)


@pytest.mark.parametrize("scale", [None, 3.0])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("embedding_std", [None, 0.7])
def test_a_stated_scale_multiplies_what_was_drawn(
    scale: float | None, tied: bool, embedding_std: float | None
) -> None:
    if tied and scale is not None and embedding_std is not None:
        return  # refused
    config = small("gpt2", tie_embeddings=tied).with_changes(
        {
            "embedding.scale": scale,
            "initialization": {"head_std": 0.05, "embedding_std": embedding_std},
        }
    )
    model = bl.Transformer(config, seed=0)
    table = 0.05 if tied else embedding_std or 0.02
    assert model.embedding.weight.std().item() == pytest.approx(table, rel=0.02)
    looked_up = embedding_std or 0.02 if scale is None else scale * table
    scaled = model.embedding.weight * model.embedding_scale
    assert scaled.std().item() == pytest.approx(looked_up, rel=0.02)
