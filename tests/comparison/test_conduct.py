"""What a module does beside computing is told for what it is, and is never called dropout."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blocklab as bl
from blocklab.errors import BlocklabError
from tests.comparison import learners
from tests.comparison.test_compare import ATTENTION, LAYER, MLP, RMS, SIZES, D, gpt


class CentresInPlace(learners.Norm):
    def forward(self, x: Tensor) -> Tensor:
        x -= x.mean(-1, keepdim=True)
        return self.scale * x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() + self.shift


class AddsIntoItsInput(learners.FeedForward):
    def forward(self, x: Tensor) -> Tensor:
        x += self.layers(x)
        return x


class ClampsTokens(learners.GPT):
    def forward(self, tokens: Tensor) -> Tensor:
        logits = super().forward(tokens)
        tokens.clamp_(max=3)
        return logits


def test_a_module_that_changes_its_input_is_told_so() -> None:
    found = bl.compare(CentresInPlace(D), LAYER)
    assert found.names == ("changes-its-input",)
    assert found.difference < 1e-12
    assert "write x = x - …" in str(found)
    found = bl.compare(ClampsTokens(SIZES), gpt())
    assert found.names == ("changes-its-input", "overwrites-what-backward-needs")
    assert "(x.clamp_(…))" in str(found)
    assert found.difference < 1e-12


def test_what_a_changed_input_hides_is_still_found() -> None:
    found = bl.compare(AddsIntoItsInput(D), MLP)
    assert found.names[:2] == ("changes-its-input", "adds-its-input")
    assert found.explained


class Cached(learners.Attention):
    past: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.past = x if self.past is None else torch.cat((self.past, x), 1)
        return super().forward(self.past)


class Counting(learners.RootNorm):
    def __init__(self, d: int) -> None:
        super().__init__(d)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


class FailsLater(learners.RootNorm):
    past: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.past is not None:
            raise RuntimeError("called before")
        self.past = x
        return super().forward(x)


@pytest.mark.parametrize(
    ("module", "config"),
    [(Cached(D, 4), ATTENTION), (Counting(D), RMS), (FailsLater(D), RMS)],
    ids=lambda value: type(value).__name__,
)
def test_a_module_that_remembers_calls_is_told_so(
    module: nn.Module, config: bl.parts.PartConfig
) -> None:
    found = bl.compare(module, config)
    assert found.names == ("remembers-calls",)
    assert found.difference < 1e-12


class MadeInForward(learners.FeedForward):
    def forward(self, x: Tensor) -> Tensor:
        return nn.Linear(D, D)(super().forward(x))


class Noisy(learners.FeedForward):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn_like(x))


@pytest.mark.parametrize("module", [MadeInForward(D), Noisy(D)])
def test_other_dice_than_dropout_are_not_called_dropout(module: nn.Module) -> None:
    found = bl.compare(module, MLP)
    assert found.names == ("random-in-evaluation",)
    assert "see later" not in str(found)


@pytest.mark.parametrize("name", ["dropout", "dropout1d", "alpha_dropout", "feature_alpha_dropout"])
def test_dropout_of_every_kind_is_taken_out_and_told(name: str) -> None:
    class Dropping(learners.FeedForward):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(getattr(F, name)(x, 0.3, training=True))

    found = bl.compare(Dropping(D), MLP)
    assert found.names == ("dropout-in-evaluation",)
    assert found.difference < 1e-12


class Normalising(learners.FeedForward):
    """Its matrix is made a matrix of unit rows each time, in place or anew."""

    def __init__(self, d: int, anew: bool) -> None:
        super().__init__(d)
        self.anew = anew

    def forward(self, x: Tensor) -> Tensor:
        weight = self.layers[0].weight
        if self.anew:
            weight.data = F.normalize(weight.data, dim=-1)
        else:
            with torch.no_grad():
                weight.copy_(F.normalize(weight, dim=-1))
        return super().forward(x)


@pytest.mark.parametrize("anew", [False, True])
def test_a_module_that_changes_its_parameters_is_told_which(anew: bool) -> None:
    found = bl.compare(Normalising(D, anew), MLP)
    assert "changes-its-parameters" in found.names
    assert "changes layers.0.weight when it is called" in str(found)
    assert not found.agrees
    # Ours computes with the parameters as they were.
    assert found.difference > 1e-3


class InAList(nn.Module):
    """Its maps, which no optimiser finds."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        maps = [nn.Linear(D, 4 * D), nn.Linear(4 * D, D)]
        self.maps = dict(zip("ab", maps, strict=True)) if kind is dict else kind(maps)

    def forward(self, x: Tensor) -> Tensor:
        expand, contract = self.maps.values() if hasattr(self.maps, "values") else self.maps
        return contract(F.gelu(expand(x), approximate="tanh"))


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_modules_in_a_list_of_python_are_told_and_compared(kind: type) -> None:
    module = InAList(kind)
    found = bl.compare(module, MLP)
    assert found.names == ("modules-in-a-list",)
    assert "keeps modules in maps" in str(found)
    assert "nn.ModuleList" in str(found)
    assert found.difference < 1e-12
    assert type(module.maps) is kind


def test_blocks_in_a_list_of_python_are_told_and_compared() -> None:
    model = learners.GPT(SIZES)
    blocks = list(model.trf_blocks)
    del model.trf_blocks

    class Listed(learners.GPT):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.tok_emb(tokens) + self.pos_emb(torch.arange(tokens.shape[1]))
            for block in self.trf_blocks:
                x = block(x)
            return self.out_head(self.final_norm(x))

    model.__class__ = Listed
    model.trf_blocks = blocks
    found = bl.compare(model, gpt())
    assert found.names == ("modules-in-a-list",)
    assert found.difference < 1e-12


def test_a_second_list_of_registered_modules_is_no_mistake() -> None:
    module = learners.FeedForward(D)
    module.maps = [module.layers[0], module.layers[2]]
    assert bl.compare(module, MLP).agrees


def test_a_module_that_keeps_a_result_of_an_earlier_call_can_be_compared() -> None:
    class Keeping(learners.Attention):
        def weighted(self, scores: Tensor) -> Tensor:
            self.kept = super().weighted(scores)
            return self.kept

    module = Keeping(D, 4)
    module(torch.randn(1, 3, D))
    assert bl.compare(module, ATTENTION).agrees


def test_tensors_made_in_forward_have_the_type_of_its_parameters() -> None:
    class Filling(learners.FeedForward):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.zeros(x.shape)
            for t in range(x.shape[1]):
                y[:, t] = super().forward(x[:, t])
            return y

    found = bl.compare(Filling(D), MLP)
    assert found.agrees, str(found)
    assert found.difference < 1e-12
    assert torch.get_default_dtype() == torch.float32


def test_a_plain_tensor_has_the_type_of_its_parameters() -> None:
    class Turning(learners.FeedForward):
        def __init__(self) -> None:
            super().__init__(D)
            self.turn = torch.eye(D)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x @ self.turn)

    module = Turning()
    assert bl.compare(module, MLP).agrees
    assert module.turn.dtype == torch.float32


def test_the_callers_random_numbers_are_left_as_they_were() -> None:
    module = Noisy(D)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    bl.compare(module, MLP)
    assert torch.equal(torch.rand(3), expected)


def test_a_loss_instead_of_logits_is_one_clear_line() -> None:
    class Loss(learners.GPT):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens).mean()

    with pytest.raises(BlocklabError, match=r"Loss gives \(\) for \(2, 6\); expected 37"):
        bl.compare(Loss(SIZES), gpt())
