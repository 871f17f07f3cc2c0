"""What no command can work with is refused at its start, in one line that says which it was."""

import errno
import sys
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest

import blocklab as bl
from blocklab.cli import options
from blocklab.cli.app import app

LONG = "Once upon a time " * 24


def refused(run, *arguments, code=2):
    """The one line on stderr of a command that ends with `code`."""
    ended, out, said = run(*arguments)
    assert (ended, out) == (code, ""), said
    (line,) = said.splitlines()
    return line


@pytest.mark.parametrize(
    "arguments",
    [
        ("count", ""),
        ("train", "", "--out", "x"),
        ("train", "modern", "--out", ""),
        ("train", "modern", "--out", "x", "--corpus", ""),
        ("train", "modern", "--out", "x", "--tokenizer", " "),
        ("train", "modern", "--out", "x", "--device", ""),
        ("evaluate", "modern", "--corpus", ""),
        ("evaluate", "modern", "--corpus", "python-docs", "--part", ""),
        ("evaluate", "modern", "--corpus", "python-docs", "--encoding", ""),
        ("generate", "", "once"),
        ("generate", "modern", "once", "--tokenizer", ""),
        ("inspect", ""),
        ("inspect", "modern", "--corpus", ""),
        ("inspect", "modern", "--out", ""),
        ("export", "", "x"),
        ("export", "modern", ""),
        ("ablate", ""),
        ("ablate", "--out", ""),
        ("ablate", "--reuse", ""),
        ("ablate", "--ray", ""),
        ("ablate", "--plugin", ""),
        ("plan", "--corpus", ""),
        ("plan", "--budget", ""),
        ("report", ""),
        ("tensorboard", ""),
        ("reproduce", "layer-norm", "--out", ""),
    ],
)
def test_an_empty_name_is_not_the_folder_one_is_in(run, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    line = refused(run, *arguments)
    assert "it is empty; is a shell variable not set?" in line
    assert f"See blocklab {arguments[0]} --help." in line
    assert not list(tmp_path.iterdir())


def test_an_empty_name_from_elsewhere_is_no_folder_either(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("one two three")
    assert "the name is empty" in refused(
        run, "train", "modern", "--out", "x", "--set", "data.corpus=''"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", LONG, "modern"),
        ("count", LONG),
        ("train", LONG, "--out", "x"),
        ("train", "modern", "--out", LONG),
        ("train", "modern", "--out", "x", "--tokenizer", LONG),
        ("train", "modern", "--out", "x", "--corpus", LONG),
        ("evaluate", "modern", "--corpus", LONG),
        ("inspect", "modern", "--out", f"x/{LONG}/y"),
        ("ablate", LONG),
        ("ablate", "--out", LONG),
        ("ablate", "--reuse", LONG, "--out", "x"),
        ("report", LONG),
        ("export", "modern", LONG),
        ("tensorboard", LONG),
    ],
)
def test_a_name_that_no_disk_takes_is_one_line(run, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    line = refused(run, *arguments)
    assert "Once upon a time" in line
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENAMETOOLONG, 2),
        (errno.ENOENT, 2),
        (errno.ENOTDIR, 2),
        (errno.EISDIR, 2),
        (errno.ELOOP, 2),
        (errno.EINVAL, 2),
        (errno.ENOSPC, 1),
        (errno.EACCES, 1),
        (errno.EIO, 1),
        (errno.EMFILE, 1),
        (errno.ESTALE, 1),
    ],
)
def test_whatever_the_system_refuses_is_one_line(run, monkeypatch, number, code):
    def fail(*given):
        raise OSError(number, "so it says", "a name\nof two lines")

    monkeypatch.setattr("blocklab.cli.model_argument.model_config", fail)
    line = refused(run, "count", "gpt2", code=code)
    assert "a name" in line and "so it says" in line


def test_a_character_that_no_name_may_hold_is_one_line(run, tmp_path):
    corpus = 'data.corpus="a\\0b"'
    arguments = ("train", "modern", "--out", tmp_path / "x", "--set", corpus)
    code, _, said = run(*arguments, "--tokenizer", "bytes")
    assert code == 2
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "gone"),
        ("inspect", "gone"),
        ("ablate", "gone"),
        ("plan", "gone"),
        ("reproduce", "gone"),
        ("tensorboard", "gone"),
    ],
)
def test_a_file_where_results_go_is_found_before_anything_else(run, tmp_path, arguments):
    file = tmp_path / "keep.txt"
    file.write_text("mine")
    for out in (file, file / "deeper"):
        line = refused(run, *arguments, "--out", out)
        assert f"{out}: {file} is a file; give another folder" in line
    assert file.read_text() == "mine"


def test_a_file_where_a_model_goes_is_found_before_the_model_is_read(run, tmp_path):
    (tmp_path / "keep.txt").write_text("mine")
    assert "is a file; give another" in refused(run, "export", "gone", tmp_path / "keep.txt")


def test_a_device_that_is_not_there_is_found_before_the_text_is_read(run, tmp_path):
    out = tmp_path / "x"
    line = refused(
        run, "train", "modern", "--corpus", "gone.txt", "--out", out, "--device", "xpu:7"
    )
    assert "device 'xpu:7': not there" in line
    assert not out.exists()


def test_a_closed_standard_input_holds_no_prompt(run, tmp_path, monkeypatch):
    config = bl.presets.modern(d_model=32, n_layers=1, n_heads=2, context_length=16)
    config.to_yaml(tmp_path / "model.yaml")
    monkeypatch.setattr(sys, "stdin", None)
    code, out, said = run("generate", tmp_path / "model.yaml", "-")
    assert (code, out) == (2, "")
    assert "standard input is closed" in said and "Traceback" not in said


def test_what_is_no_yaml_is_said_in_one_line_with_its_place(run, tmp_path):
    line = refused(run, "count", "gpt2", "--set", "block.norm={kind: rms")
    assert "cannot be read as YAML: line 1, column 11: expected ',' or '}'" in line
    file = tmp_path / "keep.txt"
    file.write_text("First Citizen:\nBefore we proceed: any: further\n")
    with pytest.raises(bl.BlocklabError) as error:
        bl.ModelConfig.from_yaml(file)
    assert f"{file}: cannot be read as YAML: line 2, column 23:" in str(error.value)
    assert "\n" not in str(error.value)


def test_every_option_that_is_a_name_refuses_an_empty_one():
    """So that an option added later is no exception."""
    sentences = {"prompt", "stop", "changes", "variant", "arguments"}
    # Tried against the few that are valid, none of them empty.
    chosen = {"name", "module", "part", "past_context"}
    readers = {options.word, options.path_to_read, options.folder_to_write}
    for command in app.registered_commands:
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            types, info = get_args(hint) if get_origin(hint) is Annotated else (None, None)
            if name not in sentences | chosen and ("str" in str(types) or "Path" in str(types)):
                assert info.parser in readers, f"{command.callback.__name__}: {name}"
