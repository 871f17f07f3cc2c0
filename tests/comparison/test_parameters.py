"""Agreement is of parameters too: their roles, shapes and number; and what is said of it is so."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blocklab as bl
from blocklab.comparison.diagnosis import _hypotheses, _tried
from blocklab.comparison.learner import Learner
from blocklab.comparison.subject import subject_of
from blocklab.errors import BlocklabError
from tests.comparison import learners
from tests.comparison.test_compare import ATTENTION, GATED, LAYER, MLP, RMS, SIZES, D, gpt


class ShiftIsGain(learners.Norm):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (D,), self.shift, self.scale)


class Exchanged(learners.Attention):
    """Two of its maps do each other's work; with queries and keys, its scores are k @ q.T."""

    def __init__(self, one: str, other: str, mistake: str = "") -> None:
        super().__init__(D, 4, mistake)
        self.pair = one, other

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.pair
        meant = copy.copy(self)
        swapped = {one: getattr(self, other), other: getattr(self, one)}
        meant._modules = self._modules | swapped
        return learners.Attention.forward(meant, x)


@pytest.mark.parametrize(
    ("module", "config", "words"),
    [
        (ShiftIsGain(D), LAYER, "shift as the gain, scale as the shift"),
        (
            Exchanged("W_query", "W_key"),
            ATTENTION,
            "W_key as the query, W_query as the key (are its scores k @ q.T",
        ),
        (Exchanged("W_key", "W_value"), ATTENTION, "W_value as the key, W_key as the value"),
    ],
    ids=["gain and shift", "k @ q.T", "keys and values"],
)
def test_parameters_in_other_roles_than_their_names_say_are_no_agreement(
    module: nn.Module, config: bl.parts.PartConfig, words: str
) -> None:
    found = bl.compare(module, config)
    assert found.names == ("roles-exchanged",)
    assert not found.agrees
    assert found.difference > 0.1
    assert found.unexplained < 1e-12
    assert words in str(found)
    assert "outputs differ by up to" in str(found)
    assert "float32" not in str(found)


def test_exchanged_roles_are_told_beside_another_mistake() -> None:
    found = bl.compare(Exchanged("W_key", "W_value", "no-scale"), ATTENTION)
    assert found.names == ("roles-exchanged", "no-scale")


def test_names_that_say_nothing_contradict_nothing() -> None:
    class Nameless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.t, self.s = nn.Parameter(torch.zeros(D)), nn.Parameter(torch.ones(D))

        def forward(self, x: Tensor) -> Tensor:
            return F.layer_norm(x, (D,), self.s, self.t)

    found = bl.compare(Nameless(), LAYER)
    assert found.agrees, str(found)
    assert found.difference < 1e-12
    assert found.parameters == {"weight": "s", "bias": "t"}


def test_a_name_that_only_its_shape_contradicts_is_no_mistake() -> None:
    class Misnamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

        def forward(self, x: Tensor) -> Tensor:
            return self.up(F.gelu(self.down(x), approximate="tanh"))

    assert bl.compare(Misnamed(), MLP).agrees


class NamedNorms(learners.Block):
    """Norms under the names that Llama's have in Hugging Face's code."""

    def __init__(self, d: int, n_heads: int, exchanged: bool) -> None:
        super().__init__(d, n_heads)
        self.exchanged = exchanged
        self.input_layernorm, self.post_attention_layernorm = self.norm1, self.norm2
        del self.norm1, self.norm2

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.input_layernorm, self.post_attention_layernorm
        if self.exchanged:
            first, second = second, first
        x = x + self.att(first(x))
        return x + self.ff(second(x))


def test_the_norm_after_attention_is_the_feed_forwards() -> None:
    model = learners.GPT(SIZES)
    model.trf_blocks = nn.Sequential(*(NamedNorms(16, 2, False) for _ in range(2)))
    found = bl.compare(model, gpt())
    assert found.agrees, str(found)
    assert found.difference < 1e-12
    model.trf_blocks = nn.Sequential(*(NamedNorms(16, 2, True) for _ in range(2)))
    found = bl.compare(model, gpt())
    assert found.names == ("roles-exchanged",)
    assert "post_attention_layernorm as the attention's norm" in str(found)


def test_a_small_difference_in_float64_is_not_blamed_on_float32() -> None:
    class Rounded(learners.FeedForward):
        def forward(self, x: Tensor) -> Tensor:
            expand, _, contract = self.layers
            h = expand(x)
            return contract(0.5 * h * (1 + torch.tanh(0.797884 * (h + 0.044715 * h**3))))

    found = bl.compare(Rounded(D), MLP)
    assert found.agrees
    assert found.difference > 1e-9
    assert "float32" not in str(found)
    assert "a constant or a table of yours is rounded" in str(found)


def test_a_mask_that_lets_a_little_through_is_no_agreement() -> None:
    class Leaking(learners.Attention):
        def weighted(self, scores: Tensor) -> Tensor:
            t = scores.shape[-1]
            return scores.masked_fill(torch.ones(t, t).triu(1).bool(), -22.0).softmax(-1)

    found = bl.compare(Leaking(D, 4), ATTENTION)
    assert 1e-9 < found.difference < 2e-6
    assert not found.agrees
    assert "lets a position see later ones" in str(found)


class OneGain(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()


@pytest.mark.parametrize("shape", [(1,), ()])
def test_one_gain_for_all_dimensions_is_no_agreement(shape: tuple[int, ...]) -> None:
    for width in (None, D):
        found = bl.compare(OneGain(shape), RMS, d_model=width)
        assert not found.agrees
        assert found.difference < 1e-12
        assert f"has w of shape {shape} where weight of ours has ({width or 48},)" in str(found)


def test_one_gain_in_the_norms_of_a_model_is_no_agreement() -> None:
    config = gpt(**{"block.norm.kind": "rms"})
    model = bl.Transformer(config, seed=0)
    model.final_norm = OneGain((1,))
    found = bl.compare(model, config)
    assert not found.agrees
    assert "of shape (1,) where final_norm.weight of ours has (16,)" in str(found)


def test_a_gain_with_dimensions_of_one_in_front_is_the_same_gain() -> None:
    assert bl.compare(OneGain((1, 1, D)), RMS).agrees


def test_positions_with_a_dimension_of_one_in_front_are_the_same_positions() -> None:
    class Raw(learners.GPT):
        def __init__(self) -> None:
            super().__init__(SIZES)
            self.pos_emb = nn.Parameter(torch.zeros(1, 11, 16))

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.tok_emb(tokens) + self.pos_emb[:, : tokens.shape[1]]
            return self.out_head(self.final_norm(self.trf_blocks(x)))

    found = bl.compare(Raw(), gpt())
    assert found.agrees, str(found)


class Surplus(nn.Module):
    """A right module, and a parameter that ours has not."""

    def __init__(self, inner: nn.Module, extra: nn.Module) -> None:
        super().__init__()
        self.inner, self.extra = inner, extra

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@pytest.mark.parametrize(
    ("inner", "config"),
    [
        (learners.Norm(D), LAYER),
        (learners.FeedForward(D), MLP),
        (learners.SwiGLU(D, 40), GATED),
        (learners.Attention(D, 4), ATTENTION),
        (learners.FusedAttention(D, 4), ATTENTION),
        (learners.GPT(SIZES), gpt()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_unused_parameter_is_no_agreement(inner: nn.Module, config: bl.ModelConfig) -> None:
    found = bl.compare(Surplus(inner, nn.Linear(5, 3)), config)
    assert not found.agrees
    assert not found.mistakes
    assert "has extra.bias (3,), extra.weight (3, 5), which ours has not" in str(found)
    assert bl.compare(Surplus(inner, nn.ReLU()), config).agrees


def test_a_parameter_that_is_neutral_at_first_is_surplus_and_not_unexplained() -> None:
    class Warm(learners.Attention):
        def __init__(self) -> None:
            super().__init__(D, 4)
            self.warmth = nn.Parameter(torch.ones(4, 1, 1))
            self.seen = nn.Parameter(torch.ones(8, 8).tril())

        def weighted(self, scores: Tensor) -> Tensor:
            t = scores.shape[-1]
            hidden = self.seen[:t, :t] == 0
            return (scores * self.warmth).masked_fill(hidden, float("-inf")).softmax(-1)

    found = bl.compare(Warm(), ATTENTION)
    assert found.difference < 1e-12
    assert not found.agrees
    assert "has seen (8, 8), warmth (4, 1, 1), which ours has not" in str(found)


def sinusoids(length: int, d: int) -> Tensor:
    angles = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(0, d, 2) / d)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


@pytest.mark.parametrize("kind", ["embedding", "parameter"])
def test_a_frozen_constant_that_ours_computes_is_no_difference(kind: str) -> None:
    class Fixed(learners.GPT):
        def __init__(self) -> None:
            super().__init__(SIZES)
            table = sinusoids(11, 16)
            if kind == "embedding":
                self.pos_emb = nn.Embedding.from_pretrained(table, freeze=True)
            else:
                del self.pos_emb
                table = nn.Parameter(table[None], requires_grad=False)
                self.pos_emb = table

        def forward(self, tokens: Tensor) -> Tensor:
            table = self.pos_emb.weight[None] if kind == "embedding" else self.pos_emb
            x = self.tok_emb(tokens) + table[:, : tokens.shape[1]]
            return self.out_head(self.final_norm(self.trf_blocks(x)))

    found = bl.compare(Fixed(), gpt(positions={"kind": "sinusoidal"}))
    assert found.agrees, str(found)
    assert bl.compare(Fixed(), gpt()).names == ("frozen-parameters",)


def test_a_gain_that_is_no_parameter_is_told_what_it_is() -> None:
    class Buffer(learners.RootNorm):
        def __init__(self, plain: bool) -> None:
            super().__init__(D)
            del self.g
            if plain:
                self.g = torch.ones(D)
            else:
                self.register_buffer("g", torch.ones(D))

    found = bl.compare(Buffer(plain=False), RMS)
    assert f"lacks weight, which ours has; g ({D},) is a buffer: only nn.Parameter is trained" in (
        str(found)
    )
    assert "is a plain tensor" in str(bl.compare(Buffer(plain=True), RMS))


def test_matrices_that_are_no_parameters_are_told_what_they_are() -> None:
    class Buffers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.randn(D, 4 * D)
            self.register_buffer("b", torch.randn(4 * D, D))

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x @ self.a) @ self.b

    with pytest.raises(BlocklabError, match=r"b \(96, 24\) is a buffer, a \(24, 96\) is a plain"):
        bl.compare(Buffers(), MLP, d_model=D)


def test_a_mask_kept_as_a_buffer_is_not_mistaken_for_a_missing_parameter() -> None:
    class Masked(learners.Attention):
        def __init__(self) -> None:
            super().__init__(D, 4)
            self.W_query = nn.Linear(D, D, bias=False)
            self.register_buffer("mask", torch.ones(8, 8).tril())

    assert "mask" not in str(bl.compare(Masked(), ATTENTION))


def test_parameters_that_are_shared_are_no_agreement() -> None:
    attention = learners.Attention(D, 4)
    attention.W_key = attention.W_query
    found = bl.compare(attention, ATTENTION)
    assert found.difference < 1e-12
    assert not found.agrees
    assert "has one parameter for query.weight and key.weight" in str(found)
    model = learners.GPT(SIZES)
    model.trf_blocks[1].norm1 = model.trf_blocks[0].norm1
    found = bl.compare(model, gpt())
    assert found.difference < 1e-12
    assert not found.agrees
    words = "one parameter for blocks.0.norm.attention.weight and blocks.1.norm.attention.weight"
    assert words in str(found)


def test_one_block_that_stands_in_the_list_twice_is_two_blocks_that_share() -> None:
    model = learners.GPT(SIZES)
    model.trf_blocks = nn.Sequential(model.trf_blocks[0], model.trf_blocks[0])
    found = bl.compare(model, gpt())
    assert found.difference < 1e-12
    assert not found.agrees
    assert "and 12 more; ours has one for each" in str(found)


def test_a_module_under_two_names_shares_nothing() -> None:
    attention = learners.Attention(D, 4)
    attention.all = nn.ModuleList([attention.W_query, attention.W_key, attention.W_value])
    assert bl.compare(attention, ATTENTION).agrees


def test_a_missing_output_projection_hides_no_other_missing_parameter() -> None:
    attention = learners.Attention(D, 4, "no-output-projection")
    attention.W_query = nn.Linear(D, D, bias=False)
    found = bl.compare(attention, ATTENTION)
    assert found.names == ("no-output-projection",)
    assert "lacks query.bias, which ours has" in str(found)


def test_the_nearest_that_is_told_is_the_nearest_of_all() -> None:
    class Mish(learners.FeedForward):
        def forward(self, x: Tensor) -> Tensor:
            expand, _, contract = self.layers
            return contract(F.mish(expand(x)))

    module = Mish(D)
    found = bl.compare(module, MLP)
    learner = Learner(module)
    subject = subject_of(learner, MLP, None, None)
    with torch.no_grad():
        output = learner(subject.probe)
    errors = [_tried(subject, *one, output).error for one in _hypotheses(subject)]
    assert not found.explained
    assert len(errors) > 50
    assert found.unexplained == pytest.approx(min(errors), rel=1e-12)
    assert found.unexplained < found.difference
