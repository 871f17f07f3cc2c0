"""What every command's tests need: a text, a cache of their own, and a way to call the command."""

import sys

import pytest

from blocklab.cli import main

TEXT = " ".join(f"{i} and {i * i} are two numbers." for i in range(2000))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BLOCKLAB_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def run(capsys, monkeypatch):
    """Call the command line: exit code, stdout, stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["blocklab", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return call
