"""Held to scipy where it has the same test, to printed figures, counts by hand, simulation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import signal, stats

from blocklab.errors import BlocklabError
from blocklab.study.statistics import (
    block_bootstrap,
    clopper_pearson,
    detectable_effect,
    fisher,
    holm,
    interval,
    mean,
    one_sided,
    paired,
    paired_effect,
    placebo_warning,
    spread,
    two_look,
    two_sided,
)

# Three variants against a baseline, five seeds, and what a reference computation prints of them.
DIFFERENCES = (
    (0.012, 0.015, 0.009, 0.014, 0.010),
    (-0.004, 0.003, 0.001, -0.002, 0.004),
    (-0.020, -0.031, -0.012, -0.024, -0.018),
)
WITHOUT_SLACK = {
    "slack": (0.0, 0.0),
    "p": (0.0004609, 0.8033, 0.002669),
    "holm": (0.001383, 0.8033, 0.005338),
    "interval": ((0.008834, 0.015166), (-0.003774, 0.004574), (-0.029780, -0.012220)),
    "detectable": (0.00871, 0.01148, 0.02414),
}
WITH_SLACK = {
    "slack": (0.001, 0.0005),
    "p": (0.0006456, 1, 0.002919),
    "holm": (0.001937, 1, 0.005838),
    "interval": ((0.007834, 0.015666), (-0.004774, 0.005074), (-0.030780, -0.011720)),
    "detectable": (0.00971, 0.01248, 0.02514),
}

losses = st.lists(st.floats(-10, 10), min_size=2, max_size=8)


@given(losses, losses)
def test_the_interval_is_that_of_scipys_paired_t_test(arm, baseline):
    n = min(len(arm), len(baseline))
    effect = paired_effect(dict(enumerate(arm[:n])), dict(enumerate(baseline[:n])))
    differences = np.subtract(arm[:n], baseline[:n])
    assert effect is not None
    assert effect.mean == pytest.approx(differences.mean(), abs=1e-12)
    if differences.std() < 1e-9:
        return
    interval = stats.ttest_rel(arm[:n], baseline[:n]).confidence_interval(0.95)
    assert (effect.low, effect.high) == pytest.approx((interval.low, interval.high), rel=1e-6)


def test_a_published_fixture_of_five_differences():
    differences = [0.012, 0.015, 0.009, 0.014, 0.010]
    effect = paired_effect(dict(enumerate(differences)), dict.fromkeys(range(5), 0.0))
    assert effect is not None
    assert (effect.low, effect.high) == pytest.approx((0.008834, 0.015166), abs=1e-6)


def test_only_seeds_that_both_arms_finished_are_paired():
    effect = paired_effect({1: 2.0, 2: 3.0, 4: 9.0}, {1: 1.0, 2: 1.0, 3: 7.0})
    assert effect is not None
    assert effect.differences == {1: 1.0, 2: 2.0}


def test_without_a_common_seed_there_is_no_effect():
    assert paired_effect({1: 2.0}, {2: 1.0}) is None


def test_one_pair_has_a_difference_but_no_interval():
    effect = paired_effect({1: 2.0}, {1: 1.5})
    assert effect is not None
    assert (effect.mean, effect.spread, effect.low, effect.high) == (0.5, None, None, None)


@given(losses)
def test_mean_and_spread_are_numpys(values):
    assert mean(values) == pytest.approx(np.mean(values), abs=1e-12)
    measured = spread(values)
    assert measured is not None
    assert math.isclose(measured, np.std(values, ddof=1), abs_tol=1e-9)


def printed_as(values, figures):
    """Whether each value rounds to the printed figure, at the figure's own digits."""
    return all(
        abs(value - figure) <= 0.5 * 10.0 ** (math.floor(math.log10(abs(figure))) - 3) * 1.0001
        for value, figure in zip(values, figures, strict=True)
    )


@pytest.mark.parametrize("fixture", [WITHOUT_SLACK, WITH_SLACK])
def test_p_values_intervals_and_detectable_effects_are_the_printed_ones(fixture):
    estimates = [paired(row, *fixture["slack"]) for row in DIFFERENCES]
    assert printed_as([one.p for one in estimates], fixture["p"])
    assert printed_as(holm([one.p for one in estimates]), fixture["holm"])
    for one, (low, high) in zip(estimates, fixture["interval"], strict=True):
        assert (one.low, one.high) == pytest.approx((low, high), abs=0.51e-6)
    found = [
        float(detectable_effect(one.standard_error, 5, 3, *fixture["slack"])) for one in estimates
    ]
    assert found == pytest.approx(fixture["detectable"], abs=0.51e-5)


spread_out = st.lists(st.floats(-1, 1), min_size=3, max_size=8).filter(lambda v: np.ptp(v) > 1e-3)
slacks = st.tuples(st.floats(0, 0.1), st.floats(0, 0.1))


@given(spread_out)
def test_without_slack_the_p_value_is_scipys(values):
    for alternative, ours in (
        ("two-sided", paired(values).p),
        ("greater", paired(values).p_positive),
        ("less", paired(values).p_negative),
    ):
        assert ours == pytest.approx(stats.ttest_1samp(values, 0, alternative=alternative).pvalue)


@given(spread_out, slacks)
def test_swapping_the_arms_turns_every_sign_and_changes_no_p_value(values, slack):
    one, other = paired(values, *slack), paired([-v for v in values], *slack[::-1])
    assert (one.mean, one.low, one.high) == pytest.approx((-other.mean, -other.high, -other.low))
    assert one.p == pytest.approx(other.p)
    assert one.p_positive == pytest.approx(other.p_negative)


@given(spread_out, slacks, st.floats(0.01, 100))
def test_in_other_units_the_estimate_is_the_same_in_those_units(values, slack, factor):
    one = paired(values, *slack)
    other = paired([factor * v for v in values], *(factor * e for e in slack))
    assert (other.low, other.high) == pytest.approx((factor * one.low, factor * one.high))
    assert other.p == pytest.approx(one.p)
    seen = detectable_effect(other.standard_error, other.n, 4, *(factor * e for e in slack))
    assert float(seen) == pytest.approx(
        factor * float(detectable_effect(one.standard_error, one.n, 4, *slack))
    )


@given(st.permutations(DIFFERENCES[2]))
def test_the_order_of_the_seeds_changes_no_bit(values):
    assert paired(values) == paired(DIFFERENCES[2])


@given(spread_out, slacks)
def test_the_interval_leaves_zero_out_exactly_when_p_is_below_its_level(values, slack):
    one = paired(values, *slack)
    if abs(one.p - 0.05) < 1e-9:
        return
    assert (one.p < 0.05) == (one.low > 0 or one.high < 0)


@given(spread_out, slacks)
def test_slack_only_widens_and_never_helps(values, slack):
    one, plain = paired(values, *slack), paired(values)
    assert one.low == pytest.approx(plain.low - slack[0])
    assert one.high == pytest.approx(plain.high + slack[1])
    assert one.p >= plain.p - 1e-12


def test_a_difference_without_any_spread_is_certain_and_none_at_all_is_nothing():
    assert paired([0.25] * 5).p == 0
    assert paired([0.25] * 5, slack_below=0.5).p == 1
    assert paired([0.0] * 5).p == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_diverged_pair_is_refused_and_not_averaged(bad):
    with pytest.raises(BlocklabError, match="drop the pair"):
        paired([0.1, bad, 0.2])
    with pytest.raises(BlocklabError, match="two or more"):
        paired([0.1])


def test_functions_broadcast_over_studies():
    rng = np.random.default_rng(0)
    table = rng.normal(0.01, 0.02, (3, 4, 5))
    centre, error = table.mean(-1), table.std(-1, ddof=1) / math.sqrt(5)
    low, high = interval(centre, error, 4, 0.001, 0.002, 0.9)
    p = two_sided(*one_sided(centre, error, 4, 0.001, 0.002))
    for place in np.ndindex(3, 4):
        one = paired(list(table[place]), 0.001, 0.002, 0.9)
        assert (low[place], high[place], p[place]) == pytest.approx((one.low, one.high, one.p))
    assert holm(p)[1] == pytest.approx(holm(p[1]))


def test_holm_by_hand():
    # Sorted .01 .02 .03 .04 times 4 3 2 1: .04 .06 .06 .04, and never below the one before.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.6]) == pytest.approx([1, 1])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_lies_between_each_p_value_and_bonferroni_and_keeps_their_order(p):
    adjusted = holm(p)
    assert all(a <= b <= min(1, len(p) * a) + 1e-12 for a, b in zip(p, adjusted, strict=True))
    assert list(np.argsort(p, kind="stable")) == list(np.lexsort((range(len(p)), p, adjusted)))


def test_an_untestable_member_counts_in_the_family_as_if_its_p_were_one():
    adjusted = holm([0.01, math.nan, 0.02])
    assert math.isnan(adjusted[1])
    assert list(adjusted[[0, 2]]) == list(holm([0.01, 1.0, 0.02])[[0, 2]])


def test_two_looks_share_out_five_in_a_hundred():
    assert float(two_look(0.009)) == pytest.approx(0.045)
    assert float(two_look(0.02, 0.039)) == pytest.approx(0.04875)
    assert float(two_look(0.001, 0.5)) == pytest.approx(0.005)
    assert float(two_look(0.7, 0.9)) == 1


@pytest.mark.parametrize("count,n", [(0, 5), (1, 5), (3, 5), (5, 5), (7, 40)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_clopper_pearson_is_scipys(count, n, level):
    reference = stats.binomtest(count, n).proportion_ci(level, method="exact")
    assert clopper_pearson(count, n, level) == pytest.approx((reference.low, reference.high))


def test_fisher_is_scipys_for_every_table_of_six_and_five():
    for a, b in itertools.product(range(7), range(6)):
        reference = stats.fisher_exact([[a, 6 - a], [b, 5 - b]]).pvalue
        assert fisher(a, 6, b, 5) == pytest.approx(reference)


def test_four_of_five_against_none_is_the_fewest_that_fisher_calls_different():
    assert fisher(4, 5, 0, 5) == pytest.approx(2 * 5 / 210)
    assert fisher(3, 5, 0, 5) > 0.05


def test_a_placebo_warns_below_one_in_a_hundred_only():
    assert placebo_warning(0.01) is None
    assert placebo_warning(math.nan) is None
    assert "0.0099" in (placebo_warning(0.0099) or "")


@pytest.mark.parametrize("n,family,share", [(5, 1, 0.78), (5, 4, 0.76), (10, 4, 0.78)])
def test_the_stated_detectable_effect_has_its_power_in_almost_four_of_five_studies(
    n, family, share
):
    """At the first step of Holm, without slack, by the noncentral t; the true spread is 1.

    A sum of two quantiles of the central t is a shade short of the noncentral one, hence 0.76.
    """
    rng = np.random.default_rng(1)
    spreads = np.sqrt(rng.chisquare(n - 1, 20_000) / (n - 1))
    stated = detectable_effect(spreads / math.sqrt(n), n, family)
    critical = stats.t.ppf(1 - 0.025 / family, n - 1)
    power = stats.nct.sf(critical, n - 1, stated * math.sqrt(n))
    assert share <= (power >= 0.8).mean() <= 0.82


def autocorrelated(rng, shape, phi):
    """Noise of mean zero in which neighbours resemble each other."""
    raw = rng.standard_normal((*shape[:-1], shape[-1] + 100))
    return signal.lfilter([1], [1, -phi], raw, axis=-1)[..., 100:]


def bootstrap_coverage(n_windows, phi, n_studies):
    rng = np.random.default_rng(2)
    covered = 0
    for study in range(n_studies):
        shared = rng.standard_normal((3, n_windows))
        own = autocorrelated(rng, (3, n_windows), phi)
        low, high = block_bootstrap(shared + own, shared, resamples=400, seed=study)
        covered += low <= 0 <= high
    return covered / n_studies


def test_the_bootstrap_covers_the_truth_over_neighbouring_windows_that_resemble_each_other():
    assert bootstrap_coverage(400, 0.3, 400) >= 0.92


@pytest.mark.slow
@pytest.mark.parametrize("n_windows", [100, 400, 2000])
@pytest.mark.parametrize("phi", [0.0, 0.3, 0.5])
def test_the_bootstrap_covers_at_every_length_of_text(n_windows, phi):
    assert 0.90 <= bootstrap_coverage(n_windows, phi, 2000) <= 0.98


def test_the_bootstrap_of_independent_windows_is_the_paired_t_interval():
    rng = np.random.default_rng(3)
    variant, baseline = rng.normal(3, 1, 1000), rng.normal(3, 1, 1000)
    reference = stats.ttest_rel(variant, baseline).confidence_interval()
    low, high = block_bootstrap(variant, baseline, block=1, resamples=10_000)
    assert (low, high) == pytest.approx((reference.low, reference.high), abs=5e-3)


def test_the_bootstrap_weighs_windows_by_their_tokens():
    # A window of no tokens says nothing, whatever its loss.
    values, tokens = np.arange(12.0), np.ones(12)
    values[-1], tokens[-1] = 1e6, 0
    low, high = block_bootstrap(values, np.zeros(12), tokens, block=1)
    assert (low + high) / 2 == pytest.approx(5, abs=0.5)
    weighted = block_bootstrap(values, np.zeros(12), 7 * tokens, block=1)
    assert weighted == pytest.approx((low, high))


def test_the_bootstrap_repeats_itself_and_turns_with_the_arms():
    rng = np.random.default_rng(4)
    variant, baseline = rng.normal(3, 1, (2, 5, 200))
    low, high = block_bootstrap(variant, baseline)
    assert block_bootstrap(variant, baseline) == (low, high)
    assert block_bootstrap(variant + 1, baseline + 1) == pytest.approx((low, high))
    assert block_bootstrap(baseline, variant) == pytest.approx((-high, -low), abs=0.01)
    assert block_bootstrap(variant, baseline, seed=1) != (low, high)


def test_the_bootstrap_refuses_what_it_cannot_pair():
    with pytest.raises(BlocklabError, match="equal shapes"):
        block_bootstrap(np.zeros(5), np.zeros(6))
    with pytest.raises(BlocklabError, match="not finite"):
        block_bootstrap([1.0, math.nan], [1.0, 1.0])
