"""Runs are identified by everything that decides their result, and by nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import blocklab as bl
from blocklab.record import changed, revalidated
from blocklab.study.plan import plan
from blocklab.study.results import Text
from blocklab.training.run import RunSpec
from tests.study.test_study import TEXT, minimal, runs_of


def test_arms_are_trained_over_the_same_rates_and_seeds():
    planned = plan(minimal(), TEXT)
    grid = {(seed, rate) for seed in (1, 2) for rate in (1e-3, 1e-2)}
    for arm in planned.arms:
        own = {(run.seed, run.learning_rate) for run in runs_of(planned) if run.arm == arm.name}
        assert own == grid


def test_the_placebo_differs_from_the_baseline_in_its_draw_alone():
    planned = plan(minimal(), TEXT)
    runs = {(run.arm, run.seed, run.learning_rate): run.spec for run in runs_of(planned)}
    baseline, placebo = runs["baseline", 1, 1e-3], runs["placebo", 1, 1e-3]
    assert baseline.id != placebo.id
    assert placebo.model_copy(update={"draw": ""}) == baseline


def test_adding_a_variant_a_seed_or_a_rate_changes_no_other_runs_id():
    before = {run.id for run in runs_of(plan(minimal(), TEXT))}
    wider = minimal(
        variants={"layer-norm": {"block.norm.kind": "layer"}, "tied": {"tie_embeddings": True}},
        seeds=3,
        training={"steps": 10, "batch_size": 2, "learning_rates": [1e-3, 3e-3, 1e-2]},
    )
    after = {run.id for run in runs_of(plan(wider, TEXT))}
    assert before < after


LEAVES = {
    "seed": 7,
    "draw": "other",
    "data_fingerprint": "0" * 16,
    "torch": "9.9",
    "results": 99,
    "numerics.threads": 2,
    "model.block.norm.eps": 1e-3,
    "model.n_layers": 1,
    "training.clip": 0.3,
    "training.schedule.warmup": 0.2,
    "training.optimizer.weight_decay": 0.3,
    "data.corpus": "python-docs",
    "plugins": {"mine.py": "abcd"},
}


@given(st.sampled_from(sorted(LEAVES)))
def test_every_leaf_of_a_run_is_part_of_its_id(path):
    spec = runs_of(plan(minimal(), TEXT))[0].spec
    assert revalidated(changed(spec, path, LEAVES[path])).id != spec.id


def test_an_id_survives_json():
    spec = runs_of(plan(minimal(), TEXT))[0].spec
    assert RunSpec.model_validate_json(spec.model_dump_json()).id == spec.id


def test_every_arm_is_planned_in_every_cell_of_the_nuisances():
    nuisances = {
        "initialization": [{"kind": "normal", "std": 0.02}, {"kind": "fan_in"}],
        "training.schedule.warmup": [0, 0.1, 0.2],
    }
    planned = plan(minimal(nuisances=nuisances), TEXT)
    assert len(planned.cells) == 6
    for cell in planned.cells:
        assert [arm.name for arm in cell.arms] == ["baseline", "layer-norm", "placebo"]
        assert len({arm.config.initialization for arm in cell.arms}) == 1
        assert len({arm.training.schedule.warmup for arm in cell.arms}) == 1
        assert {arm.config.block.norm.kind for arm in cell.arms} == {"rms", "layer"}
    assert planned.cells[0].arms[0].cell == (
        "initialization normal (std 0.02), training.schedule.warmup 0"
    )


def test_a_variant_that_sets_a_nuisance_is_refused():
    with pytest.raises(bl.BlocklabError, match=r"variants\.layer-norm: sets 'block\.norm'"):
        minimal(nuisances={"block.norm": [{"kind": "rms"}, {"kind": "dyt"}]})
    with pytest.raises(bl.BlocklabError, match="two values"):
        minimal(nuisances={"dropout": [0.1]})


@pytest.mark.parametrize(
    "changes",
    [
        {"block.feed_forward.d_ff": 40},
        {"block.feed_forward": {"d_ff": 40}},
        {"block.feed_forward": {"kind": "mlp", "d_ff": 40}},
        {"block.feed_forward.kind": "mlp", "block.feed_forward": {"d_ff": 40}},
    ],
)
@pytest.mark.parametrize("match", ["parameters", "flops", "time"])
def test_a_width_that_is_stated_stays_however_it_is_said(changes, match):
    # One that was measured before is of no account either.
    study = minimal(variants={"x": changes}, match=match, widths={"x": 96})
    variant = plan(study, TEXT).arms[1]
    assert variant.config.block.feed_forward.d_ff == 40
    assert variant.matched == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"block.feed_forward": {"kind": "mlp"}},
        {"block.feed_forward": {"kind": "mlp", "d_ff": None}},
        # The mapping after it brings a record of its own.
        {"block.feed_forward.d_ff": 40, "block.feed_forward": {"kind": "mlp"}},
    ],
)
def test_a_width_that_is_not_stated_is_solved_for(changes):
    assert plan(minimal(variants={"x": changes}), TEXT).arms[1].matched != {}


def test_a_vocabulary_is_judged_once_the_text_is_read():
    study = minimal(variants={"x": {"vocab_size": 600}})
    unread = Text("", 1024, "", 0.0, 0, 0)
    for text in (unread, TEXT):
        plan(study.model_copy(update={"match": "none"}), text)


def test_a_context_is_a_nuisance_that_all_arms_of_a_comparison_have():
    planned = plan(minimal(nuisances={"context_length": [16, 32]}), TEXT)
    lengths = [{arm.config.context_length for arm in cell.arms} for cell in planned.cells]
    assert lengths == [{16}, {32}]
