"""`match: time` solves widths from measured steps, once, and keeps what it solved."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import blocklab as bl
from blocklab.data.dataset import Dataset
from blocklab.study import timing
from blocklab.study.matching import WIDTH
from blocklab.study.plan import plan
from blocklab.study.timing import (
    rough_seconds_a_step,
    seconds_a_step,
    solved_width,
    with_timed_widths,
)
from blocklab.training.numerics import Numerics
from tests.study.test_study import TEXT, minimal

VARIANTS = {
    "plain-mlp": {"block.feed_forward": {"kind": "mlp", "bias": False}},
    "wide": {"block.feed_forward.d_ff": 96},
    "cold": {"training.schedule.warmup": 0},
}


@given(st.integers(1, 60), st.floats(1e-4, 1e-2), st.floats(1e-6, 1e-4))
def test_a_width_on_the_line_is_found_exactly(eighths, fixed, slope):
    wanted = 8 * eighths

    def takes(width):
        return fixed + slope * width

    assert solved_width(takes(wanted), (128, takes(128)), (256, takes(256))) == wanted


def test_a_time_out_of_reach_is_refused_and_a_flat_line_tells_nothing():
    with pytest.raises(bl.BlocklabError, match="match: none"):
        solved_width(0.001, (128, 1.0), (256, 2.0))
    for flat in (1.0, 1.0001, 0.9):
        assert solved_width(1.5, (128, 1.0), (256, flat)) is None


def timed(monkeypatch, study, seconds_of):
    asked = []

    def clock(arms, dataset, numerics, rounds=1):
        asked.extend(arm.name for arm in arms)
        return [seconds_of(arm.config) for arm in arms]

    monkeypatch.setattr(timing, "seconds_a_step", clock)
    said = []
    return with_timed_widths(study, plan(study, TEXT), None, said.append), asked, said


def test_only_variants_whose_width_is_free_are_timed_and_what_is_left_is_said(monkeypatch):
    study = minimal(match="time", variants=VARIANTS)

    def seconds_of(config):
        matrices = 3 if config.block.feed_forward.kind == "gated" else 2
        return 1e-3 + 1e-6 * matrices * config.block.feed_forward.width(config.d_model)

    solved, asked, said = timed(monkeypatch, study, seconds_of)
    assert set(asked) == {"baseline", "plain-mlp"}
    base, variant, *_ = plan(solved, TEXT).arms
    width = 3 * base.config.block.feed_forward.width(base.config.d_model) / 2
    assert variant.matched == {WIDTH: round(width / 8) * 8}
    assert variant.config.block.feed_forward.d_ff == variant.matched[WIDTH]
    assert said[0].startswith("plain-mlp: block.feed_forward.d_ff")
    again, asked, _ = timed(monkeypatch, solved, lambda _: 1 / 0)
    assert (again, asked) == (solved, [])


def test_where_width_takes_no_time_the_natural_one_stays_and_that_is_said(monkeypatch):
    study = minimal(match="time", variants={"plain-mlp": VARIANTS["plain-mlp"]})
    solved, _, said = timed(monkeypatch, study, lambda _: 1e-3)
    _, before, *_ = plan(study, TEXT).arms
    _, after, *_ = plan(solved, TEXT).arms
    widths = [arm.config.block.feed_forward.width(arm.config.d_model) for arm in (before, after)]
    assert widths[0] == widths[1]
    assert "left as it is" in said[0]


def test_every_setting_and_rung_has_a_width_of_its_own(monkeypatch):
    study = minimal(
        match="time",
        variants={"plain-mlp": VARIANTS["plain-mlp"]},
        nuisances={"n_layers": [1, 2]},
        ladder={"sizes": [{"d_model": 64}]},
    )
    solved, _, _ = timed(monkeypatch, study, lambda c: 1e-6 * c.block.feed_forward.width(c.d_model))
    assert set(solved.widths) == {
        "n_layers 1 / plain-mlp",
        "n_layers 2 / plain-mlp",
        "d_model 64 / n_layers 1 / plain-mlp",
        "d_model 64 / n_layers 2 / plain-mlp",
    }


def test_a_step_of_a_model_twice_as_deep_takes_longer():
    study = minimal(variants={"deep": {"n_layers": 12}}, match="none")
    tokens = torch.randint(512, (20_000,), generator=torch.Generator().manual_seed(0))
    base, deep, *_ = plan(study, TEXT).arms
    seconds = seconds_a_step([base, deep], Dataset.from_tokens(tokens, 512), Numerics(), rounds=3)
    assert 0 < seconds[0] < seconds[1]


def test_arms_take_turns_as_far_as_memory_holds_them(monkeypatch):
    arms = plan(minimal(variants=VARIANTS, match="none"), TEXT).arms
    held = []
    monkeypatch.setattr(
        timing, "seconds_a_step", lambda some, *_: held.append(len(some)) or [1.0] * len(some)
    )
    assert len(rough_seconds_a_step(arms, None, Numerics())) == len(arms) == 5
    assert held == [5]
    held.clear()
    largest = max(bl.count(arm.config).total for arm in arms)
    monkeypatch.setattr(timing, "TOGETHER", 2 * 16 * largest)
    assert len(rough_seconds_a_step(arms, None, Numerics())) == 5
    assert max(held) == 2
    held.clear()
    monkeypatch.setattr(timing, "TOGETHER", 0)
    assert rough_seconds_a_step(arms, None, Numerics()) == [1.0] * 5
    assert held == [1] * 5
