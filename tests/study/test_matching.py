"""Widths are solved so that a variant costs what the baseline does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import blocklab as bl
from blocklab.study.matching import MEASURES, WIDTH, matched, parameters


def modern(**sizes):
    return bl.presets.modern(vocab_size=512, context_length=64, **sizes)


@given(
    st.sampled_from([32, 48, 64, 96]),
    st.integers(1, 3),
    st.sampled_from(["mlp", "gated"]),
    st.sampled_from(sorted(MEASURES)),
)
def test_no_multiple_of_eight_comes_nearer(d_model, n_layers, kind, measure):
    baseline = modern(d_model=d_model, n_layers=n_layers, n_heads=4)
    variant = baseline.with_changes({"block.feed_forward.kind": kind, "block.norm.kind": "layer"})
    cost = MEASURES[measure]
    target = cost(baseline)
    solved = matched(variant, target, cost)
    natural = variant.block.feed_forward.width(d_model)
    widths = {*range(8, 8 * d_model, 8), natural}
    nearest = min(abs(cost(variant.with_changes({WIDTH: w})) - target) for w in widths)
    assert abs(cost(solved) - target) == nearest


def test_the_plain_mlp_of_the_modern_block_is_as_wide_as_three_matrices_allow():
    baseline = modern(d_model=64, n_layers=4, n_heads=4)  # gated, d_ff 128: 3 * 64 * 128 a block
    mlp = baseline.with_changes({"block.feed_forward": {"kind": "mlp", "bias": False}})
    solved = matched(mlp, parameters(baseline), parameters)
    assert solved.block.feed_forward.d_ff == 192  # 2 * 64 * 192
    assert parameters(solved) == parameters(baseline)


def test_a_variant_of_equal_size_keeps_its_record():
    baseline = modern(d_model=64, n_layers=2, n_heads=4)
    assert matched(baseline, parameters(baseline), parameters) is baseline


def test_a_target_out_of_reach_is_refused():
    baseline = modern(d_model=64, n_layers=2, n_heads=4)
    with pytest.raises(bl.BlocklabError, match="match: none"):
        matched(baseline, parameters(baseline) // 10, parameters)
