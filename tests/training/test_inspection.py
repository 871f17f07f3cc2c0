"""A run's looks are summed up as by hand, and what is not finite poisons nothing else."""

import math

import pytest

from blocklab.training.inspection import Inspection, growth_per_block, summarised_looks


def look(logits=(1.0, 2.0), ratios=(0.1, 0.3), rms=(1.0, 2.0, 4.0), similarity=(0.2, 0.3)):
    names = ("blocks.0", "blocks.1")
    norms = dict.fromkeys(names, 1.0)
    return Inspection(norms, dict(zip(names, ratios, strict=False)), rms, similarity, logits)


def test_maxima_and_medians_are_over_all_looks_and_ends_are_of_the_last():
    first = look(logits=(9.0, 2.0), ratios=(0.1, 0.2), rms=(1.0, 1.0, 1.0))
    found = summarised_looks([first, look(ratios=(0.3, 0.8), similarity=(0.5, 0.7))])
    assert found.largest_attention_logit == 9.0
    assert found.update_ratio == pytest.approx(0.25)
    assert (found.stream_rms, found.stream_growth) == (4.0, pytest.approx(2.0))
    assert found.position_similarity == 0.7


def test_without_looks_there_is_no_summary():
    assert summarised_looks([]) is None


def test_attention_without_a_softmax_has_no_logit():
    assert summarised_looks([look(logits=(None, None))]).largest_attention_logit is None


def test_a_look_that_is_not_finite_leaves_the_others_readable():
    lost = look(logits=(math.nan, math.inf), ratios=(math.nan, 0.5), rms=(1.0, math.nan, math.nan))
    found = summarised_looks([look(logits=(1.0, 3.0), ratios=(0.5, 0.5)), lost])
    assert found.largest_attention_logit == 3.0
    assert found.update_ratio == 0.5
    assert math.isnan(found.stream_rms)


def test_growth_is_the_geometric_mean_of_the_blocks_factors():
    assert growth_per_block((2.0, 6.0, 4.0, 16.0)) == pytest.approx((3 * (2 / 3) * 4) ** (1 / 3))
    assert math.isnan(growth_per_block((0.0, 1.0)))
