"""What a user called something is printed as it is called, whatever it means to rich."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

import blocklab as bl
import blocklab.cli
from blocklab.cli import quiet_line
from blocklab.cli.quiet_line import QuietLine
from blocklab.cli.screen import console
from blocklab.cli.tables import terminal_table
from blocklab.report.page import Table

NAMES = ["ft[/x]", "ft[bold]", "a:fire:b", "[red]out[/red]", "ends\\", "[link=x]y"]


def shown(capsys, print_it):
    print_it(console(piped_width=150))
    return capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_sentence_a_title_a_heading_or_a_cell_is_whole(capsys, name):
    table = Table(("arm", name), ((name, "1"), ("b", name)))
    said = shown(capsys, lambda screen: screen.print(terminal_table(table, f"{name}: 3 arms")))
    assert said.count(name) == 4
    # Whoever prints it.
    plain = Console(file=io.StringIO(), width=150)
    plain.print(terminal_table(table, f"{name}: 3 arms"))
    assert plain.file.getvalue().count(name) == 4
    assert shown(capsys, lambda screen: screen.print(f"in {name}")) == f"in {name}\n"


@pytest.mark.parametrize("name", NAMES)
def test_a_status_line_is_whole_on_a_terminal_and_elsewhere(capsys, monkeypatch, name):
    with QuietLine() as line:
        line.say(f"reading {name}")
    assert f"reading {name}" in capsys.readouterr().err
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=80)
    monkeypatch.setattr(quiet_line, "console", lambda stderr: terminal)
    with QuietLine() as line:
        line.say(f"reading {name}")
        terminal.print(line.status.renderable)
    assert f"reading {name}" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())


@pytest.mark.parametrize("name", ["ft[/x].yaml", "ft[bold].yaml", "a:fire:b.yaml"])
@pytest.mark.parametrize("command", ["count", "inspect"])
def test_a_models_place_is_printed_as_it_is(run, tmp_path, monkeypatch, text, name, command):
    monkeypatch.chdir(tmp_path)
    config = bl.presets.modern(d_model=32, n_layers=1, n_heads=2, context_length=16)
    config.with_changes({"block.feed_forward.d_ff": 32, "vocab_size": 256}).to_yaml(name)
    more = ["--corpus", text, "--tokenizer", "bytes", "--steps", 0, "--length", 8]
    code, said, errors = run(command, name, *(more if command == "inspect" else ()))
    assert code == 0, errors
    assert f"{name}: " in said


def test_no_command_prints_by_a_console_of_its_own():
    folder = Path(blocklab.cli.__file__).parent
    for file in folder.glob("*.py"):
        made = re.findall(r"\bConsole\(|rich\.print|from rich import", file.read_text("utf-8"))
        assert not made or file.name == "screen.py", file
