"""A user's own part: registered, counted, built, changed by path, refused with a reason."""

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.parts.attention import AttentionConfig
from blocklab.record import Tagged

CONFIG = {"d_model": 8, "n_heads": 2, "n_layers": 2, "vocab_size": 7, "context_length": 6}
TOKENS = torch.tensor([[1, 2, 3, 4]])


@pytest.fixture(autouse=True)
def _own_parts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {slot: dict(of_slot) for slot, of_slot in Tagged._kinds.items()}
    monkeypatch.setattr(Tagged, "_kinds", kinds)


def counted_as_built(config: bl.ModelConfig) -> bl.Transformer:
    model = bl.Transformer(config)
    built = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    assert [(row.path, row.shape) for row in bl.count(config).rows] == built
    return model.eval()


def test_a_norm_without_a_config_takes_its_fields_from_its_constructor() -> None:
    @bl.part("norm", "own-norm")
    class OwnNorm(nn.Module):
        def __init__(self, d: int, power: float = 2.0, gain: bool = True) -> None:
            super().__init__()
            self.power = power
            self.weight = nn.Parameter(torch.ones(d)) if gain else None

        def forward(self, x: Tensor) -> Tensor:
            y = x / x.abs().pow(self.power).mean(-1, keepdim=True).pow(1 / self.power)
            return y if self.weight is None else y * self.weight

    config = bl.presets.gpt2(**CONFIG).with_changes({"block.norm.kind": "own-norm"})
    model = counted_as_built(config)
    assert "blocks.1.norm.feed_forward.weight" in dict(model.named_parameters())
    changed = config.with_changes({"block.norm.power": 4.0, "block.norm.gain": False})
    assert changed.block.norm.power == 4.0
    assert counted_as_built(changed).blocks[0].norm["attention"].power == 4.0
    assert bl.ModelConfig.parse(changed.plain()) == changed
    with pytest.raises(BlocklabError, match=r"block\.norm: unknown key 'pow'.*'power'"):
        config.with_changes({"block.norm": {"kind": "own-norm", "pow": 3}})
    with pytest.raises(BlocklabError, match=r"block\.norm\.power: 'much' does not fit"):
        config.with_changes({"block.norm.power": "much"})


def test_its_linear_maps_count_as_matrices_and_its_tables_do_not() -> None:
    @bl.part("feed_forward", "own-feed-forward")
    class OwnFeedForward(nn.Module):
        def __init__(self, d_model: int, inner: int = 5) -> None:
            super().__init__()
            self.table = nn.Embedding(3, d_model)
            self.inward, self.outward = nn.Linear(d_model, inner), nn.Linear(inner, d_model)

        def forward(self, x: Tensor) -> Tensor:
            return self.outward(self.inward(x).relu()) + self.table.weight[0]

    config = bl.presets.gpt2(**CONFIG).with_changes({"block.feed_forward": "own-feed-forward"})
    counted_as_built(config)
    assert config.block.feed_forward.matrix_parameters(8) == 2 * 5 * 8
    std = bl.Transformer(config, seed=0).blocks[0].feed_forward.inward.weight.std().item()
    assert std == pytest.approx(0.02, rel=0.5)


def test_an_attention_with_its_own_config_uses_context_and_cache() -> None:
    @bl.part("attention", "own-mean")
    class OwnMean(nn.Module):
        """Each position takes the mean of all values so far, over three narrow heads."""

        class Config(AttentionConfig):
            kind: Literal["own-mean"] = "own-mean"
            width: int = 4

        def __init__(self, d_model: int, config: Config) -> None:
            super().__init__()
            self.value = nn.Linear(d_model, 3 * config.width, bias=False)
            self.output = nn.Linear(3 * config.width, d_model, bias=False)

        def forward(self, x: Tensor, context: bl.parts.AttentionContext) -> Tensor:
            values = self.value(x).unflatten(-1, (3, -1)).transpose(1, 2)
            _, values = context.extend(values, values)
            sums = values.cumsum(2)[:, :, context.start :]
            places = torch.arange(context.start + 1, context.start + x.shape[1] + 1)
            return self.output((sums / places[:, None]).transpose(1, 2).flatten(2))

    config = bl.presets.gpt2(**CONFIG).with_changes({"block.attention.kind": "own-mean"})
    model = counted_as_built(config)
    for use_cache in (True, False):
        out = bl.generate(model, TOKENS, max_new_tokens=5, use_cache=use_cache)
        assert torch.equal(out, bl.generate(model, TOKENS, max_new_tokens=5))
    assert model.blocks[0].attention.value.out_features == 12


def test_an_attention_that_ignores_the_cache_still_generates_what_it_would_without_one() -> None:
    @bl.part("attention", "own-previous")
    class OwnPrevious(nn.Module):
        """Each position reads the one before it, and never tells the cache."""

        def __init__(self, d_model: int) -> None:
            super().__init__()
            self.output = nn.Linear(d_model, d_model)

        def forward(self, x: Tensor, context: bl.parts.AttentionContext) -> Tensor:
            return self.output(torch.cat((x[:, :1], x[:, :-1]), dim=1))

    config = bl.presets.gpt2(**CONFIG).with_changes(
        {
            "block.attention.kind": "own-previous",
            "initialization": {"kind": "fan_in", "head_std": 1.0},
        }
    )
    model, prompts = counted_as_built(config), torch.arange(7).expand(5, 7).T[:, :3]
    cached = bl.generate(model, prompts, max_new_tokens=12)
    assert torch.equal(cached, bl.generate(model, prompts, max_new_tokens=12, use_cache=False))


def test_positions_of_ones_own_may_have_parameters() -> None:
    @bl.part("positions", "own-positions")
    class OwnPositions(bl.parts.Positions):
        def __init__(self, d_model: int, context_length: int, factor: float = 1.0) -> None:
            super().__init__(d_model, context_length)
            self.slope, self.factor = nn.Parameter(torch.ones(d_model)), factor

        def embed(self, positions: Tensor) -> Tensor:
            return self.factor * positions[..., None] * self.slope

    config = bl.presets.gpt2(**CONFIG).with_changes({"positions": "own-positions"})
    model = counted_as_built(config)
    off = counted_as_built(config.with_changes({"positions.factor": 0.0}))
    off.load_state_dict(model.state_dict())
    assert not torch.allclose(model(TOKENS), off(TOKENS))


def test_a_residual_of_ones_own_joins_stream_and_branch() -> None:
    @bl.part("residual", "own-residual")
    class OwnResidual(nn.Module):
        def __init__(self, d_model: int, keep: float = 0.5) -> None:
            super().__init__()
            self.gate = nn.Parameter(torch.full((d_model,), keep))

        def forward(self, stream: Tensor, branch: Tensor) -> Tensor:
            return self.gate * stream + branch

    config = bl.presets.gpt2(**CONFIG).with_changes(
        {"block.residual": {"kind": "own-residual", "keep": 0.25}}
    )
    assert torch.equal(
        counted_as_built(config).blocks[1].residual["attention"].gate, torch.full((8,), 0.25)
    )


def test_a_block_of_ones_own_may_nest_parts_and_lists() -> None:
    @bl.part("block", "own-block")
    class OwnBlock(nn.Module):
        def __init__(
            self,
            d_model: int,
            norm: bl.parts.NormConfig = bl.parts.RMSNorm.Config(),  # noqa: B008
            widths: list[int] = [3, 4],  # noqa: B006
        ) -> None:
            super().__init__()
            self.norm = norm.build(d_model)
            self.inward = nn.ModuleList(nn.Linear(d_model, width) for width in widths)
            self.outward = nn.ModuleList(nn.Linear(width, d_model) for width in widths)

        def forward(self, x: Tensor, context: bl.parts.AttentionContext) -> Tensor:
            h = self.norm(x)
            pairs = zip(self.inward, self.outward, strict=True)
            return x + sum(out(into(h)) for into, out in pairs)

    config = bl.presets.gpt2(**CONFIG).with_changes(
        {"block.kind": "own-block", "block.norm.eps": 0.25, "blocks.1.widths": [5]}
    )
    assert bl.ModelConfig.parse(config.plain()) == config
    assert config.plain()["block"]["norm"]["eps"] == 0.25
    model = counted_as_built(config)
    assert [len(block.inward) for block in model.blocks] == [2, 1]
    assert bl.count(config).matrix_parameters == 2 * 8 * (3 + 4) + 2 * 8 * 5 + 7 * 8


def test_what_its_constructor_draws_does_not_depend_on_other_parts() -> None:
    """With a seed: two variants must start equal wherever they share a tensor."""

    @bl.part("feed_forward", "own-random")
    class OwnRandom(nn.Module):
        def __init__(self, d_model: int) -> None:
            super().__init__()
            self.mix = nn.Parameter(torch.rand(d_model, d_model))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.mix

    config = bl.presets.gpt2(**CONFIG).with_changes({"block.feed_forward": "own-random"})

    def mixes(config: bl.ModelConfig, seed: int = 0) -> list[Tensor]:
        return [block.feed_forward.mix for block in bl.Transformer(config, seed=seed).blocks]

    first, second = mixes(config)
    assert not torch.equal(first, second)
    assert not torch.equal(first, mixes(config, seed=1)[0])
    for changes in (
        {"block.attention.n_kv_heads": 1},
        {"block.placement": "sandwich"},
        {"positions": "rotary"},
        {"vocab_size": 9},
        {"n_layers": 3},
    ):
        varied = mixes(config.with_changes(changes))
        assert torch.equal(varied[0], first), changes
        assert torch.equal(varied[1], second), changes


def test_a_part_that_does_not_fit_is_refused_with_a_reason() -> None:
    class Plain(nn.Module):
        def __init__(self, d: int, power: float) -> None:
            super().__init__()

    class NoSize(nn.Module):
        def __init__(self) -> None:
            super().__init__()

    class WrongConfig(nn.Module):
        class Config(AttentionConfig):
            kind: Literal["wrong"] = "wrong"

    class OtherKind(nn.Module):
        class Config(AttentionConfig):
            kind: Literal["other"] = "other"

    class LayerNorm(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()

    class TakenWord(nn.Module):
        def __init__(self, d_model: int, width: int = 3) -> None:
            super().__init__()

    cases = [
        ("feed_forward", "a", TakenWord, "'width' is a word of every FeedForwardConfig"),
        ("norms", "a", Plain, "unknown kind of part 'norms'; did you mean 'norm'"),
        ("norm", "a", Plain, "'power' needs a default"),
        ("norm", "a", NoSize, r"must take 1 size\(s\) first"),
        ("norm", "wrong", WrongConfig, "must be a NormConfig"),
        ("attention", "own", OtherKind, r"must state its kind: Literal\['own'\]"),
        ("norm", "layer", LayerNorm, "norm kind 'layer' is already taken"),
        ("positions", "a", NoSize, "must be a subclass of Positions"),
    ]
    for slot, kind, module, message in cases:
        with pytest.raises(BlocklabError, match=message):
            bl.part(slot, kind)(module)
    assert bl.parts.NormConfig.of_kind("layer").module is bl.parts.LayerNorm


def test_the_same_definition_may_be_run_again_as_in_a_notebook() -> None:
    def cell() -> type[nn.Module]:
        @bl.part("norm", "own-again")
        class Again(nn.Module):
            def __init__(self, d: int) -> None:
                super().__init__()

        return Again

    first, second = cell(), cell()
    assert first is not second
    assert bl.parts.NormConfig.of_kind("own-again").module is second


def test_a_record_that_miscounts_its_module_is_refused_at_build() -> None:
    @bl.part("attention", "own-miscounted")
    class Miscounted(nn.Module):
        class Config(AttentionConfig):
            kind: Literal["own-miscounted"] = "own-miscounted"

            def parameters(self, d_model: int) -> dict[str, bl.parts.Spec]:
                return {"weight": bl.parts.Spec((d_model, 2), "matrix")}

        def __init__(self, d_model: int, config: Config) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(d_model, 3))

    config = bl.presets.gpt2(**CONFIG).with_changes({"block.attention.kind": "own-miscounted"})
    with pytest.raises(BlocklabError, match=r"record counts \(8, 2\), the module has \(8, 3\)"):
        bl.Transformer(config)
