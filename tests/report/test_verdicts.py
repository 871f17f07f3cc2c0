"""Where rates were searched the words of the verdicts are what the page, table and terminal say."""

import csv
import io
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklab.report import limits, results_csv, table, words
from blocklab.report.charts import charts
from blocklab.report.html import page
from blocklab.study.nuisances import Cell, nuisance_finding
from blocklab.study.rate_stability import stable_margin
from blocklab.study.results import StudyResult
from blocklab.study.verdict import ArmEvidence, placebo, verdicts
from blocklab.training.stability import GradientNorms, Spikes
from tests.report.factory import study

SEEDS = (1, 2, 3, 4, 5)
NOISE = (0.001, -0.002, 0.0015, -0.0005, 0.0005)


def judged(effects, *, slack=0.001, delta=0.01, evaluation=(-0.005, 0.005)) -> StudyResult:
    """A study whose variants are worse than the baseline by so many nats, all rates searched."""
    arms = {"modern": 0.0, **effects, "placebo": 0.0}
    read = {
        name: {s: 3.6 + effect + (NOISE[(s + i) % 5] if i else 0.0) for s in SEEDS}
        for i, (name, effect) in enumerate(arms.items())
    }
    result = study({name: {(s, 1e-2): loss for s, loss in read[name].items()} for name in arms})
    evidence = {
        name: ArmEvidence(name, losses, slack, evaluation=evaluation)
        for name, losses in read.items()
    }
    found = verdicts(evidence["modern"], [evidence[name] for name in effects], SEEDS, delta)
    by_name = {one.name: one for one in found}
    arms_read = tuple(
        replace(
            arm,
            read=read[arm.name],
            tuned_rate=0.0093,
            slack=slack,
            verdict=by_name.get(arm.name),
            chance=placebo(evidence["modern"], evidence["placebo"], SEEDS)
            if arm.role == "placebo"
            else None,
        )
        for arm in result.arms
    )
    return replace(result, facts=replace(result.facts, searched=True), arms=arms_read)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=4))
def test_every_variants_word_is_said_once_in_the_headline_and_begins_its_sentence(effects):
    result = judged({f"v{i}": effect for i, effect in enumerate(effects)})
    headline = words.headline(result)
    for arm in result.arms:
        if arm.role != "variant":
            continue
        word = arm.verdict.word
        assert word in headline
        assert len(re.findall(rf"\b{arm.name}\b", headline)) == 1
        assert words.sentence(arm, result).split("): ", 1)[1].startswith(word)
        if word in ("better", "worse"):
            assert (arm.effect.mean < 0) == (word == "better")


def test_a_rate_from_which_an_arm_stops_learning_is_said():
    result = judged({"v": 0.3})
    by_rate = {1e-3: 4.0, 3e-3: 3.7, 1e-2: 5.95, 3e-2: None}
    curve = {rate: dict.fromkeys(SEEDS, loss) for rate, loss in by_rate.items()}
    arm = replace(result.arms[1], margin=stable_margin(curve, 3e-3, 5.94))
    assert re.search(
        r"At 0.01 and every higher rate.* it diverges or learns no more",
        words.sentence(arm, result),
    )
    assert "every higher rate" not in words.sentence(result.arms[0], result)


def test_an_effect_below_delta_is_said_to_be_one():
    result = judged({"small": 0.005}, slack=0.0)
    assert "but by less than 0.01" in words.headline(result)


def test_the_table_has_a_column_of_verdicts_only_where_there_are_some():
    with_words = [column.heading for column in table.columns(judged({"v": 0.3}))]
    without = study({"a": {(1, 1e-2): 3.0}, "b": {(1, 1e-2): 3.1}})
    assert "Verdict" in with_words
    assert "Verdict" not in [column.heading for column in table.columns(without)]


def test_the_tuned_rate_stands_where_the_best_of_the_grid_stood():
    result = judged({"v": 0.3})
    assert [row.best_rate for row in table.rows(result)] == ["0.0093"] * 3
    assert "learning rate 0.0093" in words.sentence(result.baseline, result)
    assert "a better one may lie beyond" not in " ".join(words.sentences(result))


def test_what_was_tuned_and_what_slack_it_leaves_is_said():
    said = dict(limits.limits(judged({"v": 0.3}, slack=0.0123)))
    assert "0.012" in said["Learning rates"]
    assert "Holm" in said["Intervals"]


def test_a_flip_with_a_nuisance_is_in_the_sentence_and_every_setting_in_the_page():
    result = judged({"post-norm": 0.1})
    by_setting = {"initialization normal": -0.29, "initialization fan_in": 0.36}
    cells = [
        Cell({"initialization": name.split()[1]}, {s: effect + NOISE[s % 5] for s in SEEDS})
        for name, effect in by_setting.items()
    ]
    variant = replace(result.arms[1], dependence=nuisance_finding(cells, SEEDS, True))
    settings_arms = {name: judged({"post-norm": e}).arms for name, e in by_setting.items()}
    result = replace(result, arms=(result.arms[0], variant, result.arms[2]), cells=settings_arms)
    sentence = words.sentence(variant, result)
    assert "depending on initialization: better by 0.290 nats at normal" in sentence
    assert "worse by 0.360 nats at fan_in" in sentence
    html = page(result, [])
    for name in by_setting:
        assert name in html
    assert html.index("Setting by setting") < html.index("What this cannot claim")


@pytest.mark.parametrize("n", [3, 4])
def test_under_five_seeds_there_is_no_verdict_word(n):
    result = judged({"v": 0.3})
    few = verdicts(
        ArmEvidence("modern", dict.fromkeys(range(n), 3.6)),
        [ArmEvidence("v", {s: 3.9 + s / 1000 for s in range(n)})],
        range(n),
    )
    arm = replace(result.arms[1], verdict=few[0])
    said = words.sentence(arm, replace(result, arms=(result.arms[0], arm)))
    assert "exploratory" in said
    assert not re.search(r"\b(better|worse|equivalent|no difference found)\b", said)


def test_every_runs_stability_is_in_results_csv():
    result = judged({"v": 0.3})
    run = replace(
        result.runs[0],
        spikes=Spikes(steps=(70, 71, 90), events=2, tested=100),
        norms=GradientNorms(median=0.5, p999=2.5, clipped=0.25, not_finite=0),
    )
    text = results_csv.as_csv(replace(result, runs=(run, result.runs[1])))
    first, second = csv.DictReader(io.StringIO(text))
    names = ("spikes", "gradient_norm_median", "gradient_norm_p999", "clipped_share")
    assert [first[name] for name in names] == ["2", "0.5", "2.5", "0.25"]
    assert [second[name] for name in names] == [""] * 4


def test_what_decides_the_sign_is_said_before_any_average_over_it():
    result = judged({"post-norm": -0.05})
    cells = [
        Cell({"initialization": level}, {s: effect + NOISE[s - 1] for s in SEEDS})
        for level, effect in (("fan_in", 0.25), ("normal", -0.35))
    ]
    finding = nuisance_finding(cells, SEEDS, significant=False)
    arms = tuple(
        replace(arm, dependence=finding) if arm.role == "variant" else arm for arm in result.arms
    )
    result = replace(result, arms=arms)
    assert "better or worse depending on initialization: post-norm" in words.headline(result)
    said = words.sentence(result.arms[1], result)
    better, worse = said.index("better by 0.350 nats at normal"), said.index("worse by 0.250")
    assert said.index("depending on initialization") < better < worse < said.index("Over all")
    assert said.count("initialization") == 1


def test_each_setting_of_the_nuisances_has_its_own_learning_rates():
    result = judged({"post-norm": -0.05})
    settings_of = {f"initialization {level}": result.arms for level in ("fan_in", "normal")}
    runs = tuple(replace(run, cell=cell) for cell in settings_of for run in result.runs)
    made = charts(replace(result, cells=settings_of, runs=runs))
    rates = [chart for chart in made if chart.name.startswith("learning-rates")]
    assert [chart.name for chart in rates] == ["learning-rates-1", "learning-rates-2"]
    assert rates[1].title.endswith("initialization normal")
