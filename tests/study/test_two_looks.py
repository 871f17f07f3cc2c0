"""`seeds: two-look` goes on only where something is open, and pays for looking twice."""

import math
import random

import numpy as np
import pytest

from blocklab.errors import BlocklabError
from blocklab.study.course import courses, missing_runs
from blocklab.study.evidence import at_look
from blocklab.study.plan import plan
from blocklab.study.statistics import FIRST_LOOK, SECOND_LOOK, paired
from blocklab.study.summary import summarised
from tests.study.test_course import searching
from tests.study.test_study import TEXT, minimal
from tests.study.test_summary import run as result


def noise(arm, seed):
    return random.Random(f"{arm} {seed}").gauss(0, 0.01)


def finished(effect, order=None, lost=()):
    """Train all that is asked for; the plan at its last look, its arms, and the seeds asked for.

    Every run of a seed that is `lost` diverges.
    """
    planned = plan(searching(seeds="two-look"), TEXT)
    known, asked = {}, {}

    def windows_of(run):
        spread = 1e-4 * np.sin(np.arange(200.0))
        return known[run.id] + spread, np.full(200, 16)

    while True:
        now = at_look(planned, courses(planned, known), windows_of)
        missing = missing_runs(courses(now, known), known)
        if not missing:
            break
        for run in missing if order is None else [order.choice(missing)]:
            own = effect + noise("v", run.seed) if run.arm == "layer-norm" else 0.0
            curve = 0.03 * math.log(run.learning_rate / 3e-3, 3) ** 2
            loss = 3.0 + curve + own + noise("s", run.seed)
            known[run.id] = None if run.seed in lost else loss
            asked[run.id] = run
    runs = [result(r.arm, r.seed, r.learning_rate, known[r.id]) for r in asked.values()]
    arms = summarised(now, courses(now, known), runs, windows_of)
    return now, arms, {run.seed for run in asked.values()}


def test_what_is_clear_after_five_seeds_is_not_looked_at_again():
    now, (_, variant, _), seeds = finished(0.5)
    assert seeds == {0, 1, 2, 3, 4, 5}
    assert now.earlier is None
    assert variant.verdict.word == "worse"
    assert variant.verdict.estimate.level == 0.99
    single = paired(list(variant.verdict.differences.values()), variant.slack, variant.slack)
    assert variant.verdict.p == pytest.approx(min(1, FIRST_LOOK * single.p))


def test_what_is_open_after_five_seeds_gets_five_more():
    now, (_, variant, placebo), seeds = finished(0.0085)
    assert seeds == set(range(11))
    assert variant.verdict.n_planned == 10
    assert variant.verdict.estimate.level == 0.96
    assert len(placebo.effect.differences) == 10
    single = paired(list(variant.verdict.differences.values()), variant.slack, variant.slack)
    first = now.earlier["layer-norm"]
    expected = min(1, FIRST_LOOK * first.p, SECOND_LOOK * single.p)
    assert variant.verdict.p == pytest.approx(expected)


def test_the_first_look_is_the_same_in_whatever_order_runs_finish():
    _, (_, first, _), _ = finished(0.0085)
    for seed in range(3):
        now, (_, again, _), seeds = finished(0.0085, random.Random(seed))
        assert seeds == set(range(11))
        assert again.verdict == first.verdict
        assert now.earlier.keys() == {"layer-norm"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"search": False}, "search: true"),
        ({"ladder": {"tokens": [0.5]}}, "not for ladder"),
        ({"nuisances": {"n_layers": [2, 3]}}, "not for nuisances"),
    ],
)
def test_two_looks_are_refused_where_their_price_is_not_known(fields, words):
    with pytest.raises(BlocklabError, match=words):
        searching(**{"seeds": "two-look"} | fields)


def test_no_other_word_stands_for_a_number_of_seeds():
    with pytest.raises(BlocklabError, match="seeds"):
        minimal(seeds="three-look")


def test_a_first_look_that_tested_nothing_found_nothing_that_the_second_could_repeat():
    now, (_, variant, _), seeds = finished(0.5, lost=(1, 2))
    assert seeds == set(range(11))
    assert now.earlier == {}
    assert (variant.verdict.word, variant.verdict.earlier) == ("worse", None)
    single = paired(list(variant.verdict.differences.values()), variant.slack, variant.slack)
    assert variant.verdict.p == pytest.approx(min(1, SECOND_LOOK * single.p))
