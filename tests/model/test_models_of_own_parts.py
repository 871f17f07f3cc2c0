"""A model with parts of the user's own: its final norm, what a change of kind keeps, its FLOPs."""

from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.model.block import BlockConfig
from blocklab.parts.attention import AttentionConfig
from blocklab.record import Tagged

D, HEADS, LENGTH, ROWS = 32, 4, 16, 11
BASELINE = bl.presets.modern(
    d_model=D, n_heads=HEADS, n_layers=2, vocab_size=ROWS, context_length=LENGTH
)


@pytest.fixture(autouse=True)
def _own_parts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {slot: dict(of_slot) for slot, of_slot in Tagged._kinds.items()}
    monkeypatch.setattr(Tagged, "_kinds", kinds)


@pytest.fixture
def _copied_block() -> None:
    """The baseline's own block, written out: nothing of it stands in its record."""

    @bl.part("block", "own-copy")
    class Copy(nn.Module):
        def __init__(self, d_model: int, n_heads: int = HEADS) -> None:
            super().__init__()
            self.inner = BASELINE.block.build(d_model)

        def forward(self, x: Tensor, context: bl.parts.AttentionContext) -> Tensor:
            return self.inner(x, context)


@pytest.fixture
def _normed_block() -> None:
    """A block whose record has a norm, by default another one than the baseline's."""

    @bl.part("block", "own-normed")
    class Normed(nn.Module):
        class Config(BlockConfig):
            kind: Literal["own-normed"] = "own-normed"
            norm: bl.parts.NormConfig = bl.parts.LayerNorm.Config()
            placement: str = "pre"

        def __init__(self, d_model: int, config: Config) -> None:
            super().__init__()

        def forward(self, x: Tensor, context: bl.parts.AttentionContext) -> Tensor:
            return x


@pytest.mark.usefixtures("_copied_block")
@pytest.mark.parametrize("change", [{"block.kind": "own-copy"}, {"block": "own-copy"}], ids=str)
def test_a_block_without_a_norm_in_its_record_keeps_the_final_norm(change: Any) -> None:
    """A copy of the baseline's block is the baseline: not better by a norm that is gone."""
    copy = BASELINE.with_changes(change)
    assert copy.plain()["final_norm"] == BASELINE.block.norm.plain()
    assert bl.count(copy).total == bl.count(BASELINE).total
    assert bl.count(copy).flops_per_token() == bl.count(BASELINE).flops_per_token()
    ours, theirs = bl.Transformer(BASELINE), bl.Transformer(copy)
    renamed = {name.replace(".inner.", "."): tensor for name, tensor in theirs.state_dict().items()}
    ours.load_state_dict(renamed)
    tokens = torch.arange(ROWS)[None]
    assert torch.equal(ours.eval()(tokens), theirs.eval()(tokens))
    assert bl.ModelConfig.parse(copy.plain()) == copy


@pytest.mark.usefixtures("_copied_block")
def test_a_variant_that_says_its_final_norm_has_it() -> None:
    copy = BASELINE.with_changes({"block.kind": "own-copy", "final_norm": "none"})
    assert copy.norm_at_the_end.kind == "none"
    assert (
        BASELINE.with_changes({"final_norm.kind": "dyt"})
        .with_changes({"block.kind": "own-copy"})
        .norm_at_the_end
        == bl.parts.DynamicTanh.Config()
    )


@pytest.mark.usefixtures("_copied_block", "_normed_block")
def test_the_final_norm_that_post_placement_leaves_out_stays_out() -> None:
    post = BASELINE.with_changes({"block.placement": "post"})
    for kind in ("own-copy", "own-normed"):
        assert post.with_changes({"block": {"kind": kind}}).norm_at_the_end.kind == "none"


@pytest.mark.usefixtures("_copied_block")
def test_nothing_to_follow_is_refused_with_what_to_give() -> None:
    message = r"final_norm: block 'own-copy' has no norm that it could follow; give final_norm"
    for make in (
        lambda: bl.ModelConfig.parse({"block": "own-copy"}),
        lambda: bl.ModelConfig.parse({"block": "own-copy", "final_norm": "same"}),
        lambda: BASELINE.with_changes({"block.kind": "own-copy", "final_norm": "same"}),
    ):
        with pytest.raises(BlocklabError, match=message):
            make()
    assert bl.ModelConfig.parse({"block": "own-copy", "final_norm": "rms"}).norm_at_the_end.eps


@pytest.mark.usefixtures("_normed_block")
def test_the_final_norm_follows_a_blocks_norm_only_where_the_change_says_that_norm() -> None:
    layer = bl.parts.LayerNorm.Config()
    assert BASELINE.with_changes({"block.kind": "own-normed"}).final_norm is None
    unsaid = BASELINE.with_changes({"block": {"kind": "own-normed"}})
    assert (unsaid.block.norm, unsaid.norm_at_the_end) == (layer, BASELINE.block.norm)
    for said in (
        {"block": {"kind": "own-normed", "norm": layer.plain()}},
        {"block.kind": "own-normed", "block.norm": layer.plain()},
    ):
        assert BASELINE.with_changes(said).norm_at_the_end == layer
    post = BASELINE.with_changes({"block.kind": "own-normed", "block.placement": "post"})
    assert post.norm_at_the_end.kind == "none"


@pytest.mark.usefixtures("_copied_block")
def test_what_a_change_keeps_unsaid_can_be_said() -> None:
    @bl.part("norm", "own-norm")
    class OwnNorm(nn.Module):
        def __init__(self, d: int, eps: float = 0.5, bias: bool = False) -> None:
            super().__init__()

    def said(**changes: Any) -> list[str]:
        BASELINE.with_changes(changes)
        return [kept.sentence for kept in BASELINE.kept(changes)]

    stays = "norm.eps stays 1e-06 (own-norm by itself: 0.5)"
    assert said(**{"block.norm.kind": "own-norm"}) == [f"block.{stays}"]
    assert said(**{"blocks.-1.norm.kind": "own-norm"}) == [f"blocks.-1.{stays}"]
    assert said(**{"block.norm.kind": "own-norm", "block.norm.eps": 1e-6}) == []
    assert said(**{"block.norm.kind": "own-norm", "block": {"norm": {"eps": 1e-6}}}) == []
    assert said(**{"block.norm": {"kind": "own-norm"}}) == []
    assert said(**{"block.norm.kind": "rms"}) == []
    rms = "{kind: rms, eps: 1e-06, bias: false, unit_offset: false}"
    assert said(**{"block.kind": "own-copy"}) == [
        f"final_norm stays {rms} (own-copy by itself: no norm to follow)"
    ]
    assert said(**{"block.kind": "own-copy", "final_norm": "rms"}) == []


def own_attention(kind: str, told: int | None = None, **fields: int) -> bl.ModelConfig:
    """The baseline with an attention of one's own whose record has these fields."""

    def parameters() -> dict[str, Any]:
        named: dict[str, Any] = {"__annotations__": {"kind": Literal[kind]}, "kind": kind}
        for name, value in fields.items():
            named["__annotations__"][name] = int
            named[name] = value
        return named

    class Own(nn.Module):
        Config = type("Config", (AttentionConfig,), {**parameters(), "__module__": __name__})

        def __init__(self, d_model: int, config: AttentionConfig) -> None:
            super().__init__()
            self.output = nn.Linear(d_model, d_model, bias=False)

    if told is not None:
        Own.score_width = staticmethod(lambda config, d_model, length: told)  # type: ignore
    bl.part("attention", kind)(Own)
    return BASELINE.with_changes({"block.attention": {"kind": kind}})


def scores_of(config: bl.ModelConfig, context: int) -> int:
    """FLOPs of all scores of a token, over what the matrices take."""
    table = bl.count(config)
    return table.flops_per_token(context) - 6 * table.matrix_parameters


@pytest.mark.parametrize(
    ("fields", "at", "width"),
    [
        ({"n_heads": 4}, 8, D * 8),
        ({"n_heads": 4}, 16, D * 16),
        ({"n_heads": 4, "head_dim": 3}, 16, 12 * 16),
        ({"n_heads": 4, "window": 5}, 16, D * 5),
    ],
    ids=str,
)
def test_an_own_attention_with_heads_is_taken_to_have_their_scores(
    fields: dict[str, int], at: int, width: int
) -> None:
    config = own_attention("own-heads", **fields)
    assert scores_of(config, at) == 12 * 2 * width
    assert bl.count(config).assumed_scores == "block.attention 'own-heads'"
    assert bl.count(config).untold_scores is None
    assert bl.count(config).known_flops_per_token() == bl.count(config).flops_per_token()


@pytest.mark.parametrize("told", [0, 7])
def test_a_class_may_state_its_scores(told: int) -> None:
    config = own_attention("own-telling", told, n_heads=4)
    assert scores_of(config, LENGTH) == 12 * 2 * told
    assert bl.count(config).assumed_scores is None
    assert bl.count(config).untold_scores is None


def test_flops_that_nothing_tells_are_a_lower_bound_that_decides_nothing() -> None:
    config = own_attention("own-silent", width=3)
    assert bl.count(config).untold_scores == "block.attention 'own-silent'"
    assert scores_of(config, LENGTH) == 0
    told = r"block\.attention 'own-silent' does not tell .*score_width\(config, d_model"
    with pytest.raises(BlocklabError, match=told):
        bl.count(config).known_flops_per_token()
    one_layer = BASELINE.with_changes({"blocks.0.attention": {"kind": "own-silent"}})
    assert bl.count(one_layer).untold_scores == "block.attention 'own-silent'"
    assert bl.count(BASELINE).untold_scores is None
    assert bl.count(BASELINE).assumed_scores is None


def test_a_block_of_ones_own_tells_by_its_heads_or_by_the_attention_it_nests() -> None:
    class Plain(nn.Module):
        def __init__(self, d_model: int) -> None:
            super().__init__()

    class Heads(nn.Module):
        def __init__(self, d_model: int, n_heads: int = 4) -> None:
            super().__init__()

    class Nests(nn.Module):
        class Config(BlockConfig):
            kind: Literal["nests"] = "nests"
            near: AttentionConfig = bl.parts.CausalAttention.Config(n_heads=4, window=2)
            far: AttentionConfig = bl.parts.CausalAttention.Config(n_heads=4, head_dim=5)

        def __init__(self, d_model: int, config: Config) -> None:
            super().__init__()

    for kind, module in (("plain", Plain), ("heads", Heads), ("nests", Nests)):
        bl.part("block", kind)(module)
    of = {kind: BASELINE.with_changes({"block.kind": kind}) for kind in ("plain", "heads", "nests")}
    assert bl.count(of["plain"]).untold_scores == "block 'plain'"
    assert scores_of(of["heads"], LENGTH) == 12 * 2 * D * LENGTH
    assert bl.count(of["heads"]).assumed_scores == "block 'heads'"
    assert scores_of(of["nests"], LENGTH) == 12 * 2 * (D * 2 + 20 * LENGTH)
    assert bl.count(of["nests"]).assumed_scores is None
    silent = own_attention("own-silent").block.attention
    nesting = of["nests"].with_changes({"block.far": silent})
    assert bl.count(nesting).untold_scores == "block.far 'own-silent'"
    assert nesting.block.score_width(D, LENGTH) is None
    Plain.score_width = staticmethod(lambda config, d_model, length: 0)  # type: ignore
    assert bl.count(of["plain"]).untold_scores is None


def test_matrices_multiplied_by_hand_count_wherever_they_stand() -> None:
    """`nn.MultiheadAttention` keeps its own as a raw parameter; a norm may have one too."""

    class Block(nn.Module):
        def __init__(self, d_model: int, n_heads: int = HEADS) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(d_model, n_heads)
            self.table = nn.Embedding(3, d_model)
            self.temperature = nn.Parameter(torch.ones(n_heads))

    class FeedForward(nn.Module):
        def __init__(self, d_model: int) -> None:
            super().__init__()
            self.mix = nn.Parameter(torch.rand(d_model, 2, d_model))
            self.bias = nn.Parameter(torch.zeros(d_model))

    class Turned(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.eye(d))

    class TurnedBack(Turned):
        pass

    bl.part("block", "own-torch")(Block)
    bl.part("feed_forward", "own-raw")(FeedForward)
    bl.part("norm", "own-turning")(Turned)
    bl.part("residual", "own-turning")(TurnedBack)

    def matrices(**changes: Any) -> int:
        return bl.count(BASELINE.with_changes(changes)).matrix_parameters

    head, attention = ROWS * D, 4 * D * D
    assert matrices(**{"block.kind": "own-torch"}) == 2 * attention + head
    raw = {"block.feed_forward": "own-raw"}
    assert matrices(**raw) == 2 * (attention + 2 * D * D) + head
    # Two a block, and the final one, which follows them.
    turning = matrices(**raw, **{"block.norm": "own-turning"})
    assert turning - matrices(**raw) == 5 * D * D
    turning = matrices(**raw, **{"block.residual": "own-turning"})
    assert turning - matrices(**raw) == 4 * D * D


def test_linear_maps_of_own_positions_count_and_their_tables_do_not() -> None:
    @bl.part("positions", "own-positions")
    class OwnPositions(bl.parts.Positions):
        def __init__(self, d_model: int, context_length: int) -> None:
            super().__init__(d_model, context_length)
            self.table = nn.Parameter(torch.zeros(context_length, d_model))
            self.map = nn.Linear(d_model, d_model, bias=False)

        def embed(self, positions: Tensor) -> Tensor:
            return self.map(self.table[positions])

    own = BASELINE.with_changes({"positions": "own-positions"})
    more = bl.count(own).matrix_parameters - bl.count(BASELINE).matrix_parameters
    assert more == D * D


def test_a_class_whose_tokens_meet_only_a_part_of_it_may_state_how_much() -> None:
    @bl.part("feed_forward", "own-sparse")
    class Sparse(nn.Module):
        def __init__(self, d_model: int, n_active: int = 2) -> None:
            super().__init__()
            self.experts = nn.Parameter(torch.zeros(8, d_model, d_model))

        @staticmethod
        def matrix_parameters(config: Any, d_model: int) -> int:
            return int(config.n_active * d_model**2)

    sparse = BASELINE.with_changes({"block.feed_forward": "own-sparse"})
    assert bl.count(sparse).matrix_parameters == 2 * (4 + 2) * D * D + ROWS * D
