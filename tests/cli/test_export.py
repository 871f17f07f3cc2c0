"""`blocklab export` hands on what authors said about texts, or says that it does not."""

import json

import blocklab as bl
from blocklab.data.tokenizer import train_bpe
from tests.exchange.authors import TEMPLATE, today, write


def test_what_the_authors_said_leaves_with_the_model(run, tmp_path):
    source = today(tmp_path / "theirs")
    code, _, said = run("export", source, tmp_path / "out")
    assert code == 0
    assert said == f"the model is in {tmp_path / 'out'}\n"
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == TEMPLATE.replace("\r\n", "\n")
    for name in ("generation_config.json", "tokenizer_config.json"):
        theirs, ours = (json.loads((f / name).read_text()) for f in (source, tmp_path / "out"))
        assert ours == theirs, name
    assert bl.load(tmp_path / "out").stop_ids == (0, 2)


def test_by_another_tokenizer_it_is_left_behind_and_said(run, tmp_path):
    train_bpe(["another text"] * 50, 280).save(tmp_path / "tokenizer.json")
    arguments = ["export", today(tmp_path / "theirs"), tmp_path / "out"]
    code, _, said = run(*arguments, "--tokenizer", tmp_path / "tokenizer.json")
    assert code == 0
    assert "without what its authors said about texts: special tokens, chat templates" in said
    assert not (tmp_path / "out" / "chat_template.jinja").exists()


def test_what_cannot_be_kept_is_said(run, tmp_path):
    files = {
        "generation_config.json": {"eos_token_id": [2, 5000]},
        "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}},
    }
    code, _, said = run("export", write(tmp_path / "theirs", files), tmp_path / "out")
    assert code == 0
    assert "eos_token_id 5000 is none of the model's 283 rows; it is left out\n" in said
    assert "tokenizer_config.json: auto_map names code" in said
