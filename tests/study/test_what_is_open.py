"""An interval says its level, and an effect that can be given none says why."""

import math

import pytest

from blocklab.study.across_cells import over_cells
from blocklab.study.course import courses
from blocklab.study.plan import plan
from blocklab.study.summary import summarised
from tests.report.simulated import INITIALIZATIONS, POST, TEXT, bowl, simulated, study
from tests.study.test_summary import run as finished


def effects(result):
    return {arm.name: arm.effect for arm in result.arms[1:]}


@pytest.mark.parametrize(("shift", "level"), [(0.2, 0.99), (0.0, 0.96)])
def test_the_placebos_interval_is_of_the_same_level_as_the_verdicts(shift, level):
    def loss_of(run):
        return bowl(run, noise=0.01) + (shift if run.arm == "post" else 0)

    result = simulated(study(variants=POST, seeds="two-look"), loss_of)
    post, placebo = effects(result).values()
    assert post.level == placebo.level == result.level == level
    assert result.arms[1].verdict.estimate.level == level
    assert placebo.low == pytest.approx(result.arms[2].chance.estimate.low)


def test_effects_over_settings_are_of_the_plans_level():
    planned = plan(study(variants=POST, seeds="two-look"), TEXT)
    runs = [
        finished(name, seed, 3e-3, 3.0 + seed) for name in ("modern", "post") for seed in (1, 2)
    ]
    arms = summarised(planned, courses(planned, {}), runs, lambda run: None)
    merged = over_cells(planned, {"a": arms, "b": arms})
    assert [arm.effect.level for arm in (arms[1], merged[1])] == [0.99, 0.99]


def only_at_the_best(run):
    """`post` trains at one rate and diverges at both beside it, however close."""
    if run.arm == "post" and abs(math.log(run.learning_rate / 3e-3)) > 0.05:
        return None
    return bowl(run) - (0.1 if run.arm == "post" else 0)


def test_an_effect_whose_slack_is_not_bounded_has_no_interval_and_says_why():
    effect = effects(simulated(study(variants=POST), only_at_the_best))["post"]
    assert (effect.low, effect.high) == (None, None)
    assert effect.no_interval == "both rates beside the best diverge"
    assert len(effect.differences) == 5
    assert effect.mean == pytest.approx(-0.1, abs=0.01)


def at_edge(name):
    return lambda run: bowl(run, best=1e-7 if run.arm == name else 3e-3, bend=0.01)


def test_an_effect_from_an_arm_that_stands_at_the_grids_edge_has_none_either():
    found = effects(simulated(study(variants=POST), at_edge("post")))
    assert found["post"].no_interval == "rate at the grid's edge"
    assert found["placebo"].no_interval == ""
    found = effects(simulated(study(variants=POST), at_edge("modern")))
    assert {effect.no_interval for effect in found.values()} == {"modern: rate at the grid's edge"}
    assert all(effect.low is None for effect in found.values())


def test_a_placebo_without_an_estimate_says_the_reason_that_holds():
    (chance,) = (a.chance for a in simulated(study(), at_edge("placebo")).arms if a.chance)
    assert chance.sentence == "placebo: rate at the grid's edge"
    lost = simulated(study(), lambda run: None if run.arm == "placebo" and run.seed else bowl(run))
    (chance,) = (arm.chance for arm in lost.arms if arm.chance)
    assert chance.sentence == "placebo: diverged at every rate"


def test_one_seed_alone_has_no_interval():
    found = effects(simulated(study(seeds=1), bowl))
    assert {effect.no_interval for effect in found.values()} == {"one seed"}


def test_while_an_arm_is_not_read_no_effect_has_an_interval_without_slack():
    whole = simulated(study(variants=POST), bowl)
    result = simulated(study(variants=POST), bowl, most=len(whole.runs) - 1)
    assert {effect.no_interval for effect in effects(result).values()} == {
        "the study is not finished"
    }
    grid = simulated(study(variants=POST, search=False), bowl, most=25)
    assert all(effect.low is not None for effect in effects(grid).values())


@pytest.mark.parametrize("search", [True, False])
def test_losses_are_of_the_seeds_that_effects_are_of(search):
    def loss_of(run):
        before = run.arm == "post" and run.seed <= 5
        return bowl(run) + (0.5 if before else 0)

    base, post, _ = simulated(study(variants=POST, seeds=10, looked=5, search=search), loss_of).arms
    assert set(post.effect.differences) == set(range(6, 11))
    assert post.mean - base.mean == pytest.approx(post.effect.mean)
    assert post.spread < 0.1


HALF = {"repeat_in_float32": True, "numerics": {"dtype": "bfloat16"}}


def repeats_of(loss_of, **changes):
    arms = simulated(study(variants=POST, **HALF, **changes), loss_of).arms
    return {arm.name: arm.repeats for arm in arms}


def ends(half, full):
    """What `post` comes to in half and in full precision."""

    def loss_of(run):
        if run.arm != "post":
            return bowl(run)
        shift = full if run.spec.numerics.dtype == "float32" else half
        return None if shift is None else bowl(run) + shift

    return loss_of


def test_a_repeat_tells_of_both_runs_whichever_diverged():
    (one,), (other,) = (repeats_of(ends(half, 0.0))["post"] for half in (0.01, 0.0))
    assert one.difference - other.difference == pytest.approx(0.01)
    (one,) = repeats_of(ends(None, 0.2))["post"]
    assert (one.half, one.difference, one.trained) == (None, None, True)
    assert one.full is not None
    (one,) = repeats_of(ends(0.2, None))["post"]
    assert (one.full, one.difference, one.trained) == (None, None, True)
    assert one.half is not None


def test_every_setting_has_its_own_repeat():
    (first, second) = repeats_of(ends(None, 0.2), nuisances=INITIALIZATIONS)["post"]
    assert {first.cell, second.cell} == {
        "initialization normal (std 0.02)",
        "initialization fan_in",
    }
    assert first.half is second.half is None


def test_a_repeat_that_is_due_and_not_trained_is_not_one_that_diverged():
    asked = study(variants=POST, **HALF)
    most = len(simulated(asked, bowl).runs) - 1
    arms = simulated(asked, bowl, most=most).arms
    assert sorted(repeat.trained for arm in arms for repeat in arm.repeats) == [False, True, True]
    assert all(arm.repeats == () for arm in simulated(study(variants=POST), bowl).arms)
