"""What may be said of nuisance factors: cases by hand, invariances, and how often it is false."""

import itertools
import math
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklab.errors import BlocklabError
from blocklab.study.nuisances import Cell, headline, nuisance_finding
from blocklab.study.statistics import paired

SEEDS = range(1, 6)
WOBBLE = (-0.002, 0.001, 0.003, -0.001, -0.001)


def cell(levels, effect, wobble=WOBBLE, **facts):
    return Cell(levels, {s: effect + w for s, w in zip(SEEDS, wobble, strict=True)}, **facts)


def by_initialization(*effects, **facts):
    names = ("normal", "fan_in", "depth")
    return [
        cell({"initialization": name}, effect, np.roll(WOBBLE, i), **facts)
        for i, (name, effect) in enumerate(zip(names, effects, strict=False))
    ]


def two_by_two(a, b, c, d):
    """Effects at (normal, 0), (normal, 0.1), (fan_in, 0), (fan_in, 0.1)."""
    levels = itertools.product(("normal", "fan_in"), ("0", "0.1"))
    return [
        cell({"initialization": i, "warmup": w}, effect, np.roll(WOBBLE, k))
        for k, ((i, w), effect) in enumerate(zip(levels, (a, b, c, d), strict=True))
    ]


def words(finding):
    return {factor.factor: factor.word for factor in finding.factors}


def test_the_headline_is_the_mean_over_cells_seed_by_seed():
    cells = by_initialization(0.02, -0.01, slack_variant=0.004, slack_baseline=0.002)
    values = [(0.01 + a + b) / 2 for a, b in zip(WOBBLE, np.roll(WOBBLE, 1), strict=True)]
    assert astuple(headline(cells, SEEDS)) == pytest.approx(astuple(paired(values, 0.004, 0.002)))


def test_an_effect_of_one_sign_in_every_cell_holds():
    found = nuisance_finding(by_initialization(0.02, 0.021), SEEDS, significant=True)
    assert found.holds
    assert words(found) == {"initialization": "not shown to depend"}
    assert "holds in each of 2 settings" in found.sentence


def test_holds_needs_significance_and_every_cell():
    assert not nuisance_finding(by_initialization(0.02, 0.02), SEEDS, significant=False).holds
    assert not nuisance_finding(by_initialization(0.02, 0.0005), SEEDS, significant=True).holds
    lost = [*by_initialization(0.02, 0.02), cell({"initialization": "depth"}, 0.02, undecided="?")]
    found = nuisance_finding(lost, SEEDS, significant=True)
    assert not found.holds
    assert found.left_out == ("initialization depth",)


def test_opposite_signs_at_two_levels_flip():
    found = nuisance_finding(by_initialization(0.36, -0.29), SEEDS, significant=True)
    assert words(found) == {"initialization": "flips"}
    assert not found.holds
    assert found.sentence.endswith(
        "flips with initialization: +0.3600 nats at normal and -0.2900 nats at fan_in"
    )


def test_signs_alone_do_not_flip():
    found = nuisance_finding(by_initialization(0.0008, -0.0008), SEEDS, significant=False)
    assert words(found) == {"initialization": "not shown to depend"}


def test_an_effect_may_hold_and_its_size_depend():
    found = nuisance_finding(by_initialization(0.02, 0.06), SEEDS, significant=True)
    assert found.holds
    assert words(found) == {"initialization": "size depends"}
    wobbles = zip(WOBBLE, np.roll(WOBBLE, 1), strict=True)
    assert found.factors[0].p == pytest.approx(paired([-0.04 + a - b for a, b in wobbles]).p)


def test_each_of_two_factors_is_asked_with_holm_over_both():
    found = nuisance_finding(two_by_two(0.02, 0.02, -0.02, -0.02), SEEDS, significant=False)
    assert words(found) == {"initialization": "flips", "warmup": "not shown to depend"}
    rolled = [np.roll(WOBBLE, k) for k in range(4)]
    apart = [-0.01 + (a + b - c - d) / 2 for a, b, c, d in zip(*rolled, strict=True)]
    found = nuisance_finding(two_by_two(0.02, 0.02, 0.03, 0.03), SEEDS, significant=True)
    assert found.factors[0].p == pytest.approx(2 * paired(apart).p)


def test_three_levels_pay_for_their_three_contrasts_and_two_chances_to_flip():
    cells = by_initialization(0.02, 0.02, 0.03)
    p = [
        paired([c.differences[s] - d.differences[s] for s in SEEDS]).p
        for c, d in itertools.combinations(cells, 2)
    ]
    found = nuisance_finding(cells, SEEDS, significant=True)
    assert found.factors[0].p == pytest.approx(3 * min(p))
    # One-sided p between 0.025 and 0.05 at the only negative level: enough of two, not of three.
    barely = next(e for e in np.arange(0.0015, 0.004, 1e-5) if _negative(e) < 0.04)
    pair = nuisance_finding(by_initialization(0.02, -barely), SEEDS, significant=False)
    assert words(pair) == {"initialization": "flips"}
    triple = nuisance_finding(by_initialization(0.02, -barely, 0.02), SEEDS, significant=False)
    assert words(triple) == {"initialization": "size depends"}


def _negative(effect):
    return paired([w - effect for w in WOBBLE]).p_negative


def test_slack_of_an_arm_counts_against_every_word():
    wide = {"slack_variant": 0.05, "slack_baseline": 0.05}
    found = nuisance_finding(by_initialization(0.02, 0.06, **wide), SEEDS, significant=True)
    assert not found.holds
    assert words(found) == {"initialization": "not shown to depend"}
    found = nuisance_finding(by_initialization(0.04, -0.04, **wide), SEEDS, significant=True)
    assert words(found) == {"initialization": "not shown to depend"}


def test_an_effect_within_the_slack_neither_flips_nor_holds():
    # On the side that its p value does not take it from, as nothing is resolved below a slack.
    down, up = by_initialization(-0.07, 0.13)
    assert words(nuisance_finding([down, up], SEEDS, True)) == {"initialization": "flips"}
    found = nuisance_finding([replace(down, slack_variant=0.088), up], SEEDS, True)
    assert words(found) == {"initialization": "size depends"}
    low, high = by_initialization(0.06, 0.061)
    assert nuisance_finding([low, high], SEEDS, True).holds
    assert not nuisance_finding([replace(low, slack_baseline=0.07), high], SEEDS, True).holds


def test_a_level_within_the_slack_does_not_hide_a_flip_between_two_others():
    first, second, third = by_initialization(-0.07, 0.05, -0.04)
    found = nuisance_finding([replace(first, slack_variant=0.08), second, third], SEEDS, True)
    assert found.factors[0].word == "flips"
    assert found.factors[0].levels == ("fan_in", "depth")


def test_a_contrast_within_the_slack_is_none():
    small, large = by_initialization(0.1, 0.14)
    wide = [replace(small, slack_variant=0.03), replace(large, slack_baseline=0.03)]
    found = nuisance_finding(wide, SEEDS, significant=True)
    assert words(found) == {"initialization": "not shown to depend"}
    assert found.factors[0].p == 1


@pytest.mark.parametrize("order", [1, -1])
def test_between_two_levels_each_arms_slack_opens_its_own_side(order):
    small, large = by_initialization(0.02, 0.06)
    # The large may be smaller by its variant's slack, the small one larger by its baseline's.
    harmful = [replace(small, slack_baseline=0.019), replace(large, slack_variant=0.019)]
    harmless = [replace(small, slack_variant=0.019), replace(large, slack_baseline=0.019)]
    found = [
        words(nuisance_finding(cells[::order], SEEDS, significant=True))["initialization"]
        for cells in (harmful, harmless)
    ]
    assert found == ["not shown to depend", "size depends"]


def test_a_seed_that_diverged_in_one_cell_is_left_out_of_all_and_nothing_fills_it_in():
    cells = by_initialization(0.02, 0.03)
    cells[1] = Cell(cells[1].levels, {**cells[1].differences, 2: None})
    alive = [(cells[0].differences[s] + cells[1].differences[s]) / 2 for s in SEEDS if s != 2]
    assert headline(cells, SEEDS) == paired(alive)
    cells[1] = Cell(cells[1].levels, {**cells[1].differences, 3: math.nan})
    found = nuisance_finding(cells, SEEDS, significant=True)
    assert found.left_out == ("initialization fan_in",)
    assert found.headline == paired(list(cells[0].differences.values()))
    assert found.factors[0].p is None


def test_a_factor_is_compared_only_where_all_its_levels_were_trained():
    cells = two_by_two(0.02, 0.02, 0.02, 0.5)
    cells[3] = cell(cells[3].levels, 0.5, undecided="rate at the grid's edge")
    found = nuisance_finding(cells, SEEDS, significant=True)
    assert found.factors[0].by_level["normal"] == paired(list(cells[0].differences.values()))
    assert found.factors[0].by_level["fan_in"] == paired(list(cells[2].differences.values()))


def test_under_five_seeds_it_only_explores():
    found = nuisance_finding(by_initialization(0.36, -0.29), range(1, 4), significant=True)
    assert (found.exploratory, found.holds, found.factors) == (True, False, ())
    assert found.sentence.startswith("exploratory: ")


def test_cells_that_do_not_make_a_grid_are_refused():
    with pytest.raises(BlocklabError, match="twice"):
        nuisance_finding([cell({"a": "x"}, 0.1), cell({"a": "x"}, 0.1)], SEEDS, significant=True)
    with pytest.raises(BlocklabError, match="does not name"):
        nuisance_finding([cell({"a": "x"}, 0.1), cell({"b": "x"}, 0.1)], SEEDS, significant=True)
    with pytest.raises(BlocklabError, match="slack"):
        cell({"a": "x"}, 0.1, slack_variant=math.nan)


effects = st.floats(-0.05, 0.05)


@settings(deadline=None)
@given(effects, effects, effects, effects, st.permutations(list(SEEDS)), st.randoms())
def test_swapped_arms_permuted_seeds_and_shuffled_cells_leave_the_words(a, b, c, d, order, random):
    cells = two_by_two(a, b, c, d)
    before = nuisance_finding(cells, SEEDS, significant=True)
    names = dict(zip(SEEDS, order, strict=True))
    turned = [Cell(one.levels, {names[s]: -d for s, d in one.differences.items()}) for one in cells]
    random.shuffle(turned)
    after = nuisance_finding(turned, SEEDS, significant=True)
    assert after.headline.mean == pytest.approx(-before.headline.mean, abs=1e-12)
    assert (after.holds, words(after)) == (before.holds, words(before))
    assert not (before.holds and "flips" in words(before).values())


def noisy(effects, rng):
    """Cells of two factors, noise of sd 0.02 in every cell and seed, a third of it the seed's."""
    shared = 0.02 * math.sqrt(1 / 3) * rng.standard_normal(5)
    own = 0.02 * math.sqrt(2 / 3)
    levels = itertools.product(("normal", "fan_in"), ("0", "0.1"))
    return [
        cell({"initialization": i, "warmup": w}, e, shared + own * rng.standard_normal(5))
        for (i, w), e in zip(levels, effects, strict=True)
    ]


def false_shares(n_studies):
    """How often each word is said where it is as nearly true as it can be without being true."""
    rng = np.random.default_rng(1)
    said = {"holds": 0, "flips": 0, "flips, either factor": 0, "flips, three levels": 0, "size": 0}
    for _ in range(n_studies):
        # One cell without any effect, the others far from zero.
        found = nuisance_finding(noisy((0.2, 0.2, 0.2, 0.0), rng), SEEDS, significant=True)
        said["holds"] += found.holds
        # One level without any, alone in its factor: one factor with the whole 5 %.
        wobble = 0.02 * rng.standard_normal((3, 5))
        lone = [
            cell({"initialization": i}, e, w)
            for i, e, w in zip("abc", (0.2, 0.0, 0.0), wobble, strict=True)
        ]
        found = nuisance_finding(lone[:2], SEEDS, significant=True)
        said["flips"] += words(found)["initialization"] == "flips"
        found = nuisance_finding(lone, SEEDS, significant=True)
        said["flips, three levels"] += words(found)["initialization"] == "flips"
        # Both factors have a level without any.
        found = nuisance_finding(noisy((0.4, 0.0, 0.0, 0.0), rng), SEEDS, significant=True)
        said["flips, either factor"] += "flips" in words(found).values()
        found = nuisance_finding(noisy((0.2, 0.2, 0.2, 0.2), rng), SEEDS, significant=True)
        said["size"] += "size depends" in words(found).values()
    return {word: count / n_studies for word, count in said.items()}


def test_holds_and_flips_are_seldom_said_falsely_in_a_few_studies():
    assert max(false_shares(150).values()) <= 0.09


@pytest.mark.slow
def test_holds_and_flips_are_seldom_said_falsely():
    shares = false_shares(4000)
    print(f"\nsaid falsely: {shares}")
    assert max(shares.values()) <= 0.06
    assert shares["holds"] >= 0.02  # the worst case is one: the test is not beside the point
