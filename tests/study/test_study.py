"""A study file is read strictly, and every change has one way to be said."""

import pytest
import yaml

import blocklab as bl
from blocklab.study.course import courses
from blocklab.study.liveness import require_differences
from blocklab.study.plan import plan
from blocklab.study.results import Text
from blocklab.study.shipped import find_study, shipped_studies
from blocklab.study.study import Study


def runs_of(planned):
    """Every run of a plan with a fixed grid."""
    return [run for way in courses(planned, {}) for run in way.runs]


TEXT = Text("f" * 16, 512, "bpe:512", 6.0, 100_000, 10_000)


def minimal(**fields):
    return Study.parse(
        {
            "question": "Is LayerNorm as good?",
            "baseline": {"preset": "modern", "d_model": 32, "n_layers": 2, "n_heads": 2},
            "variants": {"layer-norm": {"block.norm.kind": "layer"}},
            "training": {"steps": 10, "batch_size": 2, "learning_rates": [1e-3, 1e-2]},
            "seeds": 2,
            "search": False,
        }
        | fields
    )


@pytest.mark.parametrize("name", sorted(shipped_studies()))
def test_every_shipped_question_plans_at_every_budget(name):
    study = find_study(name)
    for budget in study.known_budgets():
        planned = plan(study.at_budget(budget), TEXT)
        assert planned.arms[0].role == "baseline"
        assert planned.arms[-1].role == "placebo"


@pytest.mark.parametrize("name", sorted(shipped_studies()))
def test_no_variant_of_a_shipped_question_is_dead(name):
    for cell in plan(find_study(name), TEXT).cells:
        require_differences(cell)


@pytest.mark.parametrize("name", sorted(shipped_studies()))
def test_a_resolved_study_survives_its_file(name, tmp_path):
    for budget in find_study(name).known_budgets():
        study = find_study(name).at_budget(budget).resolved()
        (tmp_path / "study.yaml").write_text(study.to_yaml(), encoding="utf-8")
        read = Study.from_yaml(tmp_path / "study.yaml")
        assert read == study
        written = plan(find_study(name).at_budget(budget), TEXT)
        ids = [run.spec.id for run in runs_of(plan(read, TEXT))]
        assert ids == [run.spec.id for run in runs_of(written)]


def test_rates_written_as_yaml_writes_them_are_numbers():
    study = minimal(training=yaml.safe_load("{steps: 5, learning_rates: [1e-3, 3e-3]}"))
    assert study.training.learning_rates == (0.001, 0.003)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sedes": 3}, ["sedes", "seeds"]),
        ({"variants": {"placebo": {"n_layers": 3}}}, ["placebo", "taken"]),
        ({"training": {"learning_rates": []}}, ["training.learning_rates"]),
        ({"training": {"learning_rates": [1e-3, 1e-3]}}, ["training.learning_rates", "different"]),
        ({"training": {"steps": 1, "tokens": 5}}, ["tokens", "steps"]),
        ({"baseline": {"preset": "moderm"}}, ["moderm", "modern"]),
        ({"baseline": {"preset": "modern", "file": "x.yaml"}}, ["one of"]),
        ({"variants": {"x": {"block.nrom.kind": "layer"}}}, ["variants.x", "nrom", "norm"]),
        ({"variants": {"x": {"data.corpus": "python-docs"}}}, ["variants.x", "data"]),
        ({"variants": {"x": {"training.validation_tokens": 99}}}, ["variants.x", "another text"]),
        ({"variants": {"x": {"training.clpi": 1}}}, ["variants.x", "training.clpi", "clip"]),
        ({"variants": {"x": {"seeds": 3}}}, ["variants.x", "seeds", "belongs to the study"]),
        ({"variants": {"x": {"context_length": 64}}}, ["variants.x", "windows", "nuisances"]),
        ({"variants": {"x": {"vocab_size": 100}}}, ["variants.x", "100 rows", "512 ids"]),
        ({"variants": {"x": {"n_layers": 40}}}, ["variants.x", "no width matches"]),
        ({"nuisances": {"training.learning_rates": [[1e-3], [1e-2]]}}, ["learning_rates", "own"]),
        ({"nuisances": {"training.validation_tokens": [64, 128]}}, ["validation_tokens", "texts"]),
        ({"nuisances": {"data.tokenizer": ["bytes", "bpe:300"]}}, ["data.tokenizer", "texts"]),
        ({"nuisances": {"training.inspect_every": [1, 2]}}, ["inspect_every", "nothing"]),
        ({"nuisances": {"context_length": [64, 20_000]}}, ["20000", "10,000"]),
        ({"nuisances": {"dropout": [0.1, "0.1"]}}, ["nuisances", "the same", "drop one"]),
        ({"seeds": 5, "looked": 5}, ["seeds: 5", "give more than 5"]),
        (
            {
                "variants": {"x": {"block.feed_forward": {"kind": "mlp", "bias": False}}},
                "nuisances": {"block.feed_forward.bias": [True, False]},
            },
            ["variants.x", "overrides the nuisance"],
        ),
        (
            {
                "ladder": {"sizes": [{"block.attention.n_heads": 4}]},
                "nuisances": {"block.attention": [{"window": 8}, {"window": 64}]},
            },
            ["ladder.sizes", "block.attention", "both"],
        ),
    ],
)
def test_a_mistake_in_a_study_names_its_path(change, words):
    with pytest.raises(bl.BlocklabError) as caught:
        plan(minimal(**change), TEXT)
    for word in words:
        assert word in str(caught.value)


def test_settings_change_the_baseline_and_the_training_of_every_arm():
    study = minimal().with_settings({"block.norm.eps": 1e-3, "training.clip": 0.5})
    planned = plan(study, TEXT)
    assert {arm.config.block.norm.eps for arm in planned.arms} == {1e-3}
    assert {run.spec.training.clip for run in runs_of(planned)} == {0.5}


def test_a_variant_may_change_how_it_trains():
    study = minimal(variants={"no-warmup": {"training.schedule.warmup": 0}})
    by_arm = {arm.name: arm for arm in plan(study, TEXT).arms}
    assert by_arm["no-warmup"].training.schedule.warmup == 0
    assert by_arm["baseline"].training.schedule.warmup != 0
    assert by_arm["no-warmup"].config == by_arm["baseline"].config


def test_an_unknown_budget_names_those_there_are():
    with pytest.raises(bl.BlocklabError, match="quick"):
        find_study("modern_block").at_budget("quik")


def test_a_models_file_is_no_study_and_says_how_to_ask_of_it(tmp_path):
    file = tmp_path / "model.yaml"
    for text in ("preset: modern\n", "block: {placement: post}\n"):
        file.write_text(text)
        with pytest.raises(bl.BlocklabError, match=r"a model, not a study; .* baseline: \{file: "):
            Study.from_yaml(file)


def test_a_key_that_stands_twice_is_refused_with_its_lines(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text("question: x\nvariants:\n  a: {n_layers: 2}\n  b: {}\n  a: {n_layers: 3}\n")
    with pytest.raises(bl.BlocklabError, match=r"study\.yaml.*line 5.*'a'.*line 3"):
        Study.from_yaml(file)


def test_further_changes_join_the_variant_that_is_there():
    joined = minimal().with_variants(
        {"layer-norm": {"block.placement": "post"}, "deep": {"n_layers": 3}}
    )
    assert joined.variants == {
        "layer-norm": {"block.norm.kind": "layer", "block.placement": "post"},
        "deep": {"n_layers": 3},
    }
    assert minimal().with_variants({"layer-norm": {"block.norm.kind": "layer"}}) == minimal()
    with pytest.raises(
        bl.BlocklabError, match=r"variants\.layer-norm: 'block\.norm\.kind' is .* twice"
    ):
        minimal().with_variants({"layer-norm": {"block.norm.kind": "dyt"}})


@pytest.mark.parametrize(
    ("path", "way"),
    [
        ("seeds", "--seeds"),
        ("budget", "--budget"),
        ("variants.x", "--variant"),
        ("match", "the study's file"),
        ("baseline.d_model", "leave 'baseline.' out"),
    ],
)
def test_a_setting_of_the_study_itself_says_where_it_belongs(path, way):
    with pytest.raises(bl.BlocklabError, match=f"{path}: belongs to the study.*{way}"):
        minimal().with_settings({path: 3})


def test_a_float32_repeat_without_a_best_rate_is_refused():
    with pytest.raises(bl.BlocklabError, match=r"^repeat_in_float32: .* search: true"):
        minimal(repeat_in_float32=True, search=False)
