"""What a study asks for follows from what is finished, and from nothing else."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklab.errors import BlocklabError
from blocklab.study.across_cells import interactions, over_cells
from blocklab.study.course import courses, missing_runs
from blocklab.study.evidence import merged_windows, tuned_windows
from blocklab.study.plan import plan
from blocklab.study.results import SEARCH_SEED, RunResult
from blocklab.study.summary import summarised
from blocklab.training.run import RunSpec
from tests.study.test_study import TEXT, minimal
from tests.study.test_summary import run as result

RATES = [1e-3, 3e-3, 1e-2]


def searching(**fields):
    recipe = {"steps": 10, "batch_size": 2, "learning_rates": RATES}
    return minimal(**{"search": True, "seeds": 5, "training": recipe} | fields)


def bowl(arm, rate, seed, best=3e-3, depth=3.0):
    """A loss with its best rate where it is told, a little noise by seed, common to the arms."""
    noise = 0.003 * math.sin(100 * seed) + 0.0005 * math.sin(len(arm) * 7 + seed)
    return depth + 0.1 * math.log(rate / best, 3) ** 2 + noise


def trained(planned, loss_of, order=None):
    """Train everything that is asked for, in any order; gives what is known and asked in all."""
    known, asked = {}, {}
    while missing := missing_runs(courses(planned, known), known):
        if order is not None:
            missing = [order.choice(missing)]
        for run in missing:
            asked[run.id] = run
            known[run.id] = loss_of(run)
    return known, asked


def arms_of(planned, known, asked):
    ways = courses(planned, known)
    windows = {}
    runs = []
    for run in asked.values():
        loss = known[run.id]
        made: RunResult = result(run.arm, run.seed, run.learning_rate, loss)
        runs.append(made.__class__(**vars(made) | {"cell": run.cell, "rung": run.rung}))
        if loss is not None:
            windows[run.id] = (loss + 0.001 * np.sin(np.arange(200.0)), np.full(200, 16))
    return {
        cell.arms[0].cell: summarised(
            cell,
            [way for way in ways if way.arm.cell == cell.arms[0].cell],
            runs,
            lambda run: windows[run.id],
        )
        for cell in planned.cells
    }


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.floats(-1.5, 1.5))
def test_the_order_in_which_runs_finish_changes_nothing_that_is_asked_for(seed, shift):
    planned = plan(searching(), TEXT)

    def loss_of(run):
        return bowl(run.arm, run.learning_rate, run.seed, best=3e-3 * 3**shift)

    at_once = trained(planned, loss_of)
    one_by_one = trained(planned, loss_of, random.Random(seed))
    assert at_once[0] == one_by_one[0]


def test_the_searching_seed_never_reports_and_reporting_seeds_never_search():
    planned = plan(searching(), TEXT)
    _, asked = trained(planned, lambda run: bowl(run.arm, run.learning_rate, run.seed))
    for arm in ("baseline", "layer-norm", "placebo"):
        own = [run for run in asked.values() if run.arm == arm]
        reporting = {run.learning_rate for run in own if run.seed != SEARCH_SEED}
        assert len(reporting) == 3
        for seed in (1, 2, 3, 4, 5):
            assert {run.learning_rate for run in own if run.seed == seed} == reporting


def test_each_arm_is_read_at_its_own_best_rate_and_gets_a_verdict():
    planned = plan(searching(), TEXT)

    def loss_of(run):
        if run.arm == "layer-norm":
            return bowl(run.arm, run.learning_rate, run.seed, best=4e-3, depth=3.05)
        return bowl(run.arm, run.learning_rate, run.seed)

    (arms,) = arms_of(planned, *trained(planned, loss_of)).values()
    baseline, variant, placebo = arms
    assert baseline.tuned_rate == pytest.approx(3e-3, rel=0.05)
    assert variant.tuned_rate == pytest.approx(4e-3, rel=0.05)
    assert variant.verdict.word == "worse"
    assert variant.verdict.estimate.mean == pytest.approx(0.05, abs=0.002)
    assert placebo.chance is not None
    assert placebo.verdict is None
    assert baseline.verdict is None


def test_equal_arms_are_equivalent_when_the_text_says_so_too():
    planned = plan(searching(), TEXT)
    cells = arms_of(planned, *trained(planned, lambda r: bowl("", r.learning_rate, r.seed)))
    ((_, variant, _),) = cells.values()
    assert variant.verdict.word == "equivalent"


def test_an_arm_that_falls_beyond_every_extension_is_undecided():
    planned = plan(searching(), TEXT)

    def loss_of(run):
        if run.arm == "layer-norm":
            return 5 - 0.1 * math.log(run.learning_rate)
        return bowl(run.arm, run.learning_rate, run.seed)

    ((_, variant, _),) = arms_of(planned, *trained(planned, loss_of)).values()
    assert variant.verdict.word == "undecided"
    assert "edge" in variant.undecided


def test_an_arm_that_diverges_in_more_pairs_is_unstable_and_nothing_is_imputed():
    planned = plan(searching(), TEXT)

    def loss_of(run):
        if run.arm == "layer-norm" and run.seed in (2, 3):
            return None
        return bowl(run.arm, run.learning_rate, run.seed)

    ((_, variant, _),) = arms_of(planned, *trained(planned, loss_of)).values()
    assert variant.verdict.word == "unstable"
    assert set(variant.verdict.differences) == {1, 4, 5}


def test_an_effect_that_flips_with_a_nuisance_is_found_and_said():
    nuisances = {"initialization": [{"kind": "normal", "std": 0.02}, {"kind": "fan_in"}]}
    planned = plan(searching(nuisances=nuisances), TEXT)

    def loss_of(run):
        sign = -1 if "normal" in run.cell else 1
        depth = 3.0 + (0.3 * sign if run.arm == "layer-norm" else 0.0)
        return bowl(run.arm, run.learning_rate, run.seed, depth=depth)

    cells = arms_of(planned, *trained(planned, loss_of))
    _, variant, _ = over_cells(planned, cells)
    (factor,) = variant.dependence.factors
    assert factor.word == "flips"
    assert not variant.dependence.holds
    assert "flips with initialization" in variant.dependence.sentence


def test_equivalence_can_be_found_over_the_settings_of_a_nuisance():
    planned = plan(searching(nuisances={"n_layers": [1, 2]}, delta=0.05), TEXT)
    known, asked = trained(planned, lambda run: bowl("", run.learning_rate, run.seed))
    cells = arms_of(planned, known, asked)
    ways = courses(planned, known)
    spread = 0.001 * np.sin(np.arange(200.0))

    def windows_of(run):
        return known[run.id] + spread, np.full(200, 16)

    windows = [
        {w.arm.name: tuned_windows(planned, w, windows_of) for w in ways if w.arm.cell == cell}
        for cell in cells
    ]
    _, variant, _ = over_cells(planned, cells, windows)
    assert variant.verdict.word == "equivalent"
    _, variant, _ = over_cells(planned, cells)
    assert variant.verdict.word == "no difference found"


def test_seeds_added_after_looking_are_judged_alone():
    planned = plan(searching(seeds=8, looked=5), TEXT)
    known, asked = trained(planned, lambda r: bowl("", r.learning_rate, r.seed))
    ((_, variant, _),) = arms_of(planned, known, asked).values()
    assert set(variant.verdict.differences) == {6, 7, 8}
    assert variant.verdict.word == "exploratory"
    assert set(variant.effect.differences) == {6, 7, 8}


def test_no_two_rates_of_an_arm_are_the_same_but_for_their_last_digit():
    planned = plan(searching(training={"steps": 10, "learning_rates": [3e-3, 1e-2, 3e-2]}), TEXT)

    def loss_of(run):
        # The searching seed sees the best a little below where all the others do.
        best = 1.8e-2 if run.seed == SEARCH_SEED else 4e-2
        return 3.0 + 0.8 * math.log(run.learning_rate / best, 3) ** 2

    _, asked = trained(planned, loss_of)
    for arm in ("baseline", "layer-norm"):
        rates = sorted({run.learning_rate for run in asked.values() if run.arm == arm})
        assert 0.03 in rates
        assert all(b / a > 1.01 for a, b in itertools.pairwise(rates))


def test_a_searched_arm_has_its_sensitivity_to_the_rate():
    recipe = {"steps": 10, "batch_size": 2, "learning_rates": [1e-3, 3e-3, 1e-2, 3e-2]}
    planned = plan(searching(training=recipe), TEXT)
    loss_of = lambda run: bowl(run.arm, run.learning_rate, run.seed)  # noqa: E731
    (arms,) = arms_of(planned, *trained(planned, loss_of)).values()
    assert all(arm.sensitivity is not None for arm in arms)


def test_windows_of_other_lengths_are_never_averaged():
    losses = np.ones(3)
    cells = [
        {"a": {1: (losses, np.array(weights))}}
        for weights in ([33, 33, 33], [34, 34, 31], [33, 33, 33])
    ]
    assert merged_windows(cells[:2]) == {}
    assert set(merged_windows(cells[::2])) == {"a"}


def test_an_effect_within_the_slack_does_not_hold_over_nuisances():
    planned = plan(searching(nuisances={"n_layers": [1, 2]}), TEXT)
    steep = {"baseline": 9.0, "placebo": 9.0}

    def loss_of(run):
        bend = steep.get(run.arm, 0.01)
        depth = 3.2 if run.arm == "layer-norm" else 3.0
        return depth + bend * math.log(run.learning_rate / 3e-3, 3) ** 2

    cells = arms_of(planned, *trained(planned, loss_of))
    for arms in cells.values():
        assert arms[1].slack < 0.01
    wide = {
        name: tuple(replace(arm, slack=0.3) if arm.role == "baseline" else arm for arm in arms)
        for name, arms in cells.items()
    }
    held, hidden = (over_cells(planned, here)[1] for here in (cells, wide))
    assert (held.verdict.word, held.dependence.holds) == ("worse", True)
    assert hidden.verdict.p < 0.05
    assert (hidden.verdict.word, hidden.dependence.holds) == ("no difference found", False)


def test_a_two_by_two_gets_its_interaction_with_an_interval():
    variants = {
        "post": {"block.placement": "post"},
        "cold": {"training.schedule.warmup": 0},
        "both": {"block.placement": "post", "training.schedule.warmup": 0},
    }
    asked_for = {"placement-and-warmup": ["post", "cold", "both"]}
    planned = plan(searching(variants=variants, interactions=asked_for), TEXT)
    depths = {"post": 3.1, "cold": 3.02, "both": 3.5}

    def loss_of(run):
        depth = depths.get(run.arm, 3.0)
        return bowl(run.arm, run.learning_rate, run.seed, depth=depth)

    cells = arms_of(planned, *trained(planned, loss_of))
    (found,) = interactions(planned, *cells.values(), cells).values()
    assert found.word == "together worse than the sum"
    assert found.estimate.mean == pytest.approx(0.38, abs=0.01)


@pytest.mark.parametrize(
    ("asked_for", "words"),
    [(["layer-norm", "gone", "layer-norm"], "gone"), (["layer-norm"] * 2 + ["tied"], "together")],
)
def test_an_interaction_of_other_variants_is_refused(asked_for, words):
    variants = {"layer-norm": {"block.norm.kind": "layer"}, "tied": {"tie_embeddings": True}}
    with pytest.raises(BlocklabError, match=rf"interactions\.x.*{words}"):
        searching(variants=variants, interactions={"x": asked_for})


def test_one_seed_of_every_arm_is_repeated_in_float32_and_the_difference_told():
    half = {"numerics": {"dtype": "bfloat16"}, "repeat_in_float32": True}
    planned = plan(searching(**half), TEXT)

    def loss_of(run):
        off = 0.004 if run.spec.numerics.dtype == "bfloat16" else 0.0
        return bowl(run.arm, run.learning_rate, run.seed) + off

    known, asked = trained(planned, loss_of)
    full = [run for run in asked.values() if run.spec.numerics.dtype == "float32"]
    # They are foreseen before anything is trained, and while only they are missing yet.
    once, never = courses(planned, {}), courses(plan(searching(), TEXT), {})
    assert [way.n_expected - other.n_expected for way, other in zip(once, never, strict=True)] == (
        [1] * 3
    )
    ended = {run_id: loss for run_id, loss in known.items() if asked[run_id] not in full}
    assert sum(way.n_expected for way in courses(planned, ended)) == len(asked)
    assert sorted((run.arm, run.seed) for run in full) == [
        ("baseline", 1),
        ("layer-norm", 1),
        ("placebo", 1),
    ]
    (arms,) = arms_of(planned, known, asked).values()
    found = [repeat.difference for arm in arms for repeat in arm.repeats]
    assert found == pytest.approx([0.004] * 3)
    assert [len(point.losses) for point in arms[0].rates] == [1, 5, 5, 5, 1]
    plain = plan(searching(repeat_in_float32=True), TEXT)
    assert all(run.rung == "" for run in trained(plain, loss_of)[1].values())


def test_without_a_search_the_grid_alone_is_trained():
    planned = plan(minimal(), TEXT)
    _, asked = trained(planned, lambda run: 3.0)
    assert {run.seed for run in asked.values()} == {1, 2}
    assert len(asked) == 3 * 2 * 2


def test_watching_writes_out_each_record_once_however_many_runs_there_are(monkeypatch):
    # Asked for at every message of every run, an id cost a study of 400 runs five minutes.
    written = []
    plain = RunSpec.plain
    monkeypatch.setattr(RunSpec, "plain", lambda spec: written.append(spec) or plain(spec))
    planned = plan(searching(), TEXT)
    known, _ = trained(
        planned,
        lambda run: bowl(run.arm, run.learning_rate, run.seed),
        random.Random(0),
    )
    assert len(written) == len(known)
