"""What whole studies come to in words: warnings, order of the words, what is missing and why.

Losses are made up and go through the real plan, searches, readings and verdicts.
"""

import dataclasses
import math
import re

import pytest

from blocklab.report import insides, limits, table, verdicts, words
from blocklab.report.charts import charts
from blocklab.report.html import page
from blocklab.report.terminal import summary_text

from .simulated import INITIALIZATIONS, POST, bowl, simulated, study

THREE = {
    "initialization": [*INITIALIZATIONS["initialization"], {"kind": "depth", "std": 0.02}],
}


def by_name(result):
    return {arm.name: arm for arm in result.arms}


def said_of(result, name):
    return words.sentence(by_name(result)[name], result)


def signs(run):
    """A variant that is better under one initialization, and worse under all others."""
    if run.arm != "post":
        return bowl(run)
    return bowl(run) + (-0.3 if "normal" in run.cell else 0.3)


# What the placebo warns of


def warned_everywhere():
    return simulated(study(), lambda run: bowl(run) + (0.03 if run.arm == "placebo" else 0))


def warned_at_one_setting():
    def loss(run):
        return bowl(run) + (0.03 if run.arm == "placebo" and "fan_in" in run.cell else 0)

    return simulated(study(variants=POST, nuisances=INITIALIZATIONS), loss)


@pytest.mark.parametrize("make", [warned_everywhere, warned_at_one_setting])
def test_every_warning_of_a_placebo_is_in_the_first_lines_of_page_and_terminal(make):
    result = make()
    arms = [arm for place in (result.arms, *result.cells.values()) for arm in place]
    found = [arm.chance.warning for arm in arms if arm.chance and arm.chance.warning]
    assert found
    html, text = page(result, []), " ".join(summary_text(result))
    first_lines = html[: html.index('id="answer"')]
    for warning in found:
        assert warning[1:] in first_lines
        assert warning[1:] in text
    for cell, own in result.cells.items():
        if any(arm.chance and arm.chance.warning for arm in own):
            assert f"At {cell}: " in text


def test_a_placebo_that_warns_is_not_presented_as_what_chance_alone_gives():
    result = warned_everywhere()
    said = said_of(result, "placebo")
    assert by_name(result)["placebo"].chance.warning in said
    assert "chance alone" not in said
    effects = charts(result)[0]
    assert "what chance alone does" not in effects.reading


# The order of the words


def one_word(result, name):
    """The word that headline, sentence and table give, which must be the same."""
    arm = by_name(result)[name]
    word = verdicts.word(arm)
    assert f"{word}: {name}" in words.headline(result)
    assert re.search(rf"^{name} \([^)]*\): {re.escape(word.split(',')[0])}", said_of(result, name))
    row = next(row for row in table.rows(result) if row.arm == name)
    assert row.verdict == word
    return word


def test_a_variant_that_diverges_for_a_seed_is_unstable_before_it_flips():
    def loss(run):
        lost = run.arm == "post" and run.seed == 1 and "fan_in" in run.cell
        return None if lost else signs(run)

    result = simulated(study(variants=POST, nuisances=INITIALIZATIONS), loss)
    assert one_word(result, "post") == "unstable"
    said = said_of(result, "post")
    flip = said.index("better or worse depending on initialization")
    assert said.index("unstable: diverged in 1 of 5") < flip
    assert flip < said.index("better by 0.3") < said.index("worse by 0.3")


def test_what_a_flip_was_not_asked_of_is_said_with_it():
    def loss(run):
        at_edge = run.arm == "post" and "depth" in run.cell
        return signs(run) if not at_edge else bowl(run, best=1e-7, bend=0.01)

    result = simulated(study(variants=POST, nuisances=THREE), loss)
    post = by_name(result)["post"]
    assert [factor.word for factor in post.dependence.factors] == ["flips"]
    assert post.dependence.left_out
    assert one_word(result, "post") == "undecided"
    said = said_of(result, "post")
    assert "depending on initialization" in said
    assert f"Left out: {'; '.join(post.dependence.left_out)}." in said


def test_a_flip_that_nothing_stops_is_the_word_of_headline_sentence_and_table():
    result = simulated(study(variants=POST, nuisances=INITIALIZATIONS), signs)
    assert one_word(result, "post") == "better or worse depending on initialization"
    said = said_of(result, "post")
    assert said.index("better by") < said.index("worse by") < said.index("Over all settings: ")


@pytest.mark.parametrize(
    ("effect", "word"),
    [
        (0.1, "worse"),
        (-0.1, "better"),
        (0.007, "worse, but by less than 0.01 nats"),
        (0.0, "equivalent within 0.01 nats"),
    ],
)
def test_a_verdict_has_one_word_everywhere(effect, word):
    def loss(run):
        return bowl(run, bend=0.01, noise=0.0005) + (effect if run.arm == "post" else 0)

    assert one_word(simulated(study(variants=POST), loss), "post") == word


# Arms that are undecided


def test_an_undecided_baseline_and_its_placebo_say_so_and_chance_is_withheld():
    def loss(run):
        return bowl(run) if run.arm == "post" else bowl(run, best=1e-7, bend=0.01)

    result = simulated(study(variants=POST), loss)
    for name in ("modern", "placebo"):
        assert "Undecided: rate at the grid's edge" in said_of(result, name)
        assert next(row for row in table.rows(result) if row.arm == name).verdict == "undecided"
    assert "chance alone" not in said_of(result, "placebo")


@pytest.mark.parametrize("lost", ["modern", "placebo"])
def test_what_chance_alone_gives_needs_both_arms_at_their_best(lost):
    def loss(run):
        return bowl(run, best=1e-7, bend=0.01) if run.arm == lost else bowl(run)

    result = simulated(study(variants=POST), loss)
    said = said_of(result, "placebo")
    assert "rate at the grid's edge" in said
    assert "chance alone" not in said
    assert not any("chance alone" in chart.reading for chart in charts(result))


def test_an_arm_that_is_undecided_at_one_setting_says_at_which_before_all_is_trained():
    def loss(run):
        at_edge = run.arm == "post" and "fan_in" in run.cell
        return bowl(run, best=1e-7, bend=0.01) if at_edge else bowl(run)

    result = simulated(study(variants=POST, nuisances=INITIALIZATIONS), loss, most=70)
    assert result.facts.n_missing
    assert "Undecided: rate at the grid's edge at initialization fan_in" in said_of(result, "post")


# Arms without a loss


def interrupted(most, **changes):
    return simulated(study(**changes), bowl, most)


def test_an_arm_whose_rate_is_still_searched_has_finished_runs_and_is_not_said_to_have_none():
    result = interrupted(9)
    for arm in result.arms:
        said = words.sentence(arm, result)
        if arm.n_runs:
            assert f"the learning rate of {arm.name} is still searched" in said
            assert "not trained yet" not in said
        else:
            assert f"{arm.name} is not trained yet" in said
    text = " ".join(summary_text(result))
    assert words.headline(result).startswith(
        "modern, the baseline, has no loss, because the learning rate of modern is still searched"
    )
    assert " finished" not in text
    assert "0 of 0" not in text


def test_an_arm_that_is_not_begun_is_not_trained_yet_and_has_no_runs_to_count():
    result = interrupted(1, variants=POST)
    assert [arm.n_runs for arm in result.arms] == [1, 0, 0]
    assert "post is not trained yet" in said_of(result, "post")
    assert "of 0 runs" not in " ".join(summary_text(result))


def test_a_baseline_that_failed_at_one_setting_is_said_to_have_failed_there_alone():
    def loss(run):
        return None if run.arm != "post" and "fan_in" in run.cell else bowl(run)

    result = simulated(study(variants=POST, nuisances=INITIALIZATIONS), loss)
    why = "all 20 runs of modern diverged at initialization fan_in"
    assert words.headline(result).startswith(
        f"modern, the baseline, has no loss over all settings, because {why}"
    )
    assert words.headline(result).endswith("That leaves undecided: post.")
    assert why in said_of(result, "modern")
    assert why in said_of(result, "placebo")
    assert " finished" not in " ".join(summary_text(result))


def test_a_baseline_that_diverged_everywhere_is_said_to_have():
    result = simulated(study(), lambda run: None if run.arm == "modern" else bowl(run))
    why = "all 20 runs of modern diverged"
    assert f"because {why}, so that nothing can be compared" in words.headline(result)
    assert why in said_of(result, "modern")


def test_a_best_rate_is_at_the_edge_of_a_fixed_grid_and_not_of_a_search_that_goes_on():
    falling = simulated(study(search=False), lambda run: bowl(run, best=1.0))
    assert "is the highest of the grid" in said_of(falling, "modern")
    searching = simulated(study(), lambda run: bowl(run, best=1.0), most=3)
    assert "of the grid" not in " ".join(summary_text(searching))
    assert all(row.edge == "" for row in table.rows(searching))


# What the charts leave out


def over_steps(result):
    return {chart.name: chart for chart in charts(result)}["training-loss"].reading


def test_runs_that_are_missing_are_not_drawn_as_diverged():
    reading = over_steps(simulated(study(search=False, variants=POST), bowl, most=14))
    assert "diverged" not in reading
    assert "Not trained yet: modern (3 of 5 seeds)" in reading


def test_runs_that_diverged_and_runs_that_are_missing_are_counted_apart():
    def loss(run):
        return None if run.arm == "post" and run.seed == 1 else bowl(run)

    asked = study(search=False, variants=POST, placebo=False)
    whole = over_steps(simulated(asked, loss))
    assert "Without the runs that diverged: post (1 of 5 seeds)." in whole
    assert "Not trained yet" not in whole
    half = over_steps(simulated(asked, loss, most=18))
    assert "Without the runs that diverged: post (1 of 5 seeds)." in half
    assert "Not trained yet: modern (2 of 5 seeds) and post (2 of 5 seeds)." in half


def test_a_chart_says_why_an_arm_is_not_in_it():
    lost = simulated(study(variants=POST), lambda run: None if run.arm == "post" else bowl(run))
    assert "Not drawn, because all 20 runs of post diverged." in over_steps(lost)

    def late(run):
        return bowl(run, best=1.0) if run.arm == "placebo" else bowl(run)

    searched = simulated(study(variants=POST), late, most=24)
    assert (
        "Not drawn, because no seed that reports is trained at the best rate of placebo yet."
    ) in over_steps(searched)


# Several sizes in one study

SIZES = {"n_layers": [2, 4], "context_length": [64, 128]}


def test_a_study_over_sizes_tells_the_range_of_every_size_and_not_of_the_first_setting():
    def loss(run):
        return bowl(run)

    result = simulated(study(variants=POST, nuisances=SIZES, search=False), loss)
    cells = list(result.cells.values())
    speeds = {cell: 1000.0 * (i + 1) for i, cell in enumerate(result.cells)}
    cells = {
        name: tuple(
            dataclasses.replace(arm, tokens_per_second=speeds[name], peak_memory=2**20 * (i + 1))
            for arm in arms
        )
        for i, (name, arms) in enumerate(result.cells.items())
    }
    result = dataclasses.replace(result, cells=cells)
    scale = dict(limits.limits(result))["Scale"]
    assert "2 to 4 layers, context 64 to 128" in scale
    per_arm = [arms[0] for arms in cells.values()]
    smallest, largest = (end(arm.n_parameters for arm in per_arm) for end in (min, max))
    assert smallest < largest
    tokens = 300 * 1024
    assert f"{tokens / largest:.2g} to {tokens / smallest:.2g} tokens a parameter" in scale
    row = table.rows(result)[0]
    assert (int(row.parameters), int(row.parameters_high)) == (smallest, largest)
    assert int(row.flops_per_token) < int(row.flops_per_token_high)
    assert (row.tokens_per_second, row.tokens_per_second_high) == ("1000", "4000")
    assert row.peak_memory == str(4 * 2**20)
    html = page(result, [])
    for text in (f"{smallest:,} to {largest:,}", "1,000 to 4,000", "d_model 64, 2 to 4 layers"):
        assert text in html
    assert "300 to 600 steps of 8 sequences" in html


def test_a_width_that_was_solved_at_every_size_is_told_for_each():
    mlp = {"mlp": {"block.feed_forward": {"kind": "mlp", "activation": "gelu_tanh"}}}
    nuisance = {"d_model": [64, 128]}
    result = simulated(study(variants=mlp, nuisances=nuisance, search=False), bowl)
    widths = [arm.matched["block.feed_forward.d_ff"] for arm in result.at_settings("mlp")]
    assert widths[0] != widths[1]
    assert f"d_ff: {widths[0]} or {widths[1]}" in table.rows(result)[1].matched


def test_what_is_seen_inside_the_models_says_at_which_setting():
    plain = simulated(study(variants=POST, search=False), bowl)
    assert insides.note(plain) == insides.NOTE
    result = simulated(study(variants=POST, nuisances=INITIALIZATIONS, search=False), bowl)
    assert insides.note(result).endswith("of the nuisances: initialization normal (std 0.02).")


# Learning rates


def test_the_rates_that_are_shown_are_those_that_were_trained():
    result = simulated(study(variants=POST), lambda run: bowl(run, bend=0.4, best=2e-3))
    trained = sorted({run.learning_rate for run in result.runs})
    assert len(trained) > 3
    assert 9e-3 in trained
    assert 1e-2 not in trained
    html = page(result, [])
    assert f"{len(trained)} learning rates" in html
    assert "searched from 0.001, 0.003 and 0.009 on; added for one arm or more: " in html
    chart = next(one for one in charts(result) if one.name == "learning-rates")
    ticks = chart.wide["layer"][0]["encoding"]["x"]["axis"]["values"]
    assert set(ticks) <= set(trained)
    assert {1e-3, 3e-3, 9e-3} <= set(ticks)


def test_a_rate_past_an_edge_has_its_tick():
    result = simulated(study(variants=POST), lambda run: bowl(run, best=9e-3))
    chart = next(one for one in charts(result) if one.name == "learning-rates")
    ticks = chart.wide["layer"][0]["encoding"]["x"]["axis"]["values"]
    assert any(math.isclose(tick, 2.7e-2, rel_tol=1e-3) for tick in ticks)


# Numbers with their units, and words with their number


def test_one_seed_is_one_seed():
    text = " ".join(summary_text(simulated(study(seeds=1), bowl)))
    assert "exploratory (1 seed)" in text
    assert "1 seeds" not in text


def test_a_placebo_without_any_difference_is_not_said_to_have_come_as_far():
    result = simulated(study(), lambda run: 3.6 + 0.05 * math.log(run.learning_rate / 3e-3, 3) ** 2)
    said = said_of(result, "placebo")
    assert "on average no difference from modern" in said
    assert "no seed differs" in said
    assert "0.000 nats." not in said


def test_every_figure_of_an_effect_in_nats_names_its_unit():
    def loss(run):
        if run.arm not in ("a", "b", "ab"):
            return bowl(run)
        return bowl(run) + (0.1 if run.arm == "ab" else 0.02) + (0.1 if run.rung else 0)

    placement, norm = {"block.placement": "output"}, {"block.norm.kind": "layer"}
    asked = study(
        variants={"a": norm, "b": placement, "ab": {**norm, **placement}},
        interactions={"both": ("a", "b", "ab")},
        ladder={"sizes": [{"d_model": 32}]},
    )
    result = simulated(asked, loss)
    text = " ".join(summary_text(result))
    assert "(interaction)" in text
    assert "for ten times the parameters" in text
    # An interval's ends share the unit of the figure that they follow, on either side of `%: `.
    figures = re.sub(r"\d+ ?%: \S+ to [^\s);]+", "", text)
    assert re.findall(r"[+\N{MINUS SIGN}]\d\.\d{3,}(?!\d| nats)", figures) == []


def test_the_rung_that_stops_a_trend_is_told_as_the_ladder_tells_it():
    def loss(run):
        at_edge = run.rung and run.arm == "post"
        return bowl(run, best=1e-7, bend=0.01) if at_edge else bowl(run)

    result = simulated(study(variants=POST, ladder={"sizes": [{"d_model": 32}]}), loss)
    said = said_of(result, "post")
    assert "From 107 k to 295 k parameters: no trend resolved: at 107 k parameters: " in said
    assert not re.search(r"\b\d{6}\b", said)


def test_effects_are_exploratory_by_their_own_seeds_and_not_by_anothers():
    def lost(run, name):
        return run.arm == name and run.seed == 2

    asked = study(search=False)
    placebo = simulated(asked, lambda run: None if lost(run, "placebo") else bowl(run))
    assert "exploratory" not in words.headline(placebo)
    one = simulated(asked, lambda run: None if lost(run, "ln") else bowl(run))
    assert words.headline(one).endswith("exploratory, with fewer than five seeds: ln.")
    both = simulated(asked, lambda run: None if lost(run, "modern") else bowl(run))
    assert words.headline(both).endswith("exploratory, with fewer than five seeds.")


def test_an_effect_over_settings_is_said_once_and_what_it_depends_on_beside_it():
    def loss(run):
        return bowl(run) + (0.1 if run.arm == "post" else 0)

    result = simulated(
        study(variants=POST, nuisances=INITIALIZATIONS, ladder={"tokens": [0.5]}), loss
    )
    said = said_of(result, "post").split(" From ")[0]
    assert said.count("nats") == 1
    assert "Holds in each of 2 settings. Not shown to depend on initialization" in said
    assert "4 arms" not in page(result, []) and "2 settings · 2 rungs" in page(result, [])


def test_an_arm_that_is_unstable_over_settings_still_tells_its_effect():
    def loss(run):
        lost = run.arm == "post" and run.seed == 1 and "fan_in" in run.cell
        return None if lost else bowl(run) + (0.1 if run.arm == "post" else 0)

    result = simulated(study(variants=POST, nuisances=INITIALIZATIONS), loss)
    said = said_of(result, "post")
    assert "unstable: diverged in 1 of 5" in said
    assert "nats over all settings (95 %: " in said
