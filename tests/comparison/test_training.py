"""Equal outputs are not enough: what cannot train, or trains otherwise, is told so in words."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blocklab as bl
from tests.comparison import learners
from tests.comparison.test_compare import ATTENTION, GATED, LAYER, MLP, RMS, SIZES, D, gpt


class CutRoot(learners.RootNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.g * x * (x.detach().pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()


class CutNorm(learners.Norm):
    def __init__(self, d: int, where: str) -> None:
        super().__init__(d)
        self.where = where

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        if self.where in ("mean", "both"):
            mean = mean.detach()
        if self.where in ("variance", "both"):
            variance = variance.detach()
        y = (x - mean) / (variance + 1e-5).sqrt()
        return self.scale * (y.detach() if self.where == "normalised" else y) + self.shift


class NumbersOnly(learners.RootNorm):
    """Its statistic goes through Python's numbers, which carry no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        square = torch.tensor(x.pow(2).mean(-1, keepdim=True).tolist(), dtype=x.dtype)
        return self.g * x * (square + 1e-6).rsqrt()


class CutFeedForward(learners.FeedForward):
    def forward(self, x: Tensor) -> Tensor:
        expand, act, contract = self.layers
        return contract(act(expand(x).detach()))


class CutGate(learners.SwiGLU):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            gate = F.silu(self.gate_proj(x))
        return self.down_proj(gate * self.up_proj(x))


class CutCache(learners.FusedAttention):
    """Keys and values are kept without their graph, as a cache keeps them."""

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        parts = self.c_attn(x).view(b, t, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts[0], parts[1].detach(), parts[2].detach()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, d))


class CutWeights(learners.Attention):
    def weighted(self, scores: Tensor) -> Tensor:
        return super().weighted(scores).detach()


@pytest.mark.parametrize(
    ("module", "config", "mistake"),
    [
        (CutRoot(D), RMS, "statistic-detached"),
        (NumbersOnly(D), RMS, "statistic-detached"),
        (CutNorm(D, "mean"), LAYER, "mean-detached"),
        (CutNorm(D, "variance"), LAYER, "statistic-detached"),
        (CutNorm(D, "both"), LAYER, "both-statistics-detached"),
        (CutNorm(D, "normalised"), LAYER, "normalised-detached"),
        (CutFeedForward(D), MLP, "hidden-detached"),
        (CutGate(D, 40), GATED, "gate-detached"),
        (CutCache(D, 4), ATTENTION, "keys-and-values-detached"),
        (CutWeights(D, 4), ATTENTION, "weights-detached"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_where_a_part_cuts_its_graph_is_named(
    module: nn.Module, config: bl.parts.PartConfig, mistake: str
) -> None:
    found = bl.compare(module, config)
    assert found.names == (mistake,)
    assert found.difference < 1e-12
    assert found.gradient_difference < 1e-9
    assert not found.agrees
    assert "give the same outputs, but differ" in str(found)
    assert "from the graph" in str(found)


class CutBlock(learners.Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.att(self.norm1(x))
        return x.detach() + self.ff(self.norm2(x))


class CutGPT(learners.GPT):
    def __init__(self, where: str) -> None:
        super().__init__(SIZES)
        self.where = where
        if where == "residual":
            self.trf_blocks = nn.Sequential(*(CutBlock(16, 2) for _ in range(2)))
        norms = [n for b in self.trf_blocks for n in (b.norm1, b.norm2)] + [self.final_norm]
        for norm in norms if where == "every norm" else norms[:-1] if where == "norms" else []:
            norm.forward = CutNorm.forward.__get__(norm)
            norm.where = "variance"

    def forward(self, tokens: Tensor) -> Tensor:
        x, places = self.tok_emb(tokens), self.pos_emb.weight[: tokens.shape[1]]
        x = x.detach() + places if self.where == "embedding" else x + places
        for block in self.trf_blocks:
            x = block(x.detach() if self.where == "stream" else x)
        return self.out_head(self.final_norm(x))


@pytest.mark.parametrize(
    ("where", "mistake"),
    [
        ("residual", "residual-at-feed-forward-detached"),
        ("every norm", "statistic-detached"),
        ("norms", "statistic-detached"),
        ("embedding", "embedding-detached"),
        ("stream", "stream-into-blocks-detached"),
    ],
)
def test_where_a_whole_model_cuts_its_graph_is_named(where: str, mistake: str) -> None:
    found = bl.compare(CutGPT(where), gpt())
    assert found.names == (mistake,)
    assert not found.agrees


def test_a_cut_in_one_block_alone_is_told_by_the_parameters_that_it_reaches() -> None:
    model = learners.GPT(SIZES)
    model.trf_blocks[1].norm1 = CutNorm(16, "variance")
    found = bl.compare(model, gpt())
    assert not found.agrees
    assert not found.mistakes
    (note,) = found.notes
    assert note.startswith("gives other gradients to")
    # What comes after the cut has the gradients that it should have.
    assert not {"trf_blocks.1.ff", "final_norm", "out_head"} & set(note.split())


class StraightThrough(torch.autograd.Function):
    """The gradient of a ReLU that nobody meant."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return F.relu(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


class Refusing(StraightThrough):
    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        raise TypeError("not today")


class OwnBackward(learners.FeedForward):
    def __init__(self, d: int, function: type[torch.autograd.Function]) -> None:
        super().__init__(d)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        expand, _, contract = self.layers
        return contract(self.function.apply(expand(x)))


def test_a_wrong_backward_pass_of_its_own_is_seen() -> None:
    relu = bl.parts.MLP.Config(activation="relu")
    found = bl.compare(OwnBackward(D, StraightThrough), relu)
    assert not found.agrees
    (note,) = found.notes
    assert "layers.0.weight" in note
    assert "the input" in note
    assert "layers.2" not in note
    found = bl.compare(OwnBackward(D, Refusing), relu)
    assert found.names == ("backward-fails",)
    assert "cannot be trained: not today" in str(found)


class UnderNoGrad(learners.RootNorm):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class SwitchesOff(learners.RootNorm):
    def forward(self, x: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        return super().forward(x)


class WholeUnderNoGrad(learners.GPT):
    @torch.no_grad()
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens)


@pytest.mark.parametrize(
    ("module", "config"),
    [(UnderNoGrad(D), RMS), (SwitchesOff(D), RMS), (WholeUnderNoGrad(SIZES), gpt())],
    ids=lambda value: type(value).__name__,
)
def test_an_output_without_a_graph_is_named(module: nn.Module, config: bl.ModelConfig) -> None:
    found = bl.compare(module, config)
    assert found.names == ("no-graph",)
    assert not found.agrees
    assert found.gradient_difference == float("inf")
    assert "nothing in it trains" in str(found)
    assert torch.is_grad_enabled()


def test_frozen_parameters_are_named() -> None:
    module = learners.FeedForward(D)
    module.layers[0].weight.requires_grad_(False)
    found = bl.compare(module, MLP)
    assert found.names == ("frozen-parameters",)
    assert "does not train layers.0.weight: requires_grad is False there" in str(found)
    assert found.gradient_difference < 1e-9
    assert not module.layers[0].weight.requires_grad
    assert bl.compare(module.requires_grad_(True), MLP).agrees


def test_a_module_that_is_frozen_as_a_whole_is_told_so() -> None:
    found = bl.compare(learners.GPT(SIZES).requires_grad_(False), gpt())
    assert found.names == ("frozen-parameters",)
    assert "does not train any of its parameters" in str(found)


def test_a_frozen_table_of_a_model_is_named_with_its_path() -> None:
    model = learners.GPT(SIZES)
    model.pos_emb.weight.requires_grad_(False)
    found = bl.compare(model, gpt())
    assert found.names == ("frozen-parameters",)
    assert "pos_emb.weight" in str(found)


class AddsInPlace(learners.Block):
    def forward(self, x: Tensor) -> Tensor:
        x += self.att(self.norm1(x))
        x += self.ff(self.norm2(x))
        return x


class ActivatesInPlace(learners.FeedForward):
    def forward(self, x: Tensor) -> Tensor:
        expand, _, contract = self.layers
        hidden = torch.sigmoid(expand(x))
        F.relu(hidden, inplace=True)
        return contract(hidden)


def test_an_operation_in_place_that_breaks_training_is_named_with_what_to_write() -> None:
    model = learners.GPT(SIZES)
    model.trf_blocks = nn.Sequential(*(AddsInPlace(16, 2) for _ in range(2)))
    found = bl.compare(model, gpt())
    assert found.names == ("overwrites-what-backward-needs",)
    assert "(x += …)" in str(found)
    assert "write x = x + …" in str(found)
    found = bl.compare(ActivatesInPlace(D), MLP)
    assert found.names == ("sigmoid", "overwrites-what-backward-needs")
    assert "relu(inplace=True)" in str(found)


def test_an_operation_in_place_that_harms_nothing_is_no_mistake() -> None:
    class Harmless(learners.FeedForward):
        def forward(self, x: Tensor) -> Tensor:
            expand, _, contract = self.layers
            return contract(F.relu(expand(x), inplace=True))

    assert bl.compare(Harmless(D), bl.parts.MLP.Config(activation="relu")).agrees


class ThroughNumpy(learners.RootNorm):
    def forward(self, x: Tensor) -> Tensor:
        square = x.pow(2).mean(-1, keepdim=True)
        return self.g * x / torch.from_numpy((square + 1e-6).numpy() ** 0.5)


def test_what_fails_only_while_gradients_are_recorded_is_told_in_words() -> None:
    found = bl.compare(ThroughNumpy(D), RMS)
    assert found.names == ("backward-fails",)
    assert "cannot be trained: ThroughNumpy fails" in str(found)


def test_a_gradient_that_is_not_finite_is_no_agreement() -> None:
    class Broken(learners.RootNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 0 * (x - x).sqrt()

    found = bl.compare(Broken(D), RMS)
    assert found.difference < 1e-12
    assert not found.agrees
    assert "gradient that is not finite to the input" in str(found)


def test_half_precision_at_the_end_and_sparse_gradients_are_no_tracebacks() -> None:
    class Single(learners.FeedForward):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).float()

    assert bl.compare(Single(D), MLP).agrees
    model = learners.GPT(SIZES)
    model.tok_emb = nn.Embedding(37, 16, sparse=True)
    assert bl.compare(model, gpt()).agrees


def test_a_cut_is_named_beside_a_parameter_that_ours_has_not() -> None:
    class Warm(CutWeights):
        def __init__(self) -> None:
            super().__init__(D, 4)
            self.warmth = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.warmth * super().forward(x)

    found = bl.compare(Warm(), ATTENTION)
    assert found.names == ("weights-detached",)
    assert "has warmth (), which ours has not" in str(found)
    assert "other gradients" not in str(found)


def test_a_softmax_in_float32_has_no_other_gradients() -> None:
    class Single(learners.Attention):
        def weighted(self, scores: Tensor) -> Tensor:
            return super().weighted(scores.float()).to(scores.dtype)

    found = bl.compare(Single(D, 4), ATTENTION)
    assert found.agrees, str(found)
    assert "somewhere yours computes in float32" in str(found)
