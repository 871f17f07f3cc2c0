"""FLOPs of a user's own part: what torch counts when it runs, not how many tensors it has."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import blocklab as bl
from blocklab.model.count import count
from blocklab.parts.linear import in_plain_torch
from blocklab.record import Tagged

D = 16


@pytest.fixture(autouse=True)
def _own_parts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {slot: dict(of_slot) for slot, of_slot in Tagged._kinds.items()}
    monkeypatch.setattr(Tagged, "_kinds", kinds)


class Tied(nn.Module):
    """One matrix on the way in and on the way out of each of two steps."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


class Inner(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.mix = weight

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.mix


class TiedByHand(nn.Module):
    """A raw matrix that two modules multiply by, and a linear map that shares it too."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        shared = nn.Parameter(torch.rand(d_model, d_model))
        self.one, self.other = Inner(shared), Inner(shared)
        self.last = nn.Linear(d_model, d_model)
        self.last.weight = shared

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.other(self.one(x)))


class TiedToATable(nn.Module):
    """A lookup table that is multiplied by as well."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(5, d_model)
        self.scores = nn.Linear(d_model, 5, bias=False)
        self.scores.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table(self.scores(x).argmax(-1))


class OneModuleUnderTwoNames(nn.Module):
    """Listed for convenience; each map is called once."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(d_model, 24), nn.Linear(24, d_model)
        self.net = nn.Sequential(self.up, nn.ReLU(), self.down)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class TwiceOurs(nn.Module):
    """Experts of ours, of which a token meets one, and two gated parts that share a matrix."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.experts = bl.parts.Experts.Config(n_experts=4, n_active=1, d_ff=8).build(d_model)
        gated = bl.parts.Gated.Config(d_ff=8)
        self.one, self.other = gated.build(d_model), gated.build(d_model)
        self.other.contract.weight = self.one.contract.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(self.experts(x)))


class OursWithAMapTakenOut(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = bl.parts.MLP.Config(d_ff=d_model).build(d_model)
        self.inner.contract = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def counted_by_torch(run: Callable[[], object], n_tokens: int) -> float:
    with FlopCounterMode(display=False) as counter, in_plain_torch(), torch.no_grad():
        run()
    return counter.get_total_flops() / (2 * n_tokens)


@pytest.mark.parametrize(
    "module",
    [Tied, TiedByHand, TiedToATable, OneModuleUnderTwoNames, TwiceOurs, OursWithAMapTakenOut],
)
def test_each_product_counts_however_many_share_its_matrix(module: type[nn.Module]) -> None:
    bl.part("feed_forward", "own")(module)
    config = bl.presets.gpt2(
        d_model=D, n_heads=2, n_layers=2, vocab_size=7, context_length=6
    ).with_changes({"block.feed_forward": {"kind": "own"}})
    x: Any = torch.randn(10, D)
    part = module(D)
    expected = counted_by_torch(lambda: part(x), len(x))
    assert config.block.feed_forward.in_products(D) == expected > 0
    attention = 4 * D * D
    assert count(config).matrix_parameters == 2 * (attention + expected) + 7 * D
    distinct = sum(p.numel() for p in part.parameters())
    assert count(config).subtotals["block.feed_forward"] == 2 * distinct


def test_positions_count_a_linear_map_in_each_module_that_holds_it() -> None:
    @bl.part("positions", "own")
    class Places(bl.parts.Positions):
        def __init__(self, d_model: int, context_length: int) -> None:
            super().__init__(d_model, context_length)
            self.table = nn.Parameter(torch.zeros(context_length, d_model))
            self.maps = Tied(d_model)

        def embed(self, positions: Tensor) -> Tensor:
            return self.maps(self.table[positions])

    record = bl.parts.PositionsConfig.of_kind("own")()
    assert record.matrix_parameters(D, 6) == 2 * D * D
