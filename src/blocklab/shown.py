"""How a result shows itself: `repr` says in a line what it is, `print` shows what is in it."""

from typing import Protocol


class _Printer(Protocol):
    """What IPython hands over to be written to."""

    def text(self, text: str) -> object: ...


class Shown:
    """For results that a notebook's cell may end in: it then shows what `print` would."""

    def _repr_pretty_(self, printer: _Printer, cycle: bool) -> None:
        printer.text(str(self))
