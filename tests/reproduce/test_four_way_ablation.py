"""The four-way ablation in small: what it reports, and how the claim is judged."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import blocklab as bl
from blocklab.reproduce import four_way_ablation
from blocklab.reproduce.experiment import Place
from blocklab.study.results import RunResult
from blocklab.study.shipped import find_study


@pytest.fixture
def shrunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], bl.Study]:
    """The shipped studies, small enough for seconds."""
    monkeypatch.setenv("BLOCKLAB_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    words = " ".join(f"{i} and {i * i} are two numbers." for i in range(2000))
    text.write_text(words, encoding="utf-8")

    def find(name: str) -> bl.Study:
        small = {
            "d_model": 32, "n_layers": 1, "block.attention.n_heads": 2, "context_length": 16,
            "block.feed_forward.d_ff": 48, "training.tokens": 1600, "training.batch_size": 4,
            "training.learning_rates": [1e-3, 1e-2], "training.validation_tokens": 600,
            "data.corpus": str(text), "data.tokenizer": "bytes",
        }  # fmt: skip
        study = find_study(name).with_settings(small)
        budgets = {"quick": {"seeds": 1}}
        changed = {"seeds": 1, "search": False, "nuisances": {}, "budgets": budgets}
        return bl.Study.parse(study.plain() | changed)

    monkeypatch.setattr(four_way_ablation, "find_study", find)
    return find


@pytest.mark.slow
def test_every_arm_is_reported_and_the_claim_is_judged(
    shrunk: Callable[[str], bl.Study], tmp_path: Path
) -> None:
    place = Place(tmp_path / "four-way", lambda line: None)
    found = four_way_ablation.four_way({}, place)
    reported = [row.what.split(":")[0] for row in found.rows[:4]]
    assert reported == ["modern", "layer-norm", "plain-mlp", "post-norm"]
    assert [row.word for row in found.rows[:4]] == [""] * 4
    post, _, warmed = found.rows[4:]
    assert "of 2 runs" in post.ours
    assert warmed.word == ""
    assert len({chart.name for chart in found.charts}) == len(found.charts) > 2
    assert (tmp_path / "four-way" / "modern-block" / "report.html").is_file()


def run(arm: str, loss: float | None, diverged: bool = False) -> RunResult:
    values = dict.fromkeys(RunResult.__dataclass_fields__, 0) | {"curve": (), "cell": ""}
    values |= {"arm": arm, "validation_loss": loss, "diverged_at": 7 if diverged else None}
    return RunResult(**values)


@pytest.mark.parametrize(
    ("post", "pre", "words"),
    [
        ([run("post-norm-no-warmup", None, True)], [run("no-warmup", 4.0)], ("match", "match")),
        ([run("post-norm-no-warmup", 5.98)], [run("no-warmup", 4.0)], ("match", "match")),
        ([run("post-norm-no-warmup", 4.2)], [run("no-warmup", 4.0)], ("off", "match")),
        ([run("post-norm-no-warmup", 5.98)], [run("no-warmup", 5.97)], ("match", "off")),
    ],
)
def test_a_claim_holds_where_runs_diverge_or_stall(
    post: list[RunResult], pre: list[RunResult], words: tuple[str, str]
) -> None:
    facts = SimpleNamespace(unigram_entropy=6.0)
    result = SimpleNamespace(runs=post + pre, facts=facts)
    rows = four_way_ablation._claims(result)
    assert tuple(row.word for row in rows[:2]) == words
