"""The one family of errors a user meets. A stack trace is for bugs only."""

import difflib
from collections.abc import Iterable


class BlocklabError(ValueError):
    """Bad input: the message names the path or file, what was found, and what was expected."""

    exit_code = 2


class RunFailed(BlocklabError):
    """The input was good, but a run or the disk failed."""

    exit_code = 1


def nearest(name: str, valid: Iterable[str]) -> str:
    """The end of an error about an unknown name: the likeliest meant one and all valid ones."""
    valid = sorted(valid)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.4)
    guess = f"did you mean '{close[0]}'? " if close else ""
    return f"{guess}(valid: {', '.join(valid)})"
