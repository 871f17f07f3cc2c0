"""The table of what warm-up is worth pairs the right arms, rate by rate."""

from dataclasses import replace

from blocklab.report.html import page
from blocklab.report.warmup import PATH, warmup_rows, warmup_table
from blocklab.study.results import SEARCH_SEED
from tests.report import factory
from tests.report.simulated import bowl, simulated
from tests.report.simulated import study as asked

LOSSES = {
    "pre": {(s, r): 3.0 + r for s in (1, 2) for r in (1e-3, 1e-2)},
    "post": {(s, r): 3.5 for s in (1, 2) for r in (1e-3, 1e-2)},
    "pre-cold": {(s, r): 3.25 + r for s in (1, 2) for r in (1e-3, 1e-2, 1e-1)},
    "post-cold": {(s, r): None if r > 5e-3 else 4.0 for s in (1, 2) for r in (1e-3, 1e-2)},
}
CHANGES = {
    "post": {"block.placement": "post"},
    "pre-cold": {PATH: 0},
    "post-cold": {"block.placement": "post", PATH: 0},
}


def study():
    result = factory.study(LOSSES)
    arms = tuple(replace(arm, changes=CHANGES.get(arm.name, {})) for arm in result.arms)
    return replace(result, arms=arms)


def test_arms_are_paired_that_differ_in_warm_up_alone():
    rows = warmup_rows(study())
    assert [row.name for row in rows] == ["post", "pre"]
    post, pre = rows
    assert sorted(pre.points) == [1e-3, 1e-2]
    assert all(abs(point.difference - 0.25) < 1e-9 for point in pre.points.values())
    assert post.points[1e-3].difference == 0.5
    assert post.points[1e-2].difference is None
    assert post.points[1e-2].diverged_without


def test_a_divergence_is_said_and_a_rate_that_one_lacks_is_left_empty():
    table = warmup_table(study())
    assert table["rates"] == ["0.001", "0.01"]
    by_name = {row["name"]: row["cells"] for row in table["rows"]}
    assert by_name == {"post": ["+0.500", "diverged without"], "pre": ["+0.250", "+0.250"]}


def test_seeds_that_one_arm_lacks_are_in_neither_mean_and_a_lone_survivor_is_no_mean():
    losses = dict(LOSSES)
    losses["pre"] = {(0, 1e-3): 9.0, (1, 1e-3): 3.0, (2, 1e-3): 3.0}
    losses["post-cold"] = {(1, 1e-3): 4.0, (2, 1e-3): None}
    result = factory.study(losses)
    arms = tuple(replace(arm, changes=CHANGES.get(arm.name, {})) for arm in result.arms)
    post, pre = warmup_rows(replace(result, arms=arms))
    assert abs(pre.points[1e-3].difference - 0.251) < 1e-9
    assert post.points[1e-3].difference is None
    assert post.points[1e-3].diverged_without and not post.points[1e-3].diverged_with


def test_every_setting_of_the_nuisances_has_a_row():
    result = study()
    settings = ("n_layers 2", "n_layers 8")
    runs = tuple(replace(run, cell=setting) for setting in settings for run in result.runs)
    rows = warmup_rows(replace(result, cells=dict.fromkeys(settings, result.arms), runs=runs))
    assert [(row.name, row.setting) for row in rows] == [
        ("post", "n_layers 2"),
        ("post", "n_layers 8"),
        ("pre", "n_layers 2"),
        ("pre", "n_layers 8"),
    ]


def test_without_an_arm_that_has_no_warm_up_there_is_no_table():
    assert warmup_table(factory.modern_block()) is None


def test_a_searched_study_has_a_number_at_every_rate_that_both_were_trained_at():
    """Without warm-up the best rate is another, so that the arms report at different rates."""

    def loss(run):
        return bowl(run, best=3e-3 if run.arm == "modern" else 1e-3, bend=0.3)

    result = simulated(asked(variants={"cold": {PATH: 0}}, placebo=False), loss)
    (row,) = warmup_rows(result)
    runs = {
        name: {(r.learning_rate, r.seed): r.validation_loss for r in result.runs if r.arm == name}
        for name in ("modern", "cold")
    }
    seeds = {}
    for rate, seed in runs["modern"].keys() & runs["cold"].keys():
        seeds.setdefault(rate, set()).add(seed)
    assert any(found == {SEARCH_SEED} for found in seeds.values())
    assert row.n_seeds == {rate: len(found) for rate, found in seeds.items()}
    for rate, found in seeds.items():
        paired = [runs["cold"][rate, seed] - runs["modern"][rate, seed] for seed in found]
        assert abs(row.points[rate].difference - sum(paired) / len(paired)) < 1e-9
    counts = warmup_table(result)["rows"][0]["seeds"]
    assert "1 seed" in counts
    html = page(result, [])
    warmup = html[html.index('id="warmup"') : html.index('id="limits"')]
    assert warmup.count(">1 seed<") == counts.count("1 seed")
