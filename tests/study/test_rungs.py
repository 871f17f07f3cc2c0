"""A ladder trains the same comparison elsewhere, and says how the effect changes on the way."""

import math

import numpy as np
import pytest

from blocklab.errors import BlocklabError
from blocklab.model.count import count
from blocklab.study.course import all_courses, courses, missing_runs
from blocklab.study.plan import n_tokens, plan
from blocklab.study.results import RungResult
from blocklab.study.rungs import ladders
from blocklab.study.summary import summarised
from tests.study.test_course import bowl, searching
from tests.study.test_study import TEXT, minimal
from tests.study.test_summary import run as result

STEPS = {"steps": 40, "batch_size": 2, "learning_rates": [1e-3, 3e-3, 1e-2]}


WINDOWS = np.ones(50), np.full(50, 16)
"""Every run has the same, for no verdict is looked at here."""


def laddered(**ladder):
    return plan(searching(ladder=ladder, training=STEPS), TEXT)


def climbed(planned, effect_of=None, loss_of=None):
    """Train all that is asked for, with an effect by rung; the ladders that come out."""

    def with_effect(run):
        depth = 3.0 + (effect_of(run.rung) if run.arm == "layer-norm" else 0.0)
        return bowl(run.arm, run.learning_rate, run.seed, depth=depth)

    known, asked = {}, {}
    while missing := missing_runs(all_courses(planned, known), known):
        for run in missing:
            asked[run.spec.id] = run
            known[run.spec.id] = (loss_of or with_effect)(run)
    runs = [
        result(r.arm, r.seed, r.learning_rate, known[r.spec.id], rung=r.rung)
        for r in asked.values()
    ]

    def arms(part):
        return summarised(part, courses(part, known), runs, lambda _: WINDOWS)

    rungs = [
        (rung.axis, RungResult(rung.plan.rung, rung.size, arms(rung.plan)))
        for rung in planned.ladder
    ]
    return ladders(planned, arms(planned), rungs, finished=True), asked


def test_a_rung_of_tokens_is_the_study_with_its_schedule_over_that_share():
    planned = laddered(tokens=[0.25, 0.5])
    whole = n_tokens(planned.arms[0])
    assert [rung.size for rung in planned.ladder] == [whole / 4, whole / 2]
    assert [rung.axis for rung in planned.ladder] == ["tokens", "tokens"]
    for rung in planned.ladder:
        assert rung.plan.arms[0].config == planned.arms[0].config
        assert [arm.name for arm in rung.plan.arms] == ["baseline", "layer-norm"]
    assert planned.ladder[0].plan.run(planned.ladder[0].plan.arms[0], 1, 1e-3).steps == 10


def test_a_rung_of_sizes_has_equal_tokens_a_parameter_and_sizes_matched_there():
    planned = laddered(sizes=[{"d_model": 64}, {"n_layers": 3}])
    share = n_tokens(planned.arms[0]) / count(planned.arms[0].config).total
    step = 2 * planned.arms[0].config.context_length
    for rung in planned.ladder:
        base = rung.plan.arms[0]
        assert rung.size == count(base.config).total != count(planned.arms[0].config).total
        assert n_tokens(base) == pytest.approx(share * rung.size, abs=step)
    assert [rung.plan.rung for rung in planned.ladder] == ["d_model 64", "n_layers 3"]


def test_every_rung_searches_its_own_rates_and_no_run_is_shared():
    planned = laddered(tokens=[0.5])
    found, asked = climbed(planned, lambda rung: 0.0)
    by_rung = {
        name: [r for r in asked.values() if r.rung == name] for name in ("", "0.5 of the tokens")
    }
    assert len(found) == 1
    assert {r.spec.id for r in by_rung[""]}.isdisjoint(
        r.spec.id for r in by_rung["0.5 of the tokens"]
    )
    assert {r.seed for r in by_rung["0.5 of the tokens"]} == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("effects", "word"),
    [
        ((0.05, 0.15, 0.25), "grows"),
        ((0.25, 0.15, 0.05), "fades"),
        ((-0.2, 0.0, 0.2), "flips"),
        ((0.1, 0.1, 0.1), "no trend resolved"),
    ],
)
def test_an_effect_that_changes_along_the_ladder_is_found_and_said(effects, word):
    by_rung = dict(zip(("0.25 of the tokens", "0.5 of the tokens", ""), effects, strict=True))
    (ladder,), _ = climbed(laddered(tokens=[0.5, 0.25]), by_rung.__getitem__)
    assert [rung.name for rung in ladder.rungs] == list(by_rung)
    trend = ladder.trends["layer-norm"]
    assert trend.word == word
    expected = (effects[2] - effects[0]) / math.log(4)
    assert trend.slope.mean == pytest.approx(expected, abs=0.01)
    assert trend.sentence("tokens").startswith(word)


def test_nothing_is_said_while_a_rung_is_not_finished():
    planned = laddered(tokens=[0.5])
    arms = summarised(planned, courses(planned, {}), [], None)
    other = planned.ladder[0]
    rung = RungResult("r", other.size, summarised(other.plan, courses(other.plan, {}), [], None))
    (ladder,) = ladders(planned, arms, [("tokens", rung)], finished=False)
    assert ladder.trends == {}


@pytest.mark.parametrize(
    ("ladder", "words"),
    [
        ({"sizes": [{"block.attention.n_heads": 8}]}, "n_heads 8 has as many parameters as the st"),
        ({"tokens": [0.5, 0.501]}, "0.501 of the tokens has as many tokens as 0.5"),
    ],
)
def test_rungs_of_one_size_are_refused_before_anything_is_trained(ladder, words):
    with pytest.raises(BlocklabError, match=words):
        laddered(**ladder)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"nuisances": {"n_layers": [2, 3]}, "ladder": {"sizes": [{"n_layers": 4}]}}, "nuisance"),
        ({"variants": {"long": {"training.steps": 80}}, "ladder": {"tokens": [0.5]}}, "how long"),
    ],
)
def test_what_a_rung_sets_nothing_else_may_set(fields, words):
    with pytest.raises(BlocklabError, match=words):
        searching(**fields)


def test_a_variant_that_fails_on_one_rung_takes_no_trend_from_the_others():
    variants = {"layer-norm": {"block.norm.kind": "layer"}, "tied": {"tie_embeddings": True}}
    fields = {"variants": variants, "search": False, "ladder": {"tokens": [0.5]}}
    planned = plan(searching(training=STEPS, **fields), TEXT)

    def loss_of(run):
        return None if run.arm == "tied" and run.rung else bowl("", run.learning_rate, run.seed)

    (ladder,), _ = climbed(planned, loss_of=loss_of)
    assert ladder.trends["layer-norm"].slope is not None
    assert ladder.trends["tied"].slope is None
    assert "too few complete pairs" in ladder.trends["tied"].sentence()


def test_without_a_search_a_trend_is_exploratory():
    planned = plan(minimal(seeds=5, ladder={"tokens": [0.5]}, training=STEPS), TEXT)
    (ladder,), _ = climbed(planned, lambda rung: 0.1 if rung else 0.3)
    assert ladder.trends["layer-norm"].word == "exploratory"
    assert ladder.trends["layer-norm"].slope is not None


@pytest.mark.parametrize(
    ("ladder", "words"),
    [
        ({"tokens": [1.0]}, "ladder.tokens.*between 0 and 1"),
        ({"tokens": [0.5, 0.5]}, "twice"),
        ({"sizes": [{}]}, "ladder.sizes.0"),
        ({"sizes": [{"training.batch_size": 4}]}, "ladder.sizes.0.*training.batch_size"),
    ],
)
def test_a_ladder_that_leads_nowhere_is_refused(ladder, words):
    with pytest.raises(BlocklabError, match=words):
        searching(ladder=ladder)


@pytest.mark.parametrize(
    ("ladder", "words"),
    [
        ({"sizes": [{"d_modl": 64}]}, "ladder.sizes.0.*d_model"),
        ({"tokens": [0.001]}, "ladder: at 0.001 of the tokens.*less than one step"),
    ],
)
def test_a_rung_that_cannot_be_trained_is_named(ladder, words):
    with pytest.raises(BlocklabError, match=words):
        plan(searching(ladder=ladder, training=STEPS), TEXT)
