"""A variant that would train what the baseline trains is refused by its name."""

import pytest
from torch import nn

import blocklab as bl
from blocklab.study.liveness import require_differences
from blocklab.study.plan import plan
from blocklab.training.schedule import Cosine
from tests.study.planted import PLANTED
from tests.study.test_study import TEXT, minimal


@bl.part("norm", "test-ignores-its-flag")
class IgnoresItsFlag(nn.Module):
    def __init__(self, d: int, strength: float = 1.0) -> None:
        super().__init__()
        self.inner = nn.LayerNorm(d)

    def forward(self, x):
        return self.inner(x)


def checked(**fields):
    require_differences(plan(minimal(**fields), TEXT))


@pytest.mark.parametrize(
    "changes",
    [
        {"block.norm.kind": "layer"},
        {"block.norm.eps": 1e-3},
        {"block.placement": "post"},
        {"block.attention.window": 64},
        {"positions.kind": "none"},
        {"positions.base": 500.0},
        {"dropout": 0.1},
        {"initialization.kind": "normal"},
        {"block.residual.kind": "none"},
        {"training.clip": 0.1},
    ],
)
def test_a_variant_that_changes_something_is_let_through(changes):
    checked(variants={"x": changes})


@pytest.mark.parametrize(
    "changes", [{"block.norm.kind": "rms"}, {"n_layers": 2}, {"training.steps": 10}]
)
def test_a_value_the_baseline_already_has_is_refused_by_name(changes):
    with pytest.raises(bl.BlocklabError, match=r"variants\.same: does not differ"):
        checked(variants={"same": changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"block.attention.window": 128},  # as long as the context
        {"block.attention.n_kv_heads": 2},  # what null means here
        {"block.feed_forward.d_ff": 64},  # the rule's own width
    ],
)
def test_a_change_of_record_that_changes_no_model_is_refused_by_name(changes):
    with pytest.raises(bl.BlocklabError, match=r"variants\.same: .*takes no effect"):
        checked(variants={"same": changes})


def test_a_flag_that_a_part_ignores_is_refused_by_name():
    baseline = {
        "preset": "modern",
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 2,
        "set": {"block.norm": {"kind": "test-ignores-its-flag"}},
    }
    with pytest.raises(bl.BlocklabError, match=r"variants\.stronger: .*takes no effect"):
        checked(baseline=baseline, variants={"stronger": {"block.norm.strength": 5.0}})


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_fault_is_caught_by_name(planted):
    with pytest.raises(bl.BlocklabError, match=rf"^variants\.planted: .*{planted.words}"):
        require_differences(planted.plan())


def test_a_difference_in_what_decays_alone_is_let_through():
    study = minimal(
        baseline={
            "preset": "modern",
            "d_model": 32,
            "n_layers": 2,
            "n_heads": 2,
            "set": {"block.residual": {"kind": "planted-undecayed"}},
        },
        variants={"decayed": {"block.residual": {"kind": "planted-decayed"}}},
    )
    (difference,) = require_differences(plan(study, TEXT))
    assert difference.logits == 0


def test_a_difference_says_where_it_lies():
    study = minimal(
        variants={
            "layer-norm": {"block.norm": {"kind": "layer", "bias": True}},
            "warmer": {"training.schedule.warmup": 0.5},
        },
        match="none",
    )
    norm, warmup = require_differences(plan(study, TEXT))
    assert "blocks.1.norm.attention" in norm.modules
    assert norm.parameters[0] == "blocks.0.norm.attention.bias"
    assert norm.first_values == ()
    assert norm.logits > 0
    assert (warmup.modules, warmup.parameters, warmup.logits) == ((), (), 0.0)
    assert warmup.training == ("schedule.warmup",)


def test_a_path_that_only_says_what_null_means_is_let_through_and_listed():
    study = minimal(variants={"post": {"block.placement": "post", "final_norm": "none"}})
    (difference,) = require_differences(plan(study, TEXT))
    assert difference.idle == ("final_norm",)


def test_long_recipes_are_told_apart_by_their_first_steps(monkeypatch):
    asked = []
    factor = Cosine.factor
    monkeypatch.setattr(Cosine, "factor", lambda *given: asked.append(1) or factor(*given))
    warmups = {f"warm-{i}": {"training.schedule.warmup": 0.1 + i / 100} for i in range(1, 8)}
    recipe = {"steps": 100_000, "batch_size": 2, "learning_rates": [1e-3, 3e-3, 1e-2]}
    require_differences(plan(minimal(variants=warmups, training=recipe), TEXT))
    assert 0 < len(asked) < 1000


def test_one_schedule_in_other_words_takes_no_effect():
    steps = {"steps": 10, "batch_size": 2, "learning_rates": [1e-3, 3e-3, 1e-2]}
    study = minimal(
        training=steps | {"schedule": {"kind": "cosine", "warmup": 0, "final": 1.0}},
        variants={"constant": {"training.schedule": {"kind": "constant", "warmup": 0}}},
    )
    with pytest.raises(bl.BlocklabError, match="takes no effect"):
        require_differences(plan(study, TEXT))


def test_two_variants_that_train_the_same_are_refused_by_both_names():
    study = minimal(
        variants={
            "one": {"block.norm.kind": "layer"},
            "other": {"block.norm": {"kind": "layer", "eps": 1e-6, "bias": False}},
        }
    )
    with pytest.raises(bl.BlocklabError, match=r"variants\.other: trains what variants\.one"):
        require_differences(plan(study, TEXT))


def test_a_warmup_too_short_for_its_run_takes_no_effect():
    """A tenth of ten steps is the first one, and that is already at the full rate."""
    study = minimal(variants={"no-warmup": {"training.schedule.warmup": 0}})
    with pytest.raises(bl.BlocklabError, match=r"no-warmup: .*the same steps.* takes no effect"):
        require_differences(plan(study, TEXT))


def test_an_error_inside_a_part_says_while_what_it_happened(monkeypatch):
    def fails(self, x):
        raise RuntimeError("a shape does not fit")

    monkeypatch.setattr(bl.parts.LayerNorm, "forward", fails)
    with pytest.raises(RuntimeError) as caught:
        require_differences(plan(minimal(), TEXT))
    assert "while probing variants.layer-norm" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "nuisances",
    [
        {"block.attention.n_kv_heads": [None, 2]},  # what null means here
        {"block.attention.window": [None, 500]},  # longer than the context
        {"training.schedule.warmup": [0, 0.05]},  # too short for ten steps
        {"dropout": [0.0, 0.1], "block.attention.n_kv_heads": [1, None, 2]},
    ],
)
def test_a_nuisance_whose_levels_train_the_same_is_refused(nuisances):
    cells = plan(minimal(nuisances=nuisances), TEXT).cells
    with pytest.raises(bl.BlocklabError, match=r"nuisances: every arm trains the same at .* as at"):
        require_differences(cells[0])


def test_a_nuisance_that_matters_to_one_arm_alone_is_let_through():
    # To four heads null is four; to the variant's two it is what the other level says.
    baseline = {"preset": "modern", "d_model": 32, "n_layers": 1, "n_heads": 4}
    study = minimal(
        baseline=baseline,
        variants={"x": {"block.attention.n_heads": 2}},
        nuisances={"block.attention.n_kv_heads": [None, 2]},
        match="none",
    )
    for cell in plan(study, TEXT).cells:
        require_differences(cell)


def test_looking_more_often_takes_no_effect():
    with pytest.raises(bl.BlocklabError, match="takes no effect"):
        checked(variants={"x": {"training.inspect_every": 5}})
