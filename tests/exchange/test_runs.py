"""A finished run of our own is a model like any other."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import blocklab as bl
from blocklab.data.dataset import DataConfig, prepare
from blocklab.data.tokenizer import train_bpe
from blocklab.exchange.conventions import came_with
from blocklab.exchange.runs import keep_conventions
from blocklab.training.run import RunSpec, train_run
from blocklab.training.trained import weights_fingerprint
from tests.exchange.authors import today, write


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on a text of its own."""
    root = tmp_path_factory.mktemp("run")
    text = root / "text.txt"
    text.write_text("".join(f"{n} sheep and {n * n} wolves\n" for n in range(400)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLOCKLAB_CACHE", str(root / "cache"))
        data = DataConfig(corpus=str(text), tokenizer="bpe:300")
        dataset = prepare(data)
    model = bl.presets.modern(d_model=32, n_layers=1, n_heads=2, context_length=16)
    spec = RunSpec(
        model=model,
        training=bl.TrainingConfig(steps=2, batch_size=2),
        data=data,
        data_fingerprint=dataset.fingerprint,
        seed=0,
    )
    train_run(spec, root / "out", dataset)
    return root


def test_a_run_loads_with_its_weights_and_its_tokenizer(run: Path, monkeypatch) -> None:
    monkeypatch.setenv("BLOCKLAB_CACHE", str(run / "cache"))
    loaded = bl.load(run / "out")
    assert not loaded.model.training
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("12 sheep")) == "12 sheep"
    assert loaded.stop_ids == (loaded.tokenizer.end_of_text,)
    assert loaded.model.config.vocab_size == loaded.tokenizer.vocab_size
    stored = (run / "out" / "model.safetensors").read_bytes()
    weight = loaded.model.blocks[0].attention.qkv.weight.detach().numpy().tobytes()
    assert weight in stored


def test_without_its_corpus_the_tokenizer_is_missed_and_that_is_said(
    run: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("BLOCKLAB_CACHE", str(tmp_path))
    loaded = bl.load(run / "out")
    assert loaded.tokenizer is None
    assert "bpe:300" in loaded.notes[0]


def test_a_run_leaves_in_hugging_faces_layout(run: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("BLOCKLAB_CACHE", str(run / "cache"))
    loaded = bl.load(run / "out")
    bl.export_huggingface(loaded.model, tmp_path / "hf", tokenizer=loaded.tokenizer)
    again = bl.load(tmp_path / "hf")
    tokens = torch.tensor([loaded.tokenizer.encode("7 sheep and")])
    assert torch.equal(again.model(tokens), loaded.model(tokens))


def test_a_run_that_is_not_finished_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes(b"")
    with pytest.raises(bl.BlocklabError, match="not finished"):
        bl.load(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"spec": 3}', '{"spec": {"model": {"x": 1}}}']
)
def test_a_damaged_record_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(bl.BlocklabError, match=r"run\.json"):
        bl.load(tmp_path)


def test_a_run_whose_weights_are_not_its_records_is_refused(run: Path, tmp_path: Path) -> None:
    record = json.loads((run / "out" / "run.json").read_text())
    record["spec"]["model"]["d_model"] = 64
    (tmp_path / "run.json").write_text(json.dumps(record))
    (tmp_path / "model.safetensors").symlink_to(run / "out" / "model.safetensors")
    with pytest.raises(bl.BlocklabError, match=r"model\.safetensors.*shape"):
        bl.load(tmp_path)


def test_a_study_says_that_it_has_runs(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("question: which?")
    with pytest.raises(bl.BlocklabError, match="study"):
        bl.load(tmp_path)


# What a run keeps of the model that it began from


def gone_on_from(source: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of one step from the weights in `source`, as `blocklab train` leaves it."""
    monkeypatch.setenv("BLOCKLAB_CACHE", str(out.with_name(f"{out.name}-cache")))
    start = bl.load(source)
    text = out.with_suffix(".txt")
    text.write_text("the model reads the text again\n" * 400)
    # As the command does: by a tokenizer.json that says nothing of where texts end.
    kept = out.with_name(f"{out.name}-tokenizer")
    kept.mkdir()
    start.tokenizer.save(kept / "tokenizer.json")
    end = start.tokenizer.token(start.tokenizer.end_of_text)
    (kept / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
    data = DataConfig(corpus=str(text), tokenizer=str(kept))
    dataset = prepare(data)
    spec = RunSpec(
        model=start.model.config,
        training=bl.TrainingConfig(steps=1, batch_size=2),
        data=data,
        data_fingerprint=dataset.fingerprint,
        seed=0,
        weights=weights_fingerprint(start.model),
    )
    train_run(spec, out, dataset, start=start.model)
    shutil.copyfile(dataset.folder / "tokenizer.json", out / "tokenizer.json")
    keep_conventions(out, start.start_ids, start.stop_ids, start.tokenizer)
    return out


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch) -> dict[str, Path]:
    """A checkpoint, a run from it and a run from that, on a machine that has only their folders."""
    files = {
        "tokenizer_config.json": {
            "bos_token": "<s>",
            "eos_token": "<|eot|>",
            "pad_token": "<|pad|>",
            "additional_special_tokens": ["<|im|>"],
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        "chat_template.jinja": "{{ messages[0]['content'] }}<|eot|>",
        "generation_config.json": {"eos_token_id": [0, 2], "temperature": 0.6, "top_p": 0.9},
    }
    ids = {"bos_token_id": 1, "eos_token_id": [0, 2]}
    source = write(tmp_path / "theirs", files, config=ids, marks_beginnings=True)
    run = gone_on_from(source, tmp_path / "run", monkeypatch)
    again = gone_on_from(run, tmp_path / "again", monkeypatch)
    monkeypatch.setenv("BLOCKLAB_CACHE", str(tmp_path / "empty"))
    return {"theirs": source, "run": run, "again": again}


@pytest.mark.parametrize("name", ["run", "again"])
def test_a_run_begins_and_ends_texts_as_the_model_did_that_it_began_from(elsewhere, name) -> None:
    expected, found = bl.load(elsewhere["theirs"]), bl.load(elsewhere[name])
    assert found.start_ids == expected.start_ids == (1,)
    assert found.stop_ids == expected.stop_ids == (0, 2)
    assert found.tokenizer.end_of_text == expected.tokenizer.end_of_text == 2
    assert found.conventions == expected.conventions
    assert found.notes == ()


@pytest.mark.parametrize("name", ["run", "again"])
def test_a_run_leaves_with_what_the_authors_said(elsewhere, tmp_path: Path, name: str) -> None:
    loaded = bl.load(elsewhere[name])
    bl.export_huggingface(loaded.model, tmp_path / "out", tokenizer=loaded.tokenizer)
    files = ("tokenizer_config.json", "chat_template.jinja", "generation_config.json")
    for file in files:
        original = (elsewhere["theirs"] / file).read_text()
        found = (tmp_path / "out" / file).read_text()
        assert found == original or json.loads(found) == json.loads(original), file
    again = bl.load(tmp_path / "out")
    assert (again.start_ids, again.stop_ids) == ((1,), (0, 2))


def test_a_run_from_before_texts_were_kept_is_as_it_was(elsewhere) -> None:
    (elsewhere["run"] / "text.json").unlink()
    loaded = bl.load(elsewhere["run"])
    assert loaded.start_ids == ()
    assert loaded.stop_ids == (loaded.tokenizer.end_of_text,)
    assert loaded.conventions is None


def test_a_run_stops_where_its_own_texts_ended_too(elsewhere, tmp_path: Path) -> None:
    """Its model may have ended them otherwise before it was trained on."""
    path = elsewhere["run"] / "text.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"end_of_text": 4}))
    loaded = bl.load(elsewhere["run"])
    assert loaded.stop_ids == (0, 2, 4)
    bl.export_huggingface(loaded.model, tmp_path / "out", tokenizer=loaded.tokenizer)
    for file in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "out" / file).read_text())["eos_token_id"] == [0, 2, 4]


def test_ids_alone_are_kept_as_well(elsewhere, tmp_path: Path) -> None:
    tokenizer = bl.load(elsewhere["theirs"]).tokenizer
    bare = type(tokenizer)(tokenizer.definition, "bare", end_of_text=0)
    keep_conventions(elsewhere["run"], [3], [2, 4], bare)
    loaded = bl.load(elsewhere["run"])
    assert (loaded.start_ids, loaded.stop_ids) == ((3,), (2, 4, 0))
    bl.export_huggingface(loaded.model, tmp_path / "out", tokenizer=loaded.tokenizer)
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (found["bos_token_id"], found["eos_token_id"]) == (3, [2, 4, 0])


def test_ids_that_are_no_rows_of_a_run_are_left_out_and_said(elsewhere) -> None:
    path = elsewhere["run"] / "text.json"
    kept = json.loads(path.read_text()) | {"start_ids": [1, 9000], "stop_ids": [2, 9001]}
    path.write_text(json.dumps(kept))
    loaded = bl.load(elsewhere["run"])
    assert (loaded.start_ids, loaded.stop_ids) == ((1,), (2,))
    assert [note.split(" is none")[0] for note in loaded.notes] == ["start id 9000", "stop id 9001"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"start_ids": [1.5], "stop_ids": [], "end_of_text": 0, "conventions": null}',
        '{"start_ids": [-1], "stop_ids": [], "end_of_text": 0, "conventions": null}',
        '{"start_ids": [], "stop_ids": [], "end_of_text": 0, "conventions": 3}',
        '{"start_ids": [], "stop_ids": [], "end_of_text": 0, "conventions": {"config": '
        '{"eos_token_id": "x"}}}',
        '{"start_ids": [], "stop_ids": [], "end_of_text": 0, "conventions": {"chat_templates": '
        '{"default": "\\ud800"}}}',
    ],
)
def test_damage_to_what_was_kept_is_named(elsewhere, content: str) -> None:
    (elsewhere["run"] / "text.json").write_text(content)
    with pytest.raises(bl.BlocklabError, match=r"text\.json"):
        bl.load(elsewhere["run"])


def test_what_was_kept_is_whole_or_what_it_was_before(tmp_path: Path, monkeypatch) -> None:
    tokenizer = bl.load(today(tmp_path / "theirs")).tokenizer
    keep_conventions(tmp_path, (), (1,), tokenizer)
    before = (tmp_path / "text.json").read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(bl.BlocklabError, match="No space left"):
        keep_conventions(tmp_path, (), (2,), tokenizer)
    assert (tmp_path / "text.json").read_text() == before
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["text.json"]


def test_a_tokenizer_of_ones_own_came_with_nothing() -> None:
    assert came_with(train_bpe(["the text"] * 50, 280)) is None
