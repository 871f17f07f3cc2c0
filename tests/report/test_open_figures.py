"""Page, table, chart and terminal say how sure a figure is, of how many seeds, and why none."""

import csv
import io
import re
from dataclasses import replace

import pytest

from blocklab.report import limits, table, words
from blocklab.report.charts import charts
from blocklab.report.html import page
from blocklab.report.terminal import summary_text
from tests.report.simulated import INITIALIZATIONS, POST, bowl, simulated, study
from tests.study.test_across_cells import SQUARE, together
from tests.study.test_what_is_open import HALF, ends, only_at_the_best


def sentence(name, result):
    return next(words.sentence(arm, result) for arm in result.arms if arm.name == name)


def everything(result):
    made = charts(result)
    figures = [
        {"name": one.name, "title": one.title, "reading": one.reading, "wide": "", "narrow": ""}
        for one in made
    ]
    return "\n".join([page(result, figures), table.as_markdown(result), *summary_text(result)])


@pytest.mark.parametrize(("shift", "level"), [(0.2, "99"), (0.0, "96")])
def test_no_text_of_two_looks_names_a_level_that_no_interval_has(shift, level):
    def loss_of(run):
        return bowl(run, noise=0.01) + (shift if run.arm == "post" else 0)

    said = everything(simulated(study(variants=POST, seeds="two-look"), loss_of))
    levels = set(re.findall(r"\b(9\d) ?%(?: interval|:)", said))
    assert levels == {level}


def test_an_effect_without_an_interval_is_one_everywhere_and_says_why():
    result = simulated(study(variants=POST), only_at_the_best)
    by_arm = {row.arm: row for row in table.rows(result)}
    post = by_arm["post"]
    assert (post.effect, post.interval_low, post.interval_high) == ("-0.100", "", "")
    column = next(c for c in table.columns(result) if c.heading.endswith("interval"))
    assert [column.cell(by_arm[name]) for name in ("modern", "post")] == ["", "none"]
    (row,) = (r for r in csv.DictReader(io.StringIO(table.as_csv(result))) if r["arm"] == "post")
    assert row["no_interval"] == "both rates beside the best diverge"
    chart = next(one for one in charts(result) if one.name == "effects")
    assert "No interval: post (both rates beside the best diverge)." in chart.reading
    assert "post −0.100 (no interval)" in chart.description


def test_a_setting_without_an_interval_says_why_in_its_cell():
    def loss_of(run):
        return only_at_the_best(run) if "fan_in" in run.cell else bowl(run)

    result = simulated(study(variants=POST, nuisances=INITIALIZATIONS), loss_of)
    assert "(no interval: both rates beside the best diverge)" in page(result, [])


def test_an_unfinished_search_gives_no_interval_and_says_why():
    whole = simulated(study(variants=POST), bowl)
    result = simulated(study(variants=POST), bowl, most=len(whole.runs) - 1)
    assert "no interval: the study is not finished" in sentence("post", result)
    assert "cannot be given for post" in words.headline(result)


def precision(loss_of, most=None, **changes):
    result = simulated(study(variants=POST, **HALF, **changes), loss_of, most)
    return dict(limits.limits(result))["Precision"]


def test_where_one_precision_fails_the_repeat_says_which_and_what_the_other_came_to():
    said = precision(ends(None, 0.2))
    assert re.search(r"post diverged in bfloat16 and came to 3\.\d{3} in float32\.", said)
    assert re.search(r"in nats: modern \S+; placebo \S+\.", said)
    said = precision(ends(0.2, None))
    assert re.search(r"post came to 3\.\d{3} in bfloat16 and diverged in float32\.", said)
    assert "post diverged in bfloat16 and diverged in float32." in precision(ends(None, None))


def test_every_repeat_is_told_of_with_its_setting_and_with_whether_it_is_trained():
    said = precision(ends(None, 0.2), nuisances=INITIALIZATIONS)
    assert "post at initialization fan_in diverged in bfloat16" in said
    most = len(simulated(study(variants=POST, **HALF), bowl).runs) - 1
    assert re.search(r"Not trained in float32 yet: \w+\.$", precision(bowl, most))


def lost_at_the_top(n):
    """So many of the five seeds of `post` diverge at the highest rate."""

    def loss_of(run):
        lost = run.arm == "post" and run.seed <= n and run.learning_rate > 5e-3
        return None if lost else bowl(run)

    return loss_of


def test_a_rate_at_which_some_seeds_diverge_is_not_said_to_diverge():
    some = simulated(study(variants=POST, search=False), lost_at_the_top(2))
    assert "some of its seeds diverge: 2 of 5 at 0.01." in sentence("post", some)
    assert "every higher rate" not in sentence("post", some)
    assert {r.arm: r.stable_margin for r in table.rows(some)}["post"] == "×3.33 (2 of 5 seeds)"
    every = simulated(study(variants=POST, search=False), lost_at_the_top(5))
    assert "At 0.01 and every higher rate it diverges" in sentence("post", every)
    assert {r.arm: r.stable_margin for r in table.rows(every)}["post"] == "×3.33"


def test_a_rate_that_one_seed_alone_was_tried_at_is_said_to_be():
    def loss_of(run):
        return None if run.arm == "post" and run.learning_rate > 8e-3 else bowl(run)

    result = simulated(study(variants=POST), loss_of)
    assert "At 0.009 and every higher rate, tried with one seed, it" in sentence("post", result)


def test_a_sensitivity_of_some_seeds_says_of_how_many_and_of_few_is_none():
    def stalling(*seeds):
        def loss_of(run):
            return 5.95 if run.arm == "post" and run.seed in seeds else bowl(run)

        return simulated(study(variants=POST, search=False), loss_of)

    def shown(result):
        column = next(c for c in table.columns(result) if c.heading == "Rate sensitivity")
        return {row.arm: column.text(row) for row in table.rows(result)}

    few = stalling(2, 3, 4, 5)
    assert shown(few)["post"] == "none (1 of 5 seeds)"
    assert re.fullmatch(r"0\.\d{3}", shown(few)["modern"])
    assert "learn at no rate of the grid: 4 of 5 seeds; too few" in sentence("post", few)
    assert re.fullmatch(r"0\.\d{3} \(4 of 5 seeds\)", shown(stalling(3))["post"])


def test_what_decides_the_sign_of_an_interaction_comes_before_its_average():
    flips = together(lambda run: -0.3 if "fan_in" in run.cell else 0.1)
    (said,) = words.interactions(simulated(study(**SQUARE, nuisances=INITIALIZATIONS), flips))
    start = "a x b (interaction): together better or worse than the sum depending on initialization"
    assert said.startswith(f"{start}: better by 0.")
    assert "at fan_in" in said.split("worse by")[0]
    assert said.index("worse by") < said.index("Over all settings: together better than the sum")
    same = together(lambda run: -0.2)
    (said,) = words.interactions(simulated(study(**SQUARE, nuisances=INITIALIZATIONS), same))
    assert re.search(r"sum: −0\.\d{4} nats \(", said)
    assert "Not shown to depend on initialization" in said


def test_seeds_that_were_looked_at_before_make_no_effect_less_exploratory():
    result = simulated(study(variants=POST, seeds=8, looked=5), bowl)
    (warning,) = limits.warnings(result)
    assert warning.startswith("Only 3 seeds since the 5 that were reported before: ")
    assert "Fewer than five judge" in dict(limits.limits(result))["Seeds"]
    assert "over 3 seeds" in sentence("modern", result)
    assert limits.warnings(simulated(study(variants=POST, seeds=10, looked=5), bowl)) == []


def diverging(*seeds):
    """The study with a fixed grid in which these seeds of `post` diverge at every rate."""

    def loss_of(run):
        return None if run.arm == "post" and run.seed in seeds else bowl(run)

    return simulated(study(variants=POST, search=False), loss_of)


def test_a_mean_that_leaves_seeds_out_says_of_how_many_it_is_wherever_it_is_shown():
    result = diverging(1, 3)
    shown = table.columns(result)
    cells = {
        row.arm: dict(zip([c.heading for c in shown], table.cells(row, shown), strict=True))
        for row in table.rows(result)
    }
    assert re.fullmatch(r"\d\.\d{3} ± \d\.\d{3} \(3 of 5 seeds\)", cells["post"]["Loss"])
    assert cells["post"]["Effect"].endswith(" (3 of 5 seeds)")
    assert cells["post"]["Stalled"] == "0/5"
    assert "seeds" not in cells["modern"]["Loss"] + cells["modern"]["Effect"]
    row = next(row for row in table.rows(result) if row.arm == "post")
    assert (row.loss_seeds, row.effect_seeds) == ("3 of 5 seeds", "3 of 5 seeds")
    for text in (page(result, []), table.as_markdown(result), table.as_latex(result)):
        assert text.count("(3 of 5 seeds)") >= 2
    said = dict(limits.limits(result))["Training and validation"]
    assert re.search(r"post \S+ \(3 of 5 runs\)", said)
    assert re.search(r"modern [^ (;]+;", said)


def test_a_baseline_that_lost_a_seed_says_so_of_its_loss():
    def loss_of(run):
        return None if run.arm == "modern" and run.seed == 2 else bowl(run)

    result = simulated(study(variants=POST, search=False), loss_of)
    assert "mean and standard deviation over 4 of 5 seeds" in sentence("modern", result)
    assert "One pair is incomplete and left out, with nothing put in its place" in sentence(
        "post", result
    )


def test_over_settings_a_loss_counts_the_seeds_of_all_of_them():
    def loss_of(run):
        lost = run.arm == "post" and run.seed == 2 and "fan_in" in run.cell
        return None if lost else bowl(run)

    asked = study(variants=POST, search=False, nuisances=INITIALIZATIONS)
    row = next(row for row in table.rows(simulated(asked, loss_of)) if row.arm == "post")
    assert (row.loss_seeds, row.effect_seeds) == ("9 of 10 seeds", "4 of 5 seeds")


@pytest.mark.parametrize(
    ("facts", "heading", "text"),
    [
        ({"recall": 0.61, "n_recall": 4}, "Recall", "61.0 % (4 of 5 runs)"),
        ({"recall": 0.61, "n_recall": 5}, "Recall", "61.0 %"),
        ({"spikes_per_thousand": 0.4, "n_spikes": 3}, "Spikes", "0.4 (3 of 5 runs)"),
        ({}, "Recall", ""),
    ],
)
def test_recall_and_spikes_say_of_how_many_runs_they_are(facts, heading, text):
    result = diverging()
    arms = (replace(result.arms[0], **facts), *result.arms[1:])
    column = next(column for column in table.COLUMNS if column.heading == heading)
    assert column.text(table.rows(replace(result, arms=arms))[0]) == text


def test_a_share_of_a_hundred_is_written_in_one_way():
    result = simulated(study(variants=POST, search=False), lost_at_the_top(2))
    searched = simulated(study(variants=POST), lambda run: None if run.seed == 1 else bowl(run))
    for one in (result, searched, diverging(1, 3)):
        page_body = re.sub(r"<style>.*?</style>", "", everything(one), flags=re.DOTALL)
        assert re.search(r"\d %", page_body)
        assert not re.search(r"\d%", page_body)


def test_a_point_of_the_searching_seed_alone_is_not_said_to_be_a_mean_over_seeds():
    def reading(**changes):
        made = charts(simulated(study(variants=POST, **changes), bowl))
        return next(one.reading for one in made if one.name == "learning-rates")

    assert "there is the searching seed alone" in reading()
    assert "searching seed" not in reading(search=False)


def test_settings_whose_rates_are_not_drawn_are_named():
    settings = {"initialization": [{"kind": "normal", "std": 0.01 * n} for n in range(1, 7)]}
    asked = study(variants=POST, search=False, seeds=1, nuisances=settings)
    rates = [c for c in charts(simulated(asked, bowl)) if c.name.startswith("learning-rates")]
    assert len(rates) == 4
    said = [chart.reading.partition("Not drawn: ")[2] for chart in rates]
    assert said[:3] == ["", "", ""]
    names = [f"initialization normal (std {std})" for std in ("0.05", "0.06")]
    assert said[3] == f"{'; '.join(names)}."


def test_a_sensitivity_of_the_searching_seed_alone_says_so():
    result = simulated(study(variants=POST), bowl)
    column = next(column for column in table.COLUMNS if column.heading == "Rate sensitivity")
    rows = table.rows(result)
    found = [arm.sensitivity for arm in result.arms]
    assert [one.n for one in found] == [1] * len(found)
    assert all(re.fullmatch(r"0\.\d{3} \(1 seed\)", column.text(row)) for row in rows)
