"""From runs to arms: the best rate, its edge, diverged and stalled runs."""

from dataclasses import replace

import pytest

from blocklab.study.course import courses
from blocklab.study.plan import plan
from blocklab.study.results import RunResult
from blocklab.study.summary import best_rate, edge, rate_points, summarised
from blocklab.training.stability import Spikes
from tests.study.test_study import TEXT, minimal


def run(arm, seed, rate, loss, rung=""):
    return RunResult(
        id=f"{arm}{seed}{rate}",
        arm=arm,
        seed=seed,
        learning_rate=rate,
        validation_loss=loss,
        train_loss=loss,
        start_loss=6.2,
        diverged_at=None if loss is not None else 3,
        diverged_in=None if loss is not None else "loss",
        steps=10,
        tokens=100,
        epochs=0.1,
        seconds=1.0,
        tokens_per_second=100.0,
        peak_memory=1,
        curve=(),
        validation_curve=(),
        rung=rung,
    )


def summary(planned, runs):
    """Arms of a study with a fixed grid."""
    return summarised(planned, courses(planned, {}), runs, None)


def test_a_rate_at_which_runs_diverged_is_not_best_however_low_the_rest():
    runs = [run("a", 1, 1e-2, 1.0), run("a", 2, 1e-2, None)]
    runs += [run("a", 1, 1e-3, 3.0), run("a", 2, 1e-3, 3.1)]
    points = rate_points(runs)
    assert best_rate(points) == 1e-3
    assert [point.n_diverged for point in points] == [0, 1]


def test_the_best_rate_is_not_the_one_that_lost_the_seed_with_the_higher_loss():
    hard, easy = 1, 2
    runs = [run("a", hard, 1e-3, 4.0), run("a", easy, 1e-3, None), run("a", 3, 1e-3, 3.0)]
    runs += [run("a", hard, 1e-2, None), run("a", easy, 1e-2, 2.0), run("a", 3, 1e-2, 3.1)]
    assert best_rate(rate_points(runs)) == 1e-3


def test_when_every_run_diverged_there_is_no_best_rate_and_no_effect():
    planned = plan(minimal(), TEXT)
    runs = [run("baseline", s, r, 3.0 + s) for s in (1, 2) for r in (1e-3, 1e-2)]
    runs += [run("layer-norm", s, r, None) for s in (1, 2) for r in (1e-3, 1e-2)]
    arms = {arm.name: arm for arm in summary(planned, runs)}
    assert arms["layer-norm"].best_rate is None
    assert arms["layer-norm"].effect is None
    assert arms["layer-norm"].n_diverged == 4
    assert arms["placebo"].n_runs == 0


def test_each_arm_is_read_at_its_own_best_rate():
    planned = plan(minimal(), TEXT)
    runs = [run("baseline", s, r, loss + s) for s in (1, 2) for r, loss in ((1e-3, 3), (1e-2, 2))]
    runs += [
        run("layer-norm", s, r, loss + s) for s in (1, 2) for r, loss in ((1e-3, 1), (1e-2, 4))
    ]
    arms = {arm.name: arm for arm in summary(planned, runs)}
    assert (arms["baseline"].best_rate, arms["layer-norm"].best_rate) == (1e-2, 1e-3)
    assert arms["layer-norm"].effect.mean == pytest.approx(-1.0)
    assert arms["baseline"].effect is None


def test_a_best_rate_at_the_end_of_the_grid_is_said():
    points = rate_points([run("a", 1, r, loss) for r, loss in ((1, 3.0), (2, 2.0), (3, 1.0))])
    assert edge(points, best_rate(points)) == "highest"
    assert edge(points, 1) == "lowest"
    assert edge(points, 2) is None
    assert edge(points[:1], 1) is None


def test_a_run_that_ends_on_the_unigram_entropy_counts_as_stalled():
    planned = plan(minimal(), TEXT)
    runs = [run("baseline", 1, 1e-3, 6.04), run("baseline", 2, 1e-3, 5.0)]
    assert summary(planned, runs)[0].n_stalled == 1


def test_a_mean_over_the_runs_at_the_best_rate_says_of_how_many_it_is():
    planned = plan(minimal(), TEXT)
    kept = replace(run("baseline", 1, 1e-3, 3.0), recall=0.75, spikes=Spikes((), 2, 500))
    lost = replace(run("baseline", 2, 1e-3, None), recall=None, spikes=Spikes((), 1, 1000))
    short = replace(run("baseline", 2, 1e-3, 3.1), recall=0.25, spikes=None)
    base = summary(planned, [kept, lost])[0]
    assert (base.recall, base.n_recall, base.n_at_best) == (0.75, 1, 2)
    assert (base.spikes_per_thousand, base.n_spikes) == (pytest.approx(2.5), 2)
    base = summary(planned, [kept, short])[0]
    assert (base.recall, base.n_recall) == (0.5, 2)
    assert (base.spikes_per_thousand, base.n_spikes) == (4.0, 1)
