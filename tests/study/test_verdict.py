"""The words of a verdict: each by a case at its border, their order, and what moves none."""

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from blocklab.errors import BlocklabError
from blocklab.study.divergence import Divergence
from blocklab.study.looks import first_look, second_look
from blocklab.study.statistics import fisher, holm, paired
from blocklab.study.verdict import (
    ArmEvidence,
    Verdict,
    enough_pairs,
    needs_second_look,
    placebo,
    verdicts,
)
from blocklab.study.wording import n_seeds

SEEDS = (1, 2, 3, 4, 5)
BETTER = (-0.020, -0.031, -0.012, -0.024, -0.018)
WORSE = (0.012, 0.015, 0.009, 0.014, 0.010)
NOTHING = (-0.004, 0.003, 0.001, -0.002, 0.004)
VERDICT_WORDS = ("undecided", "unstable", "too few", "better", "worse", "equivalent", "difference")


def arm(name, losses, **facts):
    return ArmEvidence(name, dict(zip(SEEDS, losses, strict=False)), **facts)


BASELINE = arm("modern", [3.0] * 5)


def variant(differences, name="variant", **facts):
    losses = [None if d is None else 3.0 + d for d in differences]
    return arm(name, losses, **facts)


def judged(differences, seeds=SEEDS, baseline=BASELINE, delta=0.01, **facts) -> Verdict:
    return verdicts(baseline, [variant(differences, **facts)], seeds, delta)[0]


def test_the_printed_family():
    rows = {"a": WORSE, "b": NOTHING, "c": BETTER}
    found = verdicts(
        arm("modern", [3.0] * 5, slack=0.0005),
        [variant(row, name, slack=0.001) for name, row in rows.items()],
        SEEDS,
    )
    assert [one.word for one in found] == ["worse", "no difference found", "better"]
    assert [one.p for one in found] == pytest.approx([0.001937, 1, 0.005838], rel=3e-4)
    assert [one.detectable for one in found] == pytest.approx(
        [0.00971, 0.01248, 0.02514], abs=0.51e-5
    )
    assert found[2].sentence == "better by 0.0210 nats (95 %: -0.0308 to -0.0117; p = 0.0058)"
    assert found[1].sentence == (
        "no difference found (95 %: -0.0048 to +0.0051; 0.0125 nats or more would have been seen) "
        "[the evaluation's own interval is not known]"
    )


def test_better_but_by_less_than_delta():
    one = judged([0.2 * d for d in BETTER])
    assert (one.word, one.below_delta) == ("better", True)
    assert one.sentence.startswith("better by 0.0042 nats, but by less than 0.01 (95 %:")
    assert not judged(BETTER).below_delta


def test_equivalent_needs_the_evaluations_interval_inside_too():
    assert judged(NOTHING, evaluation=(-0.002, 0.003)).word == "equivalent"
    assert judged(NOTHING, evaluation=(-0.002, 0.003)).sentence == (
        "equivalent within 0.01 nats (95 %: -0.0038 to +0.0046)"
    )
    wide = judged(NOTHING, evaluation=(-0.002, 0.0101))
    assert wide.word == "no difference found"
    assert "validation text leaves -0.0020 to +0.0101 nats open" in wide.sentence
    assert judged(NOTHING).word == "no difference found"
    assert judged(NOTHING, evaluation=(-0.001, 0.001), delta=0.004).word == "no difference found"


def test_slack_turns_equivalent_into_not_found_and_is_said():
    one = judged(NOTHING, evaluation=(-0.002, 0.003), slack=0.0075)
    assert one.word == "no difference found"
    assert "nothing below the slack of 0.0075 nats is resolved" in one.sentence


def test_a_difference_within_the_slack_of_either_arm_is_not_called_one():
    small = [0.002 + 0.01 * d for d in NOTHING]
    vague = arm("modern", [3.0] * 5, slack=0.0125)
    one = judged(small, baseline=vague)
    assert one.estimate.low > 0 and one.p < 0.05
    assert one.word == "no difference found"
    assert "[the difference is within the slack of 0.0125 nats]" in one.sentence
    vague = arm("modern", [3.0] * 5, slack=0.0025)
    assert judged(small, baseline=vague, evaluation=(0.001, 0.003)).word == "equivalent"
    assert judged(small).word == "worse"


def test_undecided_comes_before_everything_and_says_why_of_either_arm():
    one = judged([None] * 5, undecided="rate at the grid's edge", slack=math.inf)
    assert one.sentence.startswith("undecided: rate at the grid's edge")
    lost = arm("modern", [3.0] * 5, undecided="rate at the grid's edge")
    one = judged(BETTER, baseline=lost)
    assert (one.word, one.p) == ("undecided", None)
    assert one.reason == "modern: rate at the grid's edge"


def test_unstable_when_it_diverged_in_more_pairs_than_the_baseline():
    one = judged([None, *BETTER[1:]])
    assert one.word == "unstable"
    assert one.sentence == "unstable: diverged in 1 of 5 (1 % to 72 %) against 0 of 5 (0 % to 52 %)"
    # As often as the baseline, in the same pair: four complete pairs are enough.
    shaky = arm("modern", [math.nan, 3.0, 3.0, 3.0, 3.0])
    one = judged([None, *BETTER[1:]], baseline=shaky)
    assert (one.word, len(one.differences)) == ("better", 4)
    assert "diverged in 1 of 5 (1 % to 72 %) against 1 of 5 (1 % to 72 %)" in one.sentence


def test_too_few_complete_pairs():
    shaky = arm("modern", [None, 3.0, 3.0, 3.0, 3.0])
    one = judged([*BETTER[:4], math.inf], baseline=shaky)
    assert one.sentence.startswith("too few complete pairs: 3 of 5")
    # A run that is not there is an incomplete pair, and no divergence.
    missing = ArmEvidence("variant", {1: 2.9, 2: 2.9, 3: 2.9})
    one = verdicts(BASELINE, [missing], SEEDS)[0]
    assert (one.word, one.divergence.n) == ("too few complete pairs", 3)


def test_eight_of_ten_pairs_are_enough_and_seven_are_not():
    assert [enough_pairs(n, 10) for n in (7, 8)] == [False, True]
    assert [enough_pairs(n, 5) for n in (3, 4)] == [False, True]
    assert not enough_pairs(1, 1)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_under_five_seeds_no_verdict_word_is_said(n):
    for facts in ({}, {"undecided": "rate at the grid's edge"}):
        for row in (BETTER, WORSE, NOTHING, (None,) * 5, (None, *WORSE)):
            one = judged(row, seeds=SEEDS[:n], **facts)
            assert one.word == "exploratory"
            assert one.sentence.startswith(f"exploratory ({n_seeds(n)}): ")
            assert not any(word in one.sentence for word in (*VERDICT_WORDS, "stable"))
    assert "-0.0255" in judged(BETTER, seeds=SEEDS[:2]).sentence


def test_no_loss_stands_in_for_a_diverged_run():
    shaky = arm("modern", [None, 3.0, 3.0, 3.0, 3.0])
    one = judged([None, *BETTER[1:]], baseline=shaky)
    assert one.differences == pytest.approx(dict(zip(SEEDS[1:], BETTER[1:], strict=True)))
    assert one.estimate == paired(list(one.differences.values()))


def test_seeds_that_were_not_planned_are_not_looked_at():
    extra = ArmEvidence("variant", {**variant(NOTHING).losses, 6: 1.0, 7: None})
    base = ArmEvidence("modern", {**BASELINE.losses, 6: 3.0, 7: 3.0})
    assert verdicts(base, [extra], SEEDS) == verdicts(BASELINE, [variant(NOTHING)], SEEDS)


def test_one_that_cannot_be_tested_still_counts_in_the_family():
    lost = variant(BETTER, "lost", undecided="rate at the grid's edge")
    found = verdicts(BASELINE, [variant(WORSE), lost, variant(BETTER)], SEEDS)
    alone = [paired(row).p for row in (WORSE, BETTER)]
    assert [found[0].p, found[2].p] == pytest.approx([3 * alone[0], 2 * alone[1]], rel=1e-6)
    assert found[1].p is None


def test_less_stable_is_said_with_fishers_p_below_five_in_a_hundred_only():
    assert not Divergence(3, 0, 5).less_stable
    assert Divergence(4, 0, 5).less_stable
    assert Divergence(4, 0, 5).sentence.endswith("less stable (p = 0.048)")
    assert not Divergence(0, 5, 5).less_stable
    assert Divergence(4, 0, 5).p == fisher(4, 5, 0, 5)


def test_the_first_of_two_looks_is_stricter():
    one = verdicts(BASELINE, [variant(BETTER)], SEEDS, look=first_look())[0]
    raw = paired(BETTER, level=0.99)
    assert one.p == pytest.approx(5 * raw.p)
    assert one.estimate.level == 0.99
    assert (one.estimate.low, one.estimate.high) == pytest.approx((raw.low, raw.high), rel=1e-6)
    assert not needs_second_look([one])
    assert needs_second_look(verdicts(BASELINE, [variant(NOTHING)], SEEDS, look=first_look()))


def test_the_second_look_remembers_the_first():
    ten = range(1, 11)
    base = ArmEvidence("modern", dict.fromkeys(ten, 3.0))
    late = ArmEvidence("variant", {i: 3 + d for i, d in zip(ten, BETTER + NOTHING, strict=True)})
    now = paired([*BETTER, *NOTHING])
    earlier = paired(BETTER)
    one = verdicts(base, [late], ten, look=second_look({"variant": earlier}))[0]
    assert one.p == pytest.approx(min(5 * earlier.p, 1.25 * now.p))
    assert one.estimate.level == 0.96
    # A first look that was sure keeps its word, in its own direction.
    flat = ArmEvidence("variant", {i: 3 + d for i, d in zip(ten, WORSE + BETTER, strict=True)})
    one = verdicts(base, [flat], ten, look=second_look({"variant": paired(WORSE)}))[0]
    assert one.estimate.mean < 0
    assert one.word == "worse"
    # It shows the figures that it comes from, and beside them what all seeds say.
    assert one.earlier == paired(WORSE)
    assert f"worse by {one.earlier.mean:.4f} nats, as the first look found" in one.sentence
    assert f"all seeds together: {one.estimate.mean:+.4f}" in one.sentence
    # Without one (too few pairs then) the second look pays its own price.
    one = verdicts(base, [late], ten, look=second_look({}))[0]
    assert one.p == pytest.approx(1.25 * now.p)


def test_the_placebo_stands_outside_the_family_and_warns_below_one_in_a_hundred():
    found = placebo(BASELINE, variant(WORSE, "placebo"), SEEDS)
    assert found.estimate.p == pytest.approx(paired(WORSE).p, rel=1e-6)
    assert found.warning is not None and found.warning in found.sentence
    assert not any(f"{word} by" in found.sentence for word in ("better", "worse"))
    assert placebo(BASELINE, variant(NOTHING), SEEDS).warning is None
    assert placebo(BASELINE, variant([None] * 5), SEEDS).sentence == (
        "placebo: no two complete pairs"
    )


def test_a_slack_that_nobody_knows_needs_a_reason():
    for slack in (math.inf, math.nan, -0.1):
        with pytest.raises(BlocklabError, match=r"variant: slack"):
            variant(NOTHING, slack=slack)


# Losses on a grid and slacks beside it, so that no word hangs on the last bit of a sum.
loss = st.one_of(
    st.none(), st.just(math.nan), st.integers(29_000, 31_000).map(lambda k: k / 10_000)
)
slacks = st.integers(0, 60).map(lambda k: k / 3_333)
losses_of_five = st.lists(loss, min_size=5, max_size=5)
reasons = st.one_of(st.none(), st.just("rate at the grid's edge"))
evaluations = st.one_of(st.none(), st.tuples(st.floats(-0.02, 0), st.floats(0, 0.02)))
arms = st.builds(
    lambda losses, slack, undecided, evaluation: arm(
        "variant", losses, slack=slack, undecided=undecided, evaluation=evaluation
    ),
    losses_of_five,
    slacks,
    reasons,
    evaluations,
)


def expected_word(baseline, variants, place, n, delta):
    """The order of the words, written as one reads it."""
    one = variants[place]
    seeds = SEEDS[:n]

    def failed(arm, seed):
        return arm.losses[seed] is None or not math.isfinite(arm.losses[seed])

    def tested(one):
        if one.undecided or baseline.undecided:
            return False
        count = sum(failed(one, seed) for seed in seeds)
        if count > sum(failed(baseline, seed) for seed in seeds):
            return False
        return sum(not failed(one, s) and not failed(baseline, s) for s in seeds) >= 0.8 * n

    def effect(one):
        both = [s for s in seeds if not failed(one, s) and not failed(baseline, s)]
        values = [one.losses[s] - baseline.losses[s] for s in both]
        return paired(values, one.slack, baseline.slack)

    if n < 5:
        return "exploratory"
    if one.undecided or baseline.undecided:
        return "undecided"
    if sum(failed(one, s) for s in seeds) > sum(failed(baseline, s) for s in seeds):
        return "unstable"
    if not tested(one):
        return "too few complete pairs"
    family = holm([effect(v).p if tested(v) else math.nan for v in variants])
    if family[place] < 0.05 and abs(effect(one).mean) > max(one.slack, baseline.slack):
        return "better" if effect(one).mean < 0 else "worse"
    inside = -delta < effect(one).low and effect(one).high < delta
    if inside and one.evaluation and max(map(abs, one.evaluation)) < delta:
        return "equivalent"
    return "no difference found"


@settings(deadline=None)
@given(arms, st.lists(arms, min_size=1, max_size=3), st.integers(3, 5), st.floats(0.001, 0.2))
def test_every_study_gets_exactly_one_word_in_the_fixed_order(baseline, variants, n, delta):
    found = verdicts(baseline, variants, SEEDS[:n], delta)
    for place, one in enumerate(found):
        assert one.word == expected_word(baseline, variants, place, n, delta)
        assert one.sentence


@settings(deadline=None)
@given(arms, arms, st.floats(-1, 1), st.permutations(SEEDS))
def test_a_constant_for_both_arms_and_the_order_of_seeds_change_nothing(base, one, shift, order):
    def moved(arm, names):
        losses = {
            name: None if (x := arm.losses[seed]) is None else x + shift
            for name, seed in zip(names, SEEDS, strict=True)
        }
        return ArmEvidence("variant", losses, arm.slack, arm.undecided, arm.evaluation)

    (before,) = verdicts(base, [one], SEEDS)
    (after,) = verdicts(moved(base, order), [moved(one, order)], SEEDS)
    assume(before.p is None or abs(before.p - 0.05) > 1e-6)
    assert after.p == pytest.approx(before.p, abs=1e-6)
    if before.estimate is not None:
        assume(min(abs(abs(x) - 0.01) for x in (before.estimate.low, before.estimate.high)) > 1e-9)
        assert after.estimate.mean == pytest.approx(before.estimate.mean, abs=1e-9)
    assert after.word == before.word


@settings(deadline=None)
@given(arms, arms)
def test_with_the_arms_exchanged_better_is_worse(first, second):
    there = verdicts(first, [second], SEEDS)[0].word
    back = verdicts(second, [first], SEEDS)[0].word
    opposite = {"better": "worse", "worse": "better"}
    if there in opposite and back not in ("unstable",):
        assert back == opposite[there]


def test_a_first_look_within_its_slack_names_its_own_slack():
    ten = range(1, 11)
    base = ArmEvidence("modern", dict.fromkeys(ten, 3.0))
    late = ArmEvidence("variant", {i: 3 + d for i, d in zip(ten, WORSE + BETTER, strict=True)})
    earlier = paired([0.05 + d / 100 for d in WORSE], slack_above=0.06)
    one = verdicts(base, [late], ten, look=second_look({"variant": earlier}))[0]
    assert one.word == "no difference found"
    assert "[the difference is within the slack of 0.0600 nats]" in one.sentence
