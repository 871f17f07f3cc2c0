"""The commands and how they end: one line on stderr, an exit code that says why."""

import errno
import io
import sys
from typing import Any

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
    train,
)
from blocklab.errors import BlocklabError

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
)
for _command in _COMMANDS:
    app.command()(_command)

# Typer carries click inside it; the base of what it exports is what every wrong usage raises.
_UsageError: Any = typer.BadParameter.__bases__[0]

DISK = {errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO}


def main() -> None:
    """Run the command line.

    Exits 0 when finished, 1 when a run or the disk failed, 2 for bad input, 130 when stopped.
    """
    for stream in (sys.stdout, sys.stderr):
        # A console that knows no minus sign still gets the rest of the sentence.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except BlocklabError as error:
        sys.exit(_say(str(error), error.exit_code))
    except _UsageError as error:
        asked = error.ctx.info_name if error.ctx and error.ctx.parent else None
        command = f"blocklab {asked}" if asked else "blocklab"
        sys.exit(_say(f"{error.format_message()} See {command} --help.", 2))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(_say("stopped", 130))
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        if error.errno not in DISK:
            raise
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(_say(f"{where}{error.strerror}", 1))
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str, code: int) -> int:
    print(f"blocklab: {message}", file=sys.stderr)
    return code
