"""Over the settings of the nuisances an arm says what it may, and where it may not."""

from dataclasses import replace

import pytest

from blocklab.study.across_cells import over_cells
from blocklab.study.plan import plan
from tests.report.simulated import INITIALIZATIONS, POST, TEXT, bowl, simulated, study

FAN_IN, NORMAL = "initialization fan_in", "initialization normal (std 0.02)"


def at_edge(where=""):
    """`post` has its best rate far below the grid, at the settings whose names hold `where`."""

    def loss_of(run):
        lost = run.arm == "post" and where in run.cell
        return bowl(run, best=1e-7 if lost else 3e-3, bend=0.01)

    return loss_of


def verdict_of(name, result):
    return next(arm.verdict for arm in result.arms if arm.name == name)


def test_what_is_undecided_at_one_setting_is_said_to_be_so_there():
    asked = study(variants=POST, nuisances=INITIALIZATIONS)
    one = verdict_of("post", simulated(asked, at_edge("fan_in")))
    assert one.sentence == f"undecided: rate at the grid's edge at {FAN_IN}"


def test_a_reason_that_every_setting_shares_is_said_once_and_without_them():
    asked = study(variants=POST, nuisances=INITIALIZATIONS)
    one = verdict_of("post", simulated(asked, at_edge()))
    assert one.sentence == "undecided: rate at the grid's edge"


def test_two_reasons_stand_each_with_its_own_setting():
    def loss_of(run):
        if run.arm == "post" and "fan_in" in run.cell:
            return None
        return at_edge("normal")(run)

    asked = study(variants=POST, nuisances=INITIALIZATIONS)
    reason = verdict_of("post", simulated(asked, loss_of)).reason
    assert reason == f"rate at the grid's edge at {NORMAL}; diverged at every rate at {FAN_IN}"


def test_an_arm_that_diverges_everywhere_takes_no_verdict_from_another():
    asked = study(nuisances=INITIALIZATIONS)

    def loss_of(run):
        return bowl(run, noise=0.0005)

    def one_lost(run):
        return None if run.arm == "post" else loss_of(run)

    assert verdict_of("ln", simulated(asked, loss_of)).word == "equivalent"
    assert verdict_of("ln", simulated(asked, one_lost)).word == "equivalent"


CHANGES = {
    "a": {"block.norm.kind": "layer"},
    "b": {"block.placement": "output"},
    "ab": {"block.norm.kind": "layer", "block.placement": "output"},
}
SQUARE = {"variants": CHANGES, "interactions": {"a x b": ("a", "b", "ab")}}


def interaction_of(asked, loss_of):
    (found,) = simulated(asked, loss_of).interactions.values()
    return found


def together(by):
    """Both changes together are worth so many nats more than each alone, at every setting."""

    def loss_of(run):
        return bowl(run, noise=0.001) + (by(run) if run.arm == "ab" else 0)

    return loss_of


def test_an_interaction_may_not_claim_what_one_of_its_arms_may_not():
    better = together(lambda run: -0.1)
    assert interaction_of(study(**SQUARE), better).word == "together better than the sum"
    for name in CHANGES:
        found = interaction_of(
            study(**SQUARE),
            lambda run, name=name: None if (run.arm, run.seed) == (name, 1) else better(run),
        )
        assert (found.word, found.n_complete, found.p) == ("unstable", 4, None)
        assert found.sentence.startswith(f"unstable: {name} diverged in 1 of 5 (")


def test_an_interaction_from_some_of_the_seeds_says_from_how_many():
    def loss_of(run):
        lost = (run.arm, run.seed) == ("modern", 1)
        return None if lost else together(lambda run: -0.1)(run)

    found = interaction_of(study(**SQUARE), loss_of)
    assert found.word == "together better than the sum"
    assert found.sentence.endswith("; 4 of 5 seeds)")


def test_an_interaction_that_changes_its_sign_with_a_nuisance_is_seen_to():
    flips = together(lambda run: -0.3 if "fan_in" in run.cell else 0.1)
    found = interaction_of(study(**SQUARE, nuisances=INITIALIZATIONS), flips)
    (factor,) = found.dependence.factors
    assert factor.word == "flips"
    effects = {level: round(one.mean, 1) for level, one in factor.by_level.items()}
    assert effects == {"normal (std 0.02)": 0.1, "fan_in": -0.3}
    same = interaction_of(study(**SQUARE, nuisances=INITIALIZATIONS), together(lambda run: -0.2))
    assert (same.dependence.holds, same.dependence.factors[0].word) == (True, "not shown to depend")
    assert interaction_of(study(**SQUARE), together(lambda run: -0.2)).dependence is None


def test_an_interaction_waits_for_all_of_its_arms():
    better = together(lambda run: -0.1)
    for nuisances in ({}, INITIALIZATIONS):
        asked = study(**SQUARE, nuisances=nuisances)
        n = len(simulated(asked, better).runs)
        for most in (n // 3, n - 30):
            assert simulated(asked, better, most=most).interactions == {}


def test_an_interaction_leaves_out_the_setting_at_which_one_of_its_arms_is_undecided():
    def loss_of(run):
        lost = run.arm == "b" and "fan_in" in run.cell
        return bowl(run, best=1e-7 if lost else 3e-3, bend=0.01)

    found = interaction_of(study(**SQUARE, nuisances=INITIALIZATIONS), loss_of)
    assert found.sentence == f"undecided: b: rate at the grid's edge at {FAN_IN}"
    assert found.dependence.left_out == (FAN_IN,)


def test_an_interrupted_study_shows_no_interval_at_any_setting_or_over_them():
    asked = study(variants=POST, nuisances=INITIALIZATIONS)
    whole = simulated(asked, bowl)
    result = simulated(asked, bowl, most=len(whole.runs) - 1)
    arms = [*result.arms, *(arm for arms in result.cells.values() for arm in arms)]
    effects = [arm.effect for arm in arms if arm.effect is not None]
    # The settings that are finished have theirs.
    known = [effect for effect in effects if not effect.no_interval]
    assert len(known) == 2
    assert all(
        (effect.low, effect.high) == (None, None) for effect in effects if effect.no_interval
    )
    first = result.arms[1].effect
    assert (first.no_interval, len(first.differences)) == ("the study is not finished", 5)
    assert first.mean == pytest.approx(whole.arms[1].effect.mean)


def test_a_recall_over_settings_is_of_the_runs_of_all_of_them_and_of_none_without_one():
    planned = plan(study(variants=POST, search=False, nuisances=INITIALIZATIONS), TEXT)
    result = simulated(planned.study, bowl)
    found = {"normal": (0.5, 5), "fan_in": (0.7, 4)}
    for recall, n in ((0.7, 4), (None, 0)):
        found["fan_in"] = (recall, n)
        cells = {
            name: tuple(replace(arm, recall=share, n_recall=runs) for arm in arms)
            for (name, arms), (share, runs) in zip(
                result.cells.items(), found.values(), strict=True
            )
        }
        over = over_cells(planned, cells)[0]
        assert (over.recall, over.n_recall) == (
            (None, 5) if recall is None else (pytest.approx(0.6), 9)
        )
        assert over.n_at_best == 10
