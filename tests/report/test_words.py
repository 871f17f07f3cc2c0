"""The sentences say what the numbers say, and no more."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklab.report import limits, words
from blocklab.study.results import LadderResult, RungResult

from .factory import UNIGRAM, modern_block, study

VERDICTS = (
    "significan", "equivalent", "no difference found", "undecided", "reject", "prove", "unstable",
)  # fmt: skip
LOSS = st.floats(2, 5.5)


def numbers(text):
    return [float(n.replace("−", "-")) for n in re.findall(r"−?\d+(?:\.\d+)?", text)]


def everything(result):
    return [
        words.headline(result), *words.sentences(result), *limits.warnings(result),
        *(text for _, text in limits.limits(result)),
    ]  # fmt: skip


@given(st.lists(st.tuples(LOSS, LOSS), min_size=1, max_size=7))
def test_a_sentence_agrees_with_the_numbers(pairs):
    losses = {
        "base": {(seed, 1e-2): pair[0] for seed, pair in enumerate(pairs)},
        "other": {(seed, 1e-2): pair[1] for seed, pair in enumerate(pairs)},
    }
    result = study(losses, points=1)
    other = result.arms[1]
    text = words.sentence(other, result).removeprefix("other (block.norm.kind: other): ")
    effect = other.effect
    if effect.mean == 0:
        assert "worse" not in text
        assert "better" not in text
    else:
        assert ("nats worse than base" in text) == (effect.mean > 0)
        assert ("nats better than base" in text) == (effect.mean < 0)
        assert numbers(text)[0] == pytest.approx(abs(effect.mean), abs=0.00051)
    assert ("exploratory: fewer than five seeds" in text) == (len(pairs) < 5)
    assert ("95 %" in text) == (len(pairs) > 1)
    if len(pairs) > 1:
        low, high = re.search(r"95 %: (\S+) to ([^\s,;]+)", text).groups()
        assert numbers(low)[0] == pytest.approx(effect.low, abs=0.00051)
        assert numbers(high)[0] == pytest.approx(effect.high, abs=0.00051)
        assert ("the interval includes zero" in text) == (
            effect.mean != 0 and effect.low <= 0 <= effect.high
        )


@pytest.mark.parametrize("result", [modern_block(), modern_block(5, (3e-3, 1e-2, 3e-2))])
def test_there_is_no_verdict(result):
    for text in everything(result):
        assert not [word for word in VERDICTS if word in text.lower()]


def test_the_headline_sorts_the_variants_by_their_intervals():
    losses = {
        name: {(seed, 1e-2): 3.5 + shift + 0.001 * (seed * k % 5) for seed in range(5)}
        for k, (name, shift) in enumerate(
            {"base": 0, "lower": -0.2, "same": 0, "higher": 0.3, "other": 0.4}.items(), 1
        )
    }
    losses["lost"] = {(seed, 1e-2): None for seed in range(5)}
    assert words.headline(study(losses)) == (
        "Against base, each arm at its own best learning rate, the 95 % interval of the difference "
        "in validation loss lies below zero (lower loss) for lower; it includes zero for same; it "
        "lies above zero (higher loss) for higher and other; it cannot be given for lost."
    )


def test_divergence_is_counted_against_the_baseline():
    result = modern_block(5, (3e-3, 1e-2, 3e-2))
    post = next(arm for arm in result.arms if arm.name == "post-norm")
    assert "4 of 15 runs diverged, against 0 of 15 of modern." in words.sentence(post, result)
    assert words.sentence(result.baseline, result).endswith("0 of 15 runs diverged.")


def test_a_best_rate_at_the_edge_is_said_but_not_for_a_single_rate():
    result = modern_block()
    assert "Its best rate, 0.01, is the highest of the grid" in words.sentence(
        result.baseline, result
    )
    single = modern_block(3, (1e-2,))
    assert not [text for text in words.sentences(single) if "of the grid" in text]


def test_stalling_is_said_with_its_count():
    losses = {"m": {(s, 1e-2): 3.5 for s in range(3)}, "p": {(s, 1e-2): UNIGRAM for s in range(3)}}
    result = study(losses)
    assert "3 of 3 runs at its best rate stalled on the unigram entropy (5.940 nats)" in (
        words.sentence(result.arms[1], result)
    )


@pytest.mark.parametrize(
    ("base", "other", "why"),
    [
        ({(0, 1.0): 3.5}, {(0, 1.0): None}, "the only run of other diverged"),
        ({(0, 1.0): None}, {(0, 1.0): 3.5}, "the only run of base diverged"),
        (
            {(0, 1.0): 3.5, (1, 1.0): None},
            {(0, 1.0): None, (1, 1.0): 3.5},
            "no seed finished both here and in base at their best rates",
        ),
    ],
)
def test_without_a_complete_pair_the_reason_is_given(base, other, why):
    result = study({"base": base, "other": other})
    assert f"no difference can be given, because {why}." in words.sentence(result.arms[1], result)


def test_incomplete_pairs_are_counted():
    losses = {
        "base": {(seed, 1e-2): 3.5 for seed in range(5)},
        "other": {(seed, 1e-2): None if seed in (1, 3) else 3.6 for seed in range(5)},
    }
    result = study(losses)
    text = words.sentence(result.arms[1], result)
    assert "3 of 5 seeds" in text
    assert "2 pairs are incomplete and left out" in text
    assert words.headline(result).endswith("exploratory, with fewer than five seeds.")


def test_a_placebo_says_what_chance_alone_gives():
    result = modern_block()
    placebo = result.arms[-1]
    largest = max(abs(d) for d in placebo.effect.differences.values())
    assert f"single seeds differ by up to {largest:.3f} nats" in words.sentence(placebo, result)


def test_a_baseline_without_a_loss_is_said_first():
    result = study({"base": {(0, 1.0): None}, "other": {(0, 1.0): 3.5}})
    assert words.headline(result).startswith(
        "base, the baseline, has no loss, because the only run of base diverged"
    )
    assert words.headline(study({"base": {(0, 1.0): 3.5}})).startswith("base was trained alone")


def test_the_first_lines_warn_of_few_seeds_many_epochs_and_little_validation_text():
    assert limits.warnings(modern_block(5)) == []
    result = modern_block(3)
    facts = dataclasses.replace(result.facts, validation_tokens=99_999)
    runs = tuple(dataclasses.replace(run, epochs=4.2) for run in result.runs)
    few, epochs, little = limits.warnings(dataclasses.replace(result, facts=facts, runs=runs))
    assert "3 seeds" in few
    assert "4.2 times" in epochs
    assert "99,999 validation tokens" in little


def test_what_it_cannot_claim_names_scale_corpus_grid_and_gap():
    result = modern_block()
    found = dict(limits.limits(result))
    for word in ("280 k parameters", "307,200 tokens", "1.1 tokens a parameter", "0.073 epochs"):
        assert word in found["Scale"]
    assert "need not hold at another" in found["Scale"]
    assert "python-library in bpe:1024" in found["One corpus"]
    assert "0.003 and 0.01" in found["Learning rates"]
    assert "one at a time" in found["Intervals"]
    assert "up to 15 %" in found["Intervals"]
    assert "modern +0.040" in found["Training and validation"]


def resized(result, **sizes):
    """The result with some arms of other sizes, in parameters."""
    arms = tuple(
        dataclasses.replace(
            arm, n_parameters=sizes.get(arm.name.replace("-", "_"), arm.n_parameters)
        )
        for arm in result.arms
    )
    return dataclasses.replace(result, arms=arms)


def test_an_arm_that_was_not_matched_is_named_first_and_in_the_limits():
    whole = modern_block(5)
    base = whole.baseline.n_parameters
    result = resized(whole, plain_mlp=round(1.37 * base), post_norm=round(0.9 * base))
    (first,) = limits.warnings(result)
    assert first.startswith(
        "Not matched by parameters: plain-mlp (+37 %) and post-norm (−10 %), against modern."
    )
    said = dict(limits.limits(result))["Intervals"]
    assert "matched by parameters, all but plain-mlp (+37 %) and post-norm (−10 %)" in said
    # What steps of eight leave is no warning, and where nothing was to match there is none.
    assert limits.warnings(resized(whole, plain_mlp=round(1.015 * base))) == []
    facts = dataclasses.replace(result.facts, match="none")
    assert limits.warnings(dataclasses.replace(result, facts=facts)) == []


def test_an_arm_is_named_for_the_setting_or_the_rung_where_it_is_furthest_off():
    result = modern_block(5)
    base = result.baseline.n_parameters
    off = resized(result, plain_mlp=round(1.1 * base)).arms
    further = resized(result, plain_mlp=round(0.8 * base)).arms
    rung = RungResult("d_model 32", 1e5, further)
    settings = dataclasses.replace(result, cells={"a": result.arms, "b": off})
    assert "plain-mlp (+10 %), against" in limits.warnings(settings)[0]
    ladder = LadderResult("parameters", (rung,), {})
    both = dataclasses.replace(settings, ladders=(ladder,))
    assert "plain-mlp (−20 %), against" in limits.warnings(both)[0]


def test_flops_and_time_are_matched_in_their_own_measure():
    result = modern_block(5)
    arms = tuple(
        dataclasses.replace(arm, tokens_per_second=18_000.0) if arm.name == "post-norm" else arm
        for arm in result.arms
    )
    for match, named in (("time", True), ("flops", False), ("parameters", False)):
        facts = dataclasses.replace(result.facts, match=match)
        found = limits.warnings(dataclasses.replace(result, facts=facts, arms=arms))
        assert found == [] if not named else "time: post-norm (+22 %)" in found[0]


def test_the_rates_that_a_search_begins_with_are_those_that_are_told():
    result = modern_block(5)
    facts = dataclasses.replace(result.facts, searched=True, learning_rates=(3e-3, 1e-2, 3e-2))
    said = dict(limits.limits(dataclasses.replace(result, facts=facts)))["Learning rates"]
    assert "searched from 0.003333, 0.009999 and 0.03 on" in said


def test_one_is_singular_where_sizes_are_told():
    result = modern_block()
    scale = dataclasses.replace(result.facts.scales[0], n_layers=1, n_parameters=307_200)
    runs = tuple(dataclasses.replace(run, epochs=1.0) for run in result.runs)
    facts = dataclasses.replace(result.facts, scales=(scale,), n_missing=1)
    one = dataclasses.replace(result, facts=facts, runs=runs)
    said = dict(limits.limits(one))["Scale"]
    for words_of_one in ("1 layer,", "1 token a parameter", "1 epoch of"):
        assert words_of_one in said
    assert limits.warnings(one)[0].startswith("Unfinished: one of the runs that the study asks")
