"""A run's folder is one run's: nobody else trains there, and nothing else is written there."""

import json

import pytest

from blocklab.errors import BlocklabError
from blocklab.files import LOCK, alone_in
from blocklab.training.checkpoint import save_checkpoint
from blocklab.training.run_folder import stopped_run
from tests.cli.conftest import TEXT
from tests.cli.test_run_texts import SIZES


@pytest.fixture
def asked(text):
    return ["train", "modern", *SIZES, "--corpus", text, "--tokenizer", "bytes", "--steps", 3]


@pytest.fixture
def stop_after(monkeypatch):
    """Lets the next training be asked to stop after so many steps, as by Ctrl-C."""

    def stop(steps):
        asked = iter([False] * (steps - 1) + [True] + [False] * 99)
        monkeypatch.setattr(
            "blocklab.cli.run_progress.RunProgress.should_stop", lambda self: next(asked)
        )

    return stop


@pytest.mark.parametrize("more", [(), ("--resume",)])
def test_a_folder_in_which_another_process_trains_is_refused(run, asked, tmp_path, more):
    out = tmp_path / "both"
    with alone_in(out, "taken"):
        code, _, said = run(*asked, "--seed", 2, "--out", out, *more)
        assert code == 2
        assert f"another process is training in {out}" in said
        assert "tokens to train on" not in said  # found before the text is read
        assert [path.name for path in out.iterdir()] == [LOCK]
    assert run(*asked, "--out", out)[0] == 0
    assert LOCK not in {path.name for path in out.iterdir()}


def test_a_process_that_trains_there_already_loses_nothing_of_what_it_is_writing(
    run, asked, tmp_path, stop_after
):
    out = tmp_path / "both"
    stop_after(1)
    assert run(*asked, "--out", out)[0] == 130
    half = out / ".partial-0-checkpoint.safetensors"
    half.write_text("half of it")
    with alone_in(out, "taken"):
        with pytest.raises(BlocklabError, match="another process is training"):
            stopped_run(out)
        assert run(*asked, "--out", out, "--resume")[0] == 2
    assert half.exists()


def test_a_refused_resume_changes_nothing_of_a_stopped_run(run, asked, tmp_path, stop_after):
    out = tmp_path / "stopped"
    stop_after(2)
    assert run(*asked, "--out", out)[0] == 130
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert "tokenizer.json" in before
    other = [a if a != "bytes" else "bpe:270" for a in asked]
    for wrong in ([*asked, "--seed", 7], other, [*asked, "--set", "training.clip=2"]):
        code, _, said = run(*wrong, "--out", out, "--resume")
        assert code == 2
        assert "holds a stopped run of another recipe" in said
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert run(*asked, "--out", out, "--resume")[0] == 0


def test_a_stopped_run_goes_on_from_elsewhere_by_another_name_of_its_text(
    run, tmp_path, monkeypatch, stop_after
):
    (tmp_path / "x.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    asked = ["train", "modern", *SIZES, "--tokenizer", "bytes", "--steps", 3]
    assert run(*asked, "--corpus", "x.txt", "--out", "whole")[0] == 0
    stop_after(2)
    assert run(*asked, "--corpus", "x.txt", "--out", "run")[0] == 130
    monkeypatch.chdir(tmp_path / "sub")
    code, _, said = run(*asked, "--corpus", "../x.txt", "--out", "../run", "--resume")
    assert code == 0, said
    whole, gone_on = (
        json.loads((tmp_path / name / "run.json").read_text()) for name in ("whole", "run")
    )
    assert gone_on["id"] == whole["id"]
    assert gone_on["text_lies_at"] == whole["text_lies_at"] == str(tmp_path / "x.txt")


def test_another_device_than_the_stopped_run_s_is_refused_before_the_text_is_read(
    run, asked, tmp_path
):
    out = tmp_path / "stopped"
    save_checkpoint(out, 1, {}, {"id": "one", "numerics": {"device": "cuda"}})
    code, _, said = run(*asked, "--out", out, "--resume", "--device", "cpu")
    assert code == 2
    assert "--device cpu: the stopped run trains on cuda and goes on there" in said
    assert "tokens to train on" not in said
