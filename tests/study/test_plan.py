"""Runs are identified by everything that decides their result, and by nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from blocklab.record import changed, revalidated
from blocklab.study.plan import plan
from blocklab.training.run import RunSpec
from tests.study.test_study import TEXT, minimal


def test_arms_are_trained_over_the_same_rates_and_seeds():
    planned = plan(minimal(), TEXT)
    grid = {(seed, rate) for seed in (1, 2) for rate in (1e-3, 1e-2)}
    for arm in planned.arms:
        own = {(run.seed, run.learning_rate) for run in planned.runs if run.arm == arm.name}
        assert own == grid


def test_the_placebo_differs_from_the_baseline_in_its_draw_alone():
    planned = plan(minimal(), TEXT)
    runs = {(run.arm, run.seed, run.learning_rate): run.spec for run in planned.runs}
    baseline, placebo = runs["baseline", 1, 1e-3], runs["placebo", 1, 1e-3]
    assert baseline.id != placebo.id
    assert placebo.model_copy(update={"draw": ""}) == baseline


def test_adding_a_variant_a_seed_or_a_rate_changes_no_other_runs_id():
    before = {run.spec.id for run in plan(minimal(), TEXT).runs}
    wider = minimal(
        variants={"layer-norm": {"block.norm.kind": "layer"}, "tied": {"tie_embeddings": True}},
        seeds=3,
        training={"steps": 10, "batch_size": 2, "learning_rates": [1e-3, 3e-3, 1e-2]},
    )
    after = {run.spec.id for run in plan(wider, TEXT).runs}
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
    spec = plan(minimal(), TEXT).runs[0].spec
    assert revalidated(changed(spec, path, LEAVES[path])).id != spec.id


def test_an_id_survives_json():
    spec = plan(minimal(), TEXT).runs[0].spec
    assert RunSpec.model_validate_json(spec.model_dump_json()).id == spec.id
