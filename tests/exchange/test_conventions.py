"""What authors said about texts survives an export: transformers reads the same as before."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import blocklab as bl
from blocklab.data.tokenizer import Tokenizer, train_bpe
from blocklab.exchange.huggingface_text import LARGEST_TEMPLATE
from tests.exchange.authors import (
    CHAT,
    D_FF,
    FAMILIES,
    SIZES,
    TEXT,
    WAYS,
    today,
    with_templates,
    write,
)
from tests.exchange.references import is_newer

TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token")
IDS = tuple(f"{name}_id" for name in TOKENS)
OTHERS = ("additional_special_tokens", "extra_special_tokens", "all_special_tokens")
SETTINGS = ("chat_template", "model_max_length", "padding_side", "truncation_side")


def exported(source: Path, to: Path) -> Path:
    loaded = bl.load(source)
    return bl.export_huggingface(loaded.model, to, tokenizer=loaded.tokenizer)


def as_read(folder: Path) -> dict[str, Any]:
    """What transformers makes of a folder, apart from logits."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    names = (*TOKENS, *IDS, *OTHERS, *SETTINGS)
    read = {name: getattr(tokenizer, name, None) for name in names}
    read["ids"] = tokenizer(TEXT)["input_ids"]
    read["text"] = tokenizer.decode(read["ids"], skip_special_tokens=True)
    templates = tokenizer.chat_template or {}
    for name in templates if isinstance(templates, dict) else [None]:
        chat = [turn | {"tool": "search"} for turn in CHAT]
        read[f"chat {name}"] = tokenizer.apply_chat_template(
            chat, tokenize=False, chat_template=name
        )
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    said = model.generation_config.to_dict()
    read["generation"] = {name: value for name, value in said.items() if "version" not in name}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        read[f"config {name}"] = getattr(model.config, name, None)
    read["class"] = type(model).__name__
    return read


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_the_same_from_what_is_exported(
    tmp_path: Path, family: str, way: str
) -> None:
    pytest.importorskip("transformers")
    if way == "today" and not is_newer():
        pytest.skip("older versions cannot read it")
    source = WAYS[way](tmp_path / "theirs", family)
    expected, found = as_read(source), as_read(exported(source, tmp_path / "ours"))
    assert found == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_stops_where_it_stopped_before(tmp_path: Path, family: str) -> None:
    transformers = pytest.importorskip("transformers")
    source = WAYS["before"](tmp_path / "theirs", family)
    prompt = torch.tensor([[1, 60, 61]])

    def written(folder: Path) -> list[int]:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        found = model.generate(prompt, do_sample=False, max_new_tokens=40, pad_token_id=3)
        return found[0].tolist()

    free = written(source)
    assert len(free) == 43
    stop = free[8]  # the second of two, which no tokenizer knows of
    path = source / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [0, stop]}))
    expected = written(source)
    assert expected == free[: free.index(stop, 3) + 1]
    assert written(exported(source, tmp_path / "ours")) == expected
    assert bl.load(tmp_path / "ours").stop_ids == (0, stop)


def files_of(folder: Path) -> dict[str, Any]:
    """The authors' files by name, JSON as values."""
    names = [p for p in folder.iterdir() if p.suffix in (".json", ".jinja")]
    texts = {p.name: p.read_text() for p in names if p.name != "tokenizer.json"}
    return {n: json.loads(text) if n.endswith("json") else text for n, text in texts.items()}


@pytest.mark.parametrize("way", ["today", "before", "long ago"])
def test_files_leave_as_they_came(tmp_path: Path, way: str) -> None:
    source = WAYS[way](tmp_path / "theirs")
    assert bl.load(source).notes == ()
    expected, found = files_of(source), files_of(exported(source, tmp_path / "ours"))
    expected["tokenizer_config.json"].pop("name_or_path", None)
    ids = {"bos_token_id": 1, "eos_token_id": {"before": [2, 0], "today": 0}.get(way, 2)}
    assert found["config.json"].items() >= ids.items()
    assert found["config.json"].get("temperature") == (0.6 if way == "long ago" else None)
    del expected["config.json"], found["config.json"]
    assert found == expected
    assert files_of(exported(tmp_path / "ours", tmp_path / "again")) | {"config.json": 0} == (
        found | {"config.json": 0}
    )


def test_a_model_alone_still_says_where_texts_end(tmp_path: Path) -> None:
    source = today(tmp_path / "theirs")
    bl.export_huggingface(bl.load(source).model, tmp_path / "ours")
    found = files_of(tmp_path / "ours")
    assert found["generation_config.json"] == files_of(source)["generation_config.json"]
    assert found["config.json"]["bos_token_id"] == 1
    assert not [name for name in found if "token" in name or "chat" in name]


def test_another_tokenizer_says_its_own(tmp_path: Path) -> None:
    loaded = bl.load(today(tmp_path / "theirs"))
    other = train_bpe(["another text"] * 50, 280)
    bl.export_huggingface(loaded.model, tmp_path / "ours", tokenizer=other)
    found = files_of(tmp_path / "ours")
    assert found["config.json"]["eos_token_id"] == found["config.json"]["bos_token_id"] == 0
    assert found["tokenizer_config.json"]["bos_token"] == "<|endoftext|>"
    assert "chat_template.jinja" not in found


def test_a_checkpoint_stays_of_its_family_where_that_can_say_it(tmp_path: Path) -> None:
    source = WAYS["before"](tmp_path / "theirs", "llama")
    path = source / "config.json"
    described = json.loads(path.read_text())
    described |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    described = {name: value for name, value in described.items() if not name.endswith("_bias")}
    path.write_text(json.dumps(described | {"sliding_window": None}))
    assert files_of(exported(source, tmp_path / "ours"))["config.json"]["model_type"] == "mistral"


def test_in_another_family_nothing_is_left_to_the_familys_defaults(tmp_path: Path) -> None:
    """A class may mean another tokenizer there, and a missing id another id."""
    files = {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "model_max_length": 7}}
    source = write(tmp_path / "theirs", files, "gpt2", {"eos_token_id": 2})
    tokenizer = bl.load(source).tokenizer
    sizes = SIZES | {"vocab_size": tokenizer.vocab_size}
    llama = bl.Transformer(bl.presets.modern(**sizes).with_changes(D_FF), seed=0)
    bl.export_huggingface(llama, tmp_path / "ours", tokenizer=tokenizer)
    found = files_of(tmp_path / "ours")
    ids = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": None}
    assert found["config.json"].items() >= ids.items()
    assert found["tokenizer_config.json"] == {
        "model_max_length": 7,
        "eos_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def test_a_folder_that_says_nothing_is_told_what_is_known(tmp_path: Path) -> None:
    source = write(tmp_path / "theirs", {}, config={"bos_token_id": 1, "eos_token_id": [2, 0]})
    found = files_of(exported(source, tmp_path / "ours"))
    assert found["config.json"]["eos_token_id"] == [2, 0]
    assert found["tokenizer_config.json"]["bos_token"] == "<s>"
    assert found["tokenizer_config.json"]["eos_token"] == "<|endoftext|>"
    one, other = bl.load(source), bl.load(tmp_path / "ours")
    assert one.stop_ids == other.stop_ids == (2, 0)
    assert one.tokenizer.end_of_text == other.tokenizer.end_of_text == 0


# What does not come along


def test_code_and_paths_stay_behind_and_the_code_is_mentioned(tmp_path: Path) -> None:
    said = {
        "auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]},
        "tokenizer_class": "EvilTokenizer",
        "tokenizer_file": "/etc/passwd",
        "vocab_file": "../vocab",
        "eos_token": "<|eot|>",
    }
    source = write(tmp_path / "theirs", {"tokenizer_config.json": said})
    (source / "evil.py").write_text("raise SystemExit('ran')")
    assert any("tokenizer_config.json: auto_map" in note for note in bl.load(source).notes)
    folder = exported(source, tmp_path / "ours")
    assert json.loads((folder / "tokenizer_config.json").read_text()) == {
        "eos_token": "<|eot|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    assert not (folder / "evil.py").exists()


def test_a_template_is_never_rendered(tmp_path: Path) -> None:
    hostile = "{{ ''.__class__.__mro__ }}{% for i in range(10**9) %}{% endfor %}"
    source = write(tmp_path / "theirs", {"chat_template.jinja": hostile})
    folder = exported(source, tmp_path / "ours")
    assert (folder / "chat_template.jinja").read_text() == hostile


def test_ids_that_are_no_rows_are_left_out_and_said(tmp_path: Path) -> None:
    rows = bl.load(today(tmp_path / "sizes")).model.config.rows
    files = {
        "generation_config.json": {"eos_token_id": [2, rows, 10**9], "pad_token_id": rows},
        "tokenizer_config.json": {"eos_token": "<|eot|>"},
    }
    ids = {"bos_token_id": rows + 5, "eos_token_id": [rows], "pad_token_id": -1}
    source = write(tmp_path / "theirs", files, config=ids)
    loaded = bl.load(source)
    assert loaded.stop_ids == (2,)
    for said in (f"bos_token_id {rows + 5}", f"eos_token_id {rows}", "pad_token_id -1"):
        assert any(note.startswith(f"{said} is none") for note in loaded.notes), said
    found = files_of(exported(source, tmp_path / "ours"))
    assert found["generation_config.json"] == {"eos_token_id": [2], "pad_token_id": None}
    assert {found["config.json"][name] for name in ids} == {None}
    assert bl.load(tmp_path / "ours").notes == ()


def test_a_beginning_that_is_no_row_is_left_out_and_said(tmp_path: Path) -> None:
    source = WAYS["before"](tmp_path / "theirs")
    assert bl.load(source).start_ids == (1,)
    definition = json.loads((source / "tokenizer.json").read_text())
    definition["post_processor"]["special_tokens"]["<s>"]["ids"] = [4000]
    (source / "tokenizer.json").write_text(json.dumps(definition))
    loaded = bl.load(source)
    assert loaded.start_ids == ()
    assert any("4000 is none of the model's" in note for note in loaded.notes)


def test_a_tokenizer_with_marks_that_are_no_rows_is_not_exported(tmp_path: Path) -> None:
    tokenizer = bl.load(today(tmp_path / "theirs")).tokenizer
    small = bl.Transformer(bl.presets.modern(**SIZES, vocab_size=2).with_changes(D_FF), seed=0)
    with pytest.raises(bl.BlocklabError, match="eos_token_id 2 is none of the model's 2 rows"):
        bl.export_huggingface(small, tmp_path / "ours", tokenizer=tokenizer)
    foreign = Tokenizer(tokenizer.definition, "foreign", end_of_text=200)
    with pytest.raises(bl.BlocklabError, match="bos_token_id 200"):
        bl.export_huggingface(small, tmp_path / "ours", tokenizer=foreign)
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("generation_config.json", {"eos_token_id": "2"}, "eos_token_id '2'"),
        ("generation_config.json", {"eos_token_id": [True]}, "eos_token_id [True]"),
        ("generation_config.json", {"temperature": float("nan")}, "nan"),
        ("generation_config.json", "[", "not valid JSON"),
        ("tokenizer_config.json", {"pad_token": 3}, "pad_token 3"),
        ("tokenizer_config.json", {"eos_token": {"lstrip": True}}, "eos_token {"),
        ("special_tokens_map.json", {"bos_token": ["<s>"]}, "bos_token ['<s>']"),
        ("special_tokens_map.json", "3", "expected a JSON object"),
        ("chat_template.jinja", b"\xff\xfe", "cannot be read"),
        ("chat_template.jinja", b"x" * (LARGEST_TEMPLATE + 1), "no template"),
        ("additional_chat_templates/a.jinja", b"\xff", "cannot be read"),
    ],
)
def test_a_file_that_is_none_is_refused_by_its_name(tmp_path, file, content, named) -> None:
    source = with_templates(tmp_path)
    raw = content if isinstance(content, bytes) else None
    text = content if isinstance(content, str) else json.dumps(content) if raw is None else ""
    (source / file).write_bytes(text.encode() if raw is None else raw)
    with pytest.raises(bl.BlocklabError) as caught:
        bl.load(source)
    assert named in str(caught.value)
    assert file.partition("_")[0] in str(caught.value)


def test_what_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    deep = '{"a": ' * 800 + "1" + "}" * 800
    source = write(tmp_path / "theirs", {"tokenizer_config.json": deep})
    with pytest.raises(bl.BlocklabError) as caught:
        bl.load(source)
    assert len(str(caught.value)) < 500


def test_files_without_a_tokenizer_are_not_asked(tmp_path: Path) -> None:
    source = today(tmp_path)
    (source / "tokenizer.json").unlink()
    (source / "tokenizer_config.json").write_text("{")
    loaded = bl.load(source)
    assert loaded.tokenizer is None
    assert loaded.stop_ids == (0, 2)
