"""The commands and how they end: one line on stderr, an exit code that says why."""

import contextlib
import errno
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

import typer

from blocklab.cli import (
    ablate,
    compare,
    count,
    evaluate,
    export,
    generate,
    inspect,
    plan,
    report,
    reproduce,
    tensorboard,
    train,
)
from blocklab.errors import BlocklabError
from blocklab.files import BAD_NAMES
from blocklab.interrupts import hand_over
from blocklab.torchrun import leave, started_by_torchrun

app = typer.Typer(
    name="blocklab",
    help="A laboratory for the transformer block: change one part, learn what it was worth.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_COMMANDS = (
    ablate.ablate,
    plan.plan,
    report.report,
    train.train,
    evaluate.evaluate,
    generate.generate,
    export.export,
    count.count,
    inspect.inspect,
    reproduce.reproduce,
    compare.compare,
    tensorboard.tensorboard,
)
for _command in _COMMANDS:
    app.command()(_command)

# Typer carries click inside it; the base of what it exports is what every wrong usage raises.
_UsageError: Any = typer.BadParameter.__bases__[0]

STOPPED = 130
SPEAKING_SECONDS = 2.0
SHOWN_OF_A_NAME = 60


def main() -> None:
    """Run the command line.

    Exits 0 when finished, 1 when a run or the disk failed, 2 for bad input, 130 when stopped.
    """
    for stream in (sys.stdout, sys.stderr):
        # A console that knows no minus sign still gets the rest of the sentence.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    interrupted = threading.Event()
    try:
        with _told_of_interrupts(interrupted):
            code = 0
            if not _is_done_by_another(sys.argv[1:]):
                code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except Exception as error:
        # Ctrl-C in the middle of an import leaves the importer with errors of its own.
        ours = isinstance(error, BlocklabError) or not interrupted.is_set()
        code = _code_of(error) if ours else _say("stopped", STOPPED)
    except KeyboardInterrupt:
        code = _say("stopped", STOPPED)
    _end(code if isinstance(code, int) else 0)


def _is_done_by_another(arguments: list[str]) -> bool:
    """Whether this is one of several processes of which another does it for all.

    Raises BlocklabError where they would train many runs, each all of them.
    """
    asked = arguments[:1]
    if not started_by_torchrun() or asked == ["train"]:
        return False
    if asked in (["ablate"], ["reproduce"]):
        raise BlocklabError(
            "torchrun is for training one model that is too large for a device: torchrun … -m "
            f"blocklab train MODEL; start blocklab {asked[0]} without it"
        )
    return os.environ.get("RANK", os.environ["LOCAL_RANK"]) != "0"


def _end(code: int) -> NoReturn:
    if started_by_torchrun():
        leave(code)
    sys.exit(code)


@contextlib.contextmanager
def _told_of_interrupts(interrupted: threading.Event) -> Iterator[None]:
    """Ctrl-C also sets `interrupted`. After one the process is about to end: no other is heard.

    SIGTERM, by which a cluster's queue or a machine that shuts down asks to end, is heard as one.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    asked_to_end = signal.signal(signal.SIGTERM, lambda *asked: signal.raise_signal(signal.SIGINT))
    hand_over(interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, asked_to_end)
        hand_over(signal.SIG_IGN if interrupted.is_set() else signal.default_int_handler)


def _code_of(error: Exception) -> int:
    """Say an error in a line, and how the process exits after it. Raises what is our own fault."""
    if isinstance(error, BlocklabError):
        return _say(str(error), error.exit_code)
    if isinstance(error, _UsageError):
        asked = error.ctx.info_name if error.ctx and error.ctx.parent else None
        command = f"blocklab {asked}" if asked else "blocklab"
        return _say(f"{error.format_message()} See {command} --help.", 2)
    if isinstance(error, typer.Abort):
        return _say("stopped", STOPPED)
    if isinstance(error, BrokenPipeError):
        return 1
    if isinstance(error, OSError):
        return _say(_refusal(error), 2 if error.errno in BAD_NAMES else 1)
    if isinstance(error, ValueError) and str(error).startswith("embedded null"):
        return _say("a name or a path holds a character of code 0; no file can be called so", 2)
    from blocklab.training.memory import is_too_little

    if is_too_little(error):
        return _say(f"not enough memory: {str(error).splitlines()[0]}", 1)
    raise error


def _refusal(error: OSError) -> str:
    """What the system would not do, and with what."""
    if error.filename is None:
        return error.strerror or str(error) or type(error).__name__
    name = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename)
    if error.errno == errno.ENAMETOOLONG:
        # No name at all, as a rule: a prompt where a path is expected.
        return f"'{name[:SHOWN_OF_A_NAME]}…': {error.strerror}; are two arguments swapped?"
    return f"{name}: {error.strerror}"


def _say(message: str, code: int) -> int:
    # Names may hold line ends, and so may what other libraries say.
    line = " ".join(part.strip() for part in message.splitlines() if part.strip())
    # Of the processes that torchrun starts on a machine one speaks for all.
    if not started_by_torchrun() or os.environ.get("LOCAL_RANK") == "0":
        print(f"blocklab: {line}", file=sys.stderr)
    else:
        # Whoever ends first has torchrun end the others: it shall not be before that one spoke.
        time.sleep(SPEAKING_SECONDS)
    return code
