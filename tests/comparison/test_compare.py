"""Every common mistake is recognised by its name, and no right module is accused of one."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import blocklab as bl
from blocklab.errors import BlocklabError
from tests.comparison import learners

D = 24
LAYER = bl.parts.LayerNorm.Config()
RMS = bl.parts.RMSNorm.Config()
MLP = bl.parts.MLP.Config()
GATED = bl.parts.Gated.Config(d_ff=40)
ATTENTION = bl.parts.CausalAttention.Config(n_heads=4)
SIZES = SimpleNamespace(
    vocab_size=37, context_length=11, emb_dim=16, n_heads=2, n_layers=2, tied=False
)


def gpt(**sizes: object) -> bl.ModelConfig:
    return bl.presets.gpt2(
        d_model=16, n_heads=2, n_layers=2, vocab_size=37, context_length=11, dropout=0.0,
        tie_embeddings=False,
    ).with_changes(sizes)  # fmt: skip


NORM_MISTAKES = [
    "unbiased-variance",
    "eps-outside-root",
    "unbiased-and-eps-outside",
    "no-eps",
    "no-mean-subtraction",
    "mean-kept",
    "no-root",
    "wrong-axis",
    "shift-unused",
]
ROOT_MISTAKES = [
    "mean-subtracted",
    "sum-not-mean",
    "eps-outside-root",
    "gain-plus-one",
    "gain-unused",
    "other-eps",
]
FEED_FORWARD_MISTAKES = [
    "exact-gelu",
    "relu",
    "no-activation",
    "activation-at-the-end",
    "adds-its-input",
    "dropout-in-evaluation",
]
GATED_MISTAKES = ["gate-and-up-swapped", "sigmoid", "activated-after-gating", "sum-not-product"]
ATTENTION_MISTAKES = [
    "no-causal-mask",
    "mask-off-by-one",
    "mask-inverted",
    "mask-hides-itself",
    "mask-fills-zero",
    "mask-after-softmax",
    "no-scale",
    "scaled-by-d-model",
    "scaled-by-head-dim",
    "scale-inverted",
    "softmax-over-queries",
    "softmax-over-heads",
    "heads-not-split",
    "heads-not-merged",
    "heads-neither-split-nor-merged",
    "no-output-projection",
    "dropout-in-evaluation",
]
MODEL_MISTAKES = [
    "placement-post",
    "residual-missing",
    "residual-of-the-normed",
    "residual-missing-at-feed-forward",
    "feed-forward-first",
    "one-norm-for-both",
    "no-final-norm",
    "positions-missing",
    "positions-from-one",
    "embedding-scaled",
    "answers-probabilities",
    "exact-gelu",
    "mask-off-by-one",
    "no-scale",
    "unbiased-variance",
]


@pytest.mark.parametrize("mistake", NORM_MISTAKES)
def test_a_mistake_in_layer_norm_is_named(mistake: str) -> None:
    found = bl.compare(learners.Norm(D, mistake), LAYER)
    assert found.names == (mistake,)
    assert found.unexplained < 1e-9


@pytest.mark.parametrize("mistake", ROOT_MISTAKES)
def test_a_mistake_in_rms_norm_is_named(mistake: str) -> None:
    found = bl.compare(learners.RootNorm(D, mistake), RMS)
    assert found.names == (mistake,)


@pytest.mark.parametrize("mistake", FEED_FORWARD_MISTAKES)
def test_a_mistake_in_the_feed_forward_is_named(mistake: str) -> None:
    assert bl.compare(learners.FeedForward(D, mistake=mistake), MLP).names == (mistake,)


@pytest.mark.parametrize("mistake", GATED_MISTAKES)
def test_a_mistake_in_the_gated_feed_forward_is_named(mistake: str) -> None:
    assert bl.compare(learners.SwiGLU(D, 40, mistake), GATED).names == (mistake,)


@pytest.mark.parametrize("mistake", ATTENTION_MISTAKES)
def test_a_mistake_in_attention_is_named(mistake: str) -> None:
    found = bl.compare(learners.Attention(D, 4, mistake), ATTENTION)
    assert found.names == (mistake,)
    assert mistake in str(found)


@pytest.mark.parametrize(
    ("theirs", "ours", "mistake"),
    [
        ("pairs", {"interleaved": False}, "rotary-interleaved"),
        ("halves", {"interleaved": True}, "rotary-half-split"),
        ("", {}, "positions-missing"),
        ("halves", {"base": 500_000.0}, "rotary-base"),
        ("halves", {}, None),
        ("pairs", {"interleaved": True}, None),
    ],
)
def test_how_attention_rotates_is_named(theirs: str, ours: dict[str, object], mistake: str) -> None:
    positions = bl.parts.Rotary.Config(**ours)
    found = bl.compare(learners.Attention(D, 4, rotary=theirs), ATTENTION, positions=positions)
    assert found.names == ((mistake,) if mistake else ())
    assert found.agrees == (mistake is None)


@pytest.mark.parametrize("mistake", MODEL_MISTAKES)
def test_a_mistake_in_a_whole_model_is_named(mistake: str) -> None:
    found = bl.compare(learners.GPT(SIZES, mistake), gpt())
    assert found.names == (mistake,)
    assert found.explained


@pytest.mark.parametrize(
    ("module", "config"),
    [
        (learners.Norm(D), LAYER),
        (nn.LayerNorm(D), LAYER),
        (learners.RootNorm(D), RMS),
        (nn.RMSNorm(D, eps=1e-6), RMS),
        (learners.FeedForward(D), MLP),
        (learners.ConvMLP(D), MLP),
        (learners.SwiGLU(D, 40), GATED),
        (learners.Attention(D, 4), ATTENTION),
        (
            learners.Attention(D, 4, n_kv_heads=2),
            bl.parts.CausalAttention.Config(n_heads=4, n_kv_heads=2),
        ),
        (learners.FusedAttention(D, 4), ATTENTION),
        (learners.FusedAttention(D, 4, order="kqv"), ATTENTION),
        (learners.FusedAttention(D, 4, by_head=True), ATTENTION),
        (
            learners.ListOfHeads(D, 4),
            bl.parts.CausalAttention.Config(n_heads=4, qkv_bias=False),
        ),
        (learners.GPT(SIZES), gpt()),
        (learners.GPT(SimpleNamespace(**vars(SIZES) | {"tied": True})), gpt(tie_embeddings=True)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_right_module_agrees_whatever_its_layout(
    module: nn.Module, config: bl.ModelConfig
) -> None:
    found = bl.compare(module, config)
    assert found.agrees, str(found)
    assert found.difference < 1e-12
    assert found.gradient_difference < 1e-9
    assert "agree" in str(found)


@pytest.mark.parametrize(
    ("config", "sizes", "positions"),
    [
        (bl.parts.LayerNorm.Config(eps=1e-3, unit_offset=True), (D,), None),
        (bl.parts.RMSNorm.Config(bias=True), (D,), None),
        (bl.parts.MLP.Config(activation="relu2", bias=False), (D,), None),
        (bl.parts.Gated.Config(d_ff=16, activation="gelu", bias=True), (D,), None),
    ],
)
def test_our_own_parts_agree_with_the_functions_they_are_compared_by(
    config: bl.parts.PartConfig, sizes: tuple[int, ...], positions: None
) -> None:
    assert bl.compare(config.build(*sizes), config).agrees


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"block.placement": "post"},
        {"block.residual.kind": "none"},
        {"positions": {"kind": "rotary"}, "block.norm.kind": "rms"},
        {"positions": {"kind": "rotary", "interleaved": True, "fraction": 0.5}},
        {"positions": {"kind": "none"}, "tie_embeddings": True},
        {"block.feed_forward": {"kind": "gated", "d_ff": 24}, "block.attention.n_kv_heads": 1},
        {"block.attention.window": 2, "block.attention.softcap": 3.0, "final_norm": "none"},
    ],
)
def test_our_own_models_agree_with_the_functions_they_are_compared_by(
    changes: dict[str, object],
) -> None:
    config = gpt(**changes)
    found = bl.compare(bl.Transformer(config, seed=0), config)
    assert found.agrees, str(found)


def test_our_sinusoidal_positions_are_those_of_the_formula() -> None:
    config = gpt(positions={"kind": "sinusoidal"})
    found = bl.compare(bl.Transformer(config, seed=0), config)
    assert not found.mistakes
    assert found.difference < 1e-6  # Their table is made in float32.


def test_two_mistakes_at_once_are_both_named() -> None:
    class Both(learners.SwiGLU):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gate, up = self.gate_proj(x), self.up_proj(x)
            return self.down_proj(gate * torch.nn.functional.gelu(up))

    assert set(bl.compare(Both(D, 40), GATED).names) == {"exact-gelu", "gate-and-up-swapped"}


def test_a_head_of_its_own_is_no_tied_head_and_the_other_way_round() -> None:
    own, tied = learners.GPT(SIZES), learners.GPT(SimpleNamespace(**vars(SIZES) | {"tied": True}))
    assert bl.compare(own, gpt(tie_embeddings=True)).names == ("head-not-tied",)
    found = bl.compare(tied, gpt())
    assert not found.agrees
    assert "head.weight" in str(found)


def test_missing_and_surplus_parameters_are_said() -> None:
    found = bl.compare(learners.SwiGLU(D, 40), bl.parts.Gated.Config(d_ff=40, bias=True))
    assert not found.agrees
    assert not found.mistakes
    assert "lacks contract.bias, gate.bias, up.bias" in str(found)
    found = bl.compare(learners.Norm(D), bl.parts.LayerNorm.Config(bias=False))
    assert "has bias, which ours has not" in str(found)


def test_another_hidden_width_is_said() -> None:
    found = bl.compare(learners.FeedForward(D, 50), MLP)
    assert "hidden width 50; ours 96" in str(found)
    assert not found.agrees


def test_another_hidden_width_of_a_whole_model_is_said() -> None:
    found = bl.compare(learners.GPT(SIZES), gpt(**{"block.feed_forward.d_ff": 40}))
    assert "hidden width 64; ours 40" in str(found)
    assert not found.mistakes


@pytest.mark.parametrize("heads", [1, 2])
def test_another_number_of_heads_is_named(heads: int) -> None:
    found = bl.compare(learners.Attention(D, heads), ATTENTION)
    assert found.names == ("other-number-of-heads",)
    assert f"has {heads} head" in str(found)


def test_a_module_that_computes_in_float32_is_told_so() -> None:
    class Single(learners.RootNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.float()).to(x.dtype)

    found = bl.compare(Single(D), RMS)
    assert found.agrees
    assert 1e-9 < found.difference < 1e-6
    assert "somewhere yours computes in float32" in str(found)


def test_torchs_own_attention_is_told_that_it_has_no_mask() -> None:
    found = bl.compare(nn.MultiheadAttention(D, 4, batch_first=True), ATTENTION)
    assert found.names == ("no-causal-mask",)
    assert found.parameters["key.weight"] == "in_proj_weight, rows of the key"


def test_what_no_known_mistake_explains_is_not_given_a_name() -> None:
    class Odd(learners.Attention):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + x.flip(1).sin())

    found = bl.compare(Odd(D, 4), ATTENTION)
    assert not found.explained
    assert not found.mistakes
    assert "None of the known mistakes" in str(found)
    assert "see later ones" in str(found)


def test_the_module_is_left_as_it_was() -> None:
    module = learners.GPT(SIZES).train()
    before = [p.detach().clone() for p in module.parameters()]
    bl.compare(module, gpt())
    assert module.training
    for parameter, old in zip(module.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
        assert parameter.grad is None


def test_the_parameter_map_says_where_each_was_found() -> None:
    found = bl.compare(learners.FusedAttention(D, 4, order="kqv"), ATTENTION)
    assert found.parameters["query.weight"] == "c_attn, rows of the query"
    assert found.parameters["output.weight"] == "c_proj"
    found = bl.compare(learners.ConvMLP(D), MLP)
    assert found.parameters["expand.weight"] == "c_fc transposed"


@pytest.mark.parametrize(
    ("module", "config", "words"),
    [
        (nn.Linear(8, 3), MLP, "no input .* gives back"),
        (nn.Linear(8, 8), ATTENTION, "none of its parameters fit"),
        (nn.Identity(), bl.parts.NoNorm.Config(), "no input|computes nothing"),
        (nn.LayerNorm(8), bl.parts.DynamicTanh.Config(), "cannot be compared"),
        (learners.Norm(8), gpt(), "no list of blocks"),
    ],
)
def test_what_cannot_be_compared_is_said(
    module: nn.Module, config: bl.ModelConfig, words: str
) -> None:
    with pytest.raises(BlocklabError, match=words):
        bl.compare(module, config)
