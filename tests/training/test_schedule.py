"""The schedule as a table of exact values, and what must hold for every length and warm-up."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklab.errors import BlocklabError
from blocklab.training.schedule import (
    Constant,
    Cosine,
    Linear,
    ScheduleConfig,
    WarmupStableDecay,
)

DECAYING = (Linear, Cosine, WarmupStableDecay)
KINDS = (Constant, *DECAYING)

TABLE = [
    (Linear(warmup=0, final=0.0), 5, [1, 0.75, 0.5, 0.25, 0]),
    (Linear(warmup=1, final=0.0), 5, [1, 0.75, 0.5, 0.25, 0]),
    (Linear(warmup=2, final=0.5), 6, [0.5, 1, 0.875, 0.75, 0.625, 0.5]),
    (Linear(warmup=0.5, final=0.0), 4, [0.5, 1, 0.5, 0]),
    (Cosine(warmup=0, final=0.0), 3, [1, 0.5, 0]),
    (Cosine(warmup=2, final=0.1), 4, [0.5, 1, 0.55, 0.1]),
    (Cosine(warmup=4), 4, [0.25, 0.5, 0.75, 1]),
    (Cosine(warmup=8), 4, [0.125, 0.25, 0.375, 0.5]),
    (Cosine(warmup=0), 1, [1]),
    (Cosine(warmup=1), 1, [1]),
    (Cosine(warmup=2), 1, [0.5]),
    (Linear(warmup=0), 1, [1]),
    (WarmupStableDecay(warmup=0), 1, [1]),
    (Constant(warmup=0), 3, [1, 1, 1]),
    (Constant(warmup=2), 3, [0.5, 1, 1]),
    (WarmupStableDecay(warmup=2, decay=2, final=0.0), 6, [0.5, 1, 1, 1, 0.5, 0]),
    (WarmupStableDecay(warmup=0, decay=0.5, final=0.5), 4, [1, 1, 0.75, 0.5]),
    (WarmupStableDecay(warmup=2, decay=9, final=0.0), 4, [0.5, 1, 0.5, 0]),
]


@pytest.mark.parametrize(("schedule", "total", "expected"), TABLE)
def test_the_table(schedule, total, expected):
    assert [schedule.factor(step, total) for step in range(total)] == pytest.approx(expected)


def test_a_share_is_of_all_steps_and_from_one_on_it_counts_steps():
    assert Cosine(warmup=0.1).factor(29, 300) == 1
    assert Cosine(warmup=0.1).factor(28, 300) == pytest.approx(29 / 30)
    assert Cosine(warmup=30).factor(28, 300) == pytest.approx(29 / 30)


lengths = st.one_of(st.floats(0, 0.99), st.integers(1, 60))


@given(kind=st.sampled_from(KINDS), warmup=lengths, total=st.integers(1, 200))
def test_no_step_of_a_warm_up_has_rate_zero_and_none_exceeds_the_peak(kind, warmup, total):
    factors = [kind(warmup=warmup).factor(step, total) for step in range(total)]
    assert factors[0] > 0
    assert all(0 < factor <= 1 for factor in factors)
    peak = factors.index(max(factors))
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)


@given(
    kind=st.sampled_from(DECAYING),
    warmup=lengths,
    final=st.floats(0, 1),
    total=st.integers(2, 200),
)
def test_the_last_step_is_exactly_final_and_the_last_warm_up_step_exactly_one(
    kind, warmup, final, total
):
    schedule = kind(warmup=warmup, final=final)
    steps = int(warmup) if warmup >= 1 else round(warmup * total)
    if steps < total:
        assert schedule.factor(total - 1, total) == final
        assert schedule.factor(max(steps - 1, 0), total) == 1.0
    else:
        assert schedule.factor(total - 1, total) == total / steps


@given(total=st.integers(2, 500), final=st.floats(0, 1))
def test_cosine_is_the_published_formula_over_the_steps_after_the_peak(total, final):
    for step in range(total):
        angle = math.pi * step / (total - 1)
        published = final + 0.5 * (1 - final) * (1 + math.cos(angle))
        assert Cosine(warmup=0, final=final).factor(step, total) == pytest.approx(published)


@pytest.mark.parametrize("step", [-1, 10, 11])
def test_a_step_outside_the_run_is_refused(step):
    with pytest.raises(BlocklabError, match="10 steps"):
        Cosine().factor(step, 10)


def test_the_slot_knows_its_kinds_and_defaults_to_cosine():
    assert ScheduleConfig.parse({}) == Cosine(warmup=0.1, final=0.1)
    assert ScheduleConfig.parse("warmup-stable-decay") == WarmupStableDecay()
    assert set(ScheduleConfig.kinds()) >= {"constant", "linear", "cosine", "warmup-stable-decay"}


@pytest.mark.parametrize(
    "fields", [{"warmup": -0.1}, {"warmup": 1.5}, {"final": 1.1}, {"final": -0.1}]
)
def test_a_length_or_ratio_without_meaning_is_refused_by_name(fields):
    with pytest.raises(BlocklabError, match=next(iter(fields))):
        Cosine(**fields)


def test_a_decay_of_no_steps_is_refused():
    with pytest.raises(BlocklabError, match="decay"):
        WarmupStableDecay(decay=0)
