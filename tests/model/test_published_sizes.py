"""Published parameter counts, and GPT-2 against one written here in plain PyTorch."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blocklab as bl
from blocklab.errors import BlocklabError
from tests.model.strategies import randomized


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("gpt2", 124_439_808),
        ("gpt2_medium", 354_823_168),
        ("gpt2_large", 774_030_080),
        ("gpt2_xl", 1_557_611_200),
        ("llama_2_7b", 6_738_415_616),
        ("llama-2-70b", 68_976_648_192),
        ("llama_3_8b", 8_030_261_248),
        ("llama_3_70b", 70_553_706_496),
        ("mistral_7b", 7_241_732_096),
        ("llama", 6_738_415_616),
        ("mistral", 7_241_732_096),
    ],
)
def test_presets_have_the_published_number_of_parameters(name: str, total: int) -> None:
    assert bl.count(bl.presets.preset(name)()).total == total


def test_the_parameter_table_of_gpt2_is_the_published_one() -> None:
    table = bl.count(bl.presets.gpt2(tie_embeddings=False))
    block = {
        row.path.removeprefix("blocks.7."): row.parameters
        for row in table.rows
        if row.path.startswith("blocks.7.")
    }

    def summed(prefix: str) -> int:
        return sum(size for path, size in block.items() if path.startswith(prefix))

    assert summed("norm.") == 3_072
    assert summed("attention.qkv") == 1_771_776
    assert summed("attention.output") == 590_592
    assert summed("attention.") == 2_362_368
    assert summed("feed_forward.expand") == 2_362_368
    assert summed("feed_forward.contract") == 2_360_064
    assert summed("feed_forward.") == 4_722_432
    assert summed("") == 7_087_872
    assert table.subtotals["embedding"] == table.subtotals["head"] == 38_597_376
    assert table.subtotals["positions"] == 786_432
    assert table.subtotals["final_norm"] == 1_536
    assert sum(n for part, n in table.subtotals.items() if part.startswith("block.")) == 85_054_464
    assert table.total == 163_037_184
    assert round(table.bytes() / 1e6) == 652


def test_the_tied_gpt2_counts_its_table_once_but_its_products_twice() -> None:
    tied = bl.count(bl.presets.gpt2(tie_embeddings=True))
    untied = bl.count(bl.presets.gpt2(tie_embeddings=False))
    assert tied.bytes() == 497_759_232
    assert round(tied.rows[0].share, 2) == 0.31
    assert tied.matrix_parameters == untied.matrix_parameters
    assert tied.flops_per_token() == 6 * (84_934_656 + 38_597_376) + 12 * 12 * 768 * 1024


def test_counting_needs_a_vocabulary() -> None:
    with pytest.raises(BlocklabError, match="vocab_size is null"):
        bl.count(bl.presets.modern())


class PlainGPT2:
    """GPT-2 (Radford et al. 2019) as functions of a state dict, sharing no code with ours."""

    def __init__(self, weights: dict[str, Tensor], n_layers: int, n_heads: int) -> None:
        self.weights, self.n_layers, self.n_heads = weights, n_layers, n_heads

    def __call__(self, tokens: Tensor) -> Tensor:
        w, length = self.weights, tokens.shape[1]
        x = w["embedding.weight"][tokens] + w["positions.weight"][:length]
        for i in range(self.n_layers):
            x = x + self.attention(self.norm(x, f"blocks.{i}.norm.attention"), f"blocks.{i}")
            h = self.linear(
                self.norm(x, f"blocks.{i}.norm.feed_forward"), f"blocks.{i}.feed_forward.expand"
            )
            h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
            x = x + self.linear(h, f"blocks.{i}.feed_forward.contract")
        return self.norm(x, "final_norm") @ w["head.weight"].T

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attention(self, x: Tensor, block: str) -> Tensor:
        batch, length, d_model = x.shape
        heads = (batch, length, self.n_heads, d_model // self.n_heads)
        q, k, v = (
            part.reshape(heads).transpose(1, 2)
            for part in self.linear(x, f"{block}.attention.qkv").chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(heads[-1])
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        return self.linear(mixed.transpose(1, 2).flatten(2), f"{block}.attention.output")


@pytest.mark.parametrize("tied", [True, False])
def test_gpt2_is_the_plain_one_in_float64_with_its_gradients(tied: bool) -> None:
    model = randomized(
        bl.presets.gpt2(
            d_model=24, n_heads=4, n_layers=3, vocab_size=17, context_length=9, tie_embeddings=tied
        )
    )
    weights = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    if tied:
        weights["head.weight"] = weights["embedding.weight"]
    tokens = torch.randint(0, 17, (3, 9), generator=torch.Generator().manual_seed(0))
    targets = tokens.roll(-1, 1)
    ours, theirs = model(tokens), PlainGPT2(weights, 3, 4)(tokens)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
    F.cross_entropy(ours.flatten(0, 1), targets.flatten()).backward()
    F.cross_entropy(theirs.flatten(0, 1), targets.flatten()).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-9, atol=1e-12)


def test_a_presets_own_sizes_follow_a_new_width() -> None:
    small = bl.presets.llama_3_8b(d_model=256, n_layers=2)
    assert small.block.attention.n_heads == 2
    assert small.block.attention.n_kv_heads is None
    assert small.block.feed_forward.d_ff is None
    grouped = bl.presets.llama(d_model=256, n_heads=8, n_kv_heads=2, n_layers=2)
    assert grouped.block.attention.heads(256) == (8, 2, 32)
    assert bl.presets.gpt2(d_model=1600, n_layers=48) == bl.presets.gpt2_xl()


@pytest.mark.parametrize("wrong", ["gpt3", "lama"])
def test_an_unknown_preset_names_the_nearest(wrong: str) -> None:
    with pytest.raises(BlocklabError, match=rf"unknown preset '{wrong}'; did you mean '\w+"):
        bl.presets.preset(wrong)
    with pytest.raises(AttributeError, match="no preset"):
        getattr(bl.presets, wrong)


@pytest.fixture
def untrained() -> Callable[[], bl.Transformer]:
    def build() -> bl.Transformer:
        torch.manual_seed(123)
        return bl.Transformer(
            bl.presets.gpt2(
                d_model=48, n_heads=4, n_layers=2, vocab_size=50257, tie_embeddings=False
            )
        ).eval()

    return build


def test_an_untrained_model_takes_the_random_numbers_of_a_plain_script(
    untrained: Callable[[], bl.Transformer],
) -> None:
    """Construction in reading order, then one redraw in that order: what was published."""
    model = untrained()
    torch.manual_seed(123)
    d = 48
    shapes = [(50257, d), (1024, d)]
    torch.nn.Embedding(50257, d)
    torch.nn.Embedding(1024, d)
    for _ in range(2):
        for d_in, d_out in [(d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)]:
            torch.nn.Linear(d_in, d_out)
            shapes.append((d_out, d_in))
    torch.nn.Linear(d, 50257, bias=False)
    shapes.append((50257, d))
    drawn = [torch.empty(shape).normal_(0, 0.02) for shape in shapes]
    matrices = [p for p in model.parameters() if p.ndim == 2]
    for parameter, expected in zip(matrices, drawn, strict=True):
        assert torch.equal(parameter, expected)
