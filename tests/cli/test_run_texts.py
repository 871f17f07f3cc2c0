"""A run knows its own text again: from elsewhere, by another name, in its encoding, or changed."""

import json
import shutil

import pytest

from tests.cli.conftest import TEXT

SIZES = ["--set", "d_model=32", "--set", "n_layers=1", "--set", "context_length=16"]
SIZES += ["--set", "block.feed_forward.d_ff=32", "--set", "block.attention.n_heads=2"]
SIZES += ["--set", "vocab_size=null", "--set", "training.batch_size=4"]
CHANGED = "the text has changed since this run was trained"


@pytest.fixture
def trained(run, tmp_path, monkeypatch):
    """Trains in tmp_path, where its text is 'my texts/x.txt', and gives the run's folder."""
    (tmp_path / "my texts").mkdir()
    (tmp_path / "my texts" / "x.txt").write_text(TEXT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def make(*more, tokenizer="bytes", corpus="my texts/x.txt"):
        asked = ["train", "modern", *SIZES, "--corpus", corpus, "--tokenizer", tokenizer]
        code, _, said = run(*asked, "--steps", 3, "--out", "run1", *more)
        assert code == 0, said
        return tmp_path / "run1"

    return make


def judged(run, *arguments):
    code, said, errors = run("evaluate", *arguments, "--json")
    assert code == 0, errors
    return json.loads(said), errors


@pytest.mark.parametrize(
    "corpus", ["./my texts/x.txt", "my texts/../my texts/x.txt", "ABSOLUTE", "LINK", "COPY"]
)
def test_a_run_s_text_is_known_by_whatever_name_leads_to_it(run, trained, tmp_path, corpus):
    folder, text = trained(), tmp_path / "my texts" / "x.txt"
    (tmp_path / "link.txt").symlink_to(text)
    shutil.copy(text, tmp_path / "copy.txt")
    names = {"ABSOLUTE": text, "LINK": "link.txt", "COPY": "copy.txt"}
    own, _ = judged(run, folder)
    found, _ = judged(run, folder, "--corpus", names.get(corpus, corpus))
    assert own["part"] == found["part"] == "validation"
    assert found["loss"] == own["loss"]
    _, said = judged(run, folder, "--corpus", names.get(corpus, corpus), "--part", "all")
    assert "trained on most of this text" in said


def test_a_run_is_judged_looked_at_and_gone_on_with_from_elsewhere(
    run, trained, tmp_path, monkeypatch
):
    folder = trained()
    own, _ = judged(run, folder)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    found, _ = judged(run, "../run1")
    assert (found["loss"], found["part"]) == (own["loss"], "validation")
    assert run("inspect", "../run1", "--steps", 0)[0] == 0
    assert run("train", "../run1", "--steps", 1, "--out", "on")[0] == 0
    # A file of the same name where one happens to be is another text.
    (tmp_path / "sub" / "my texts").mkdir()
    (tmp_path / "sub" / "my texts" / "x.txt").write_text(TEXT[1000:5000])
    assert judged(run, "../run1")[0]["loss"] == own["loss"]
    assert judged(run, "../run1", "--corpus", "my texts/x.txt")[0]["part"] == "all"


def test_where_the_text_lies_is_no_part_of_a_run_s_id(run, trained):
    record = json.loads((trained() / "run.json").read_text())
    assert record["spec"]["data"]["corpus"] == "my texts/x.txt"
    assert record["text_lies_at"].endswith("/my texts/x.txt")
    assert "text_lies_at" not in record["spec"]


@pytest.mark.parametrize("command", ["evaluate", "inspect", "train"])
def test_a_text_that_is_gone_is_said_to_be_the_run_s(run, trained, tmp_path, command):
    folder = trained()
    (tmp_path / "my texts" / "x.txt").rename(tmp_path / "moved.txt")
    more = ["--out", "on"] if command == "train" else []
    code, _, said = run(command, folder, *more)
    assert code == 2
    assert f"{folder}: was trained on 'my texts/x.txt' ({tmp_path}/my texts/x.txt)" in said
    assert "--corpus" in said
    assert judged(run, folder, "--corpus", "moved.txt")[0]["part"] == "validation"


@pytest.mark.parametrize("change", ["before", "after", "within"])
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:270"])
def test_a_text_that_has_changed_has_no_validation_part(run, trained, tmp_path, change, tokenizer):
    folder, file = trained(tokenizer=tokenizer), tmp_path / "my texts" / "x.txt"
    parts = {"before": "new " * 999 + TEXT, "after": TEXT + " new" * 999, "within": TEXT[:-1] + "!"}
    file.write_text(parts[change], encoding="utf-8")
    for corpus in ((), ("--corpus", "my texts/x.txt")):
        for part in ((), ("--part", "validation")):
            _, out, said = run("evaluate", folder, *corpus, *part)
            assert CHANGED in said and "may have been trained on" in said
            assert "validation part" not in out + said
            assert judged(run, folder, *corpus, *part)[0]["part"] == "unverified"
        assert CHANGED in run("evaluate", folder, *corpus, "--part", "all")[2]
    assert CHANGED in run("inspect", folder, "--steps", 0)[2]
    code, _, said = run("train", folder, "--steps", 1, "--out", "on")
    assert code == 0
    assert CHANGED in said


def test_a_text_that_is_the_same_is_not_said_to_have_changed(run, trained, tmp_path, monkeypatch):
    folder = trained(tokenizer="bpe:270")
    (tmp_path / "my texts" / "x.txt").touch()
    # What the cache knew is gone, and so must the text be read.
    monkeypatch.setenv("BLOCKLAB_CACHE", str(tmp_path / "another"))
    for arguments in (
        ["evaluate", folder],
        ["inspect", folder, "--steps", 0],
        ["train", folder, "--steps", 1, "--out", "on"],
    ):
        code, _, said = run(*arguments)
        assert code == 0, said
        assert CHANGED not in said


def test_a_tokenizer_s_own_end_of_text_is_kept_with_the_run(run, trained, tmp_path, monkeypatch):
    from blocklab.data.tokenizer import train_bpe

    own = tmp_path / "own"
    own.mkdir()
    tokenizer = train_bpe([TEXT], 270)
    tokenizer.save(own / "tokenizer.json")
    (own / "tokenizer_config.json").write_text('{"eos_token": "e"}')
    folder = trained(tokenizer=own)
    shutil.rmtree(own)
    monkeypatch.setenv("BLOCKLAB_CACHE", str(tmp_path / "another"))
    found, said = judged(run, folder)
    assert found["part"] == "validation" and CHANGED not in said


def test_a_run_s_encoding_and_split_go_on_with_it(run, trained, tmp_path):
    latin = tmp_path / "latin.txt"
    latin.write_bytes(("é" + TEXT).encode("latin-1"))
    options = ("--encoding", "latin-1", "--set", "data.validation_share=0.3")
    folder = trained(*options, tokenizer="bpe:270", corpus="latin.txt")
    code, _, said = run("inspect", folder, "--steps", 0)
    assert code == 0, said
    for number, more in enumerate(((), ("--corpus", "latin.txt"), ("--seed", 2))):
        code, _, said = run("train", folder, "--steps", 1, "--out", f"on{number}", *more)
        assert code == 0, said
        assert "were trained on" not in said and CHANGED not in said
        data = json.loads((tmp_path / f"on{number}" / "run.json").read_text())["spec"]["data"]
        assert (data["encoding"], data["validation_share"]) == ("latin-1", 0.3)
        assert data["corpus"] == "latin.txt"
    # Another text has an encoding and a split of its own, and the command line has the last word.
    code, _, _ = run("train", folder, "--steps", 1, "--out", "other", "--corpus", "my texts/x.txt")
    data = json.loads((tmp_path / "other" / "run.json").read_text())["spec"]["data"]
    assert (data["encoding"], data["validation_share"]) == ("utf-8", 0.1)
    share = ("--set", "data.validation_share=0.5")
    code, _, said = run("train", folder, "--steps", 1, "--out", "half", *share)
    assert code == 0
    assert "with 0.3 of this text held out; parts of the 0.5 that are now were trained on" in said


def test_a_preset_is_inspected_on_a_text_in_its_encoding(run, tmp_path):
    latin = tmp_path / "latin.txt"
    latin.write_bytes(("é" + TEXT).encode("latin-1"))
    small = [*SIZES[:-2], "--tokenizer", "bpe:270", "--steps", 0, "--corpus", latin]
    code, _, said = run("inspect", "modern", *small)
    assert code == 2 and "--encoding" in said
    assert run("inspect", "modern", *small, "--encoding", "latin-1")[0] == 0


def test_of_a_text_without_its_tokenizer_nothing_is_claimed(run, trained, tmp_path, monkeypatch):
    folder = trained(tokenizer="bpe:270")
    (folder / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    monkeypatch.setenv("BLOCKLAB_CACHE", str(tmp_path / "another"))
    found, said = judged(run, folder, "--tokenizer", tmp_path / "tokenizer.json")
    assert found["part"] == "unverified"
    assert "its tokenizer is not here" in said
