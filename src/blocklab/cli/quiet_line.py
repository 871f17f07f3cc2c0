"""One line that says what is being done: rewritten on a terminal, now and then elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.text import Text

from blocklab.cli.screen import console

EVERY_SECONDS = 20.0


class QuietLine:
    """A status line on stderr, gone when it ends."""

    def __init__(self) -> None:
        self.console = console(stderr=True)
        self.status = self.console.status("")
        self.said_at = -EVERY_SECONDS

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.status.stop()

    def say(self, line: str) -> None:
        if self.console.is_terminal:
            # As text: a spinner reads markup whatever the console does.
            self.status.update(Text(line))
        elif time.monotonic() - self.said_at >= EVERY_SECONDS:
            self.said_at = time.monotonic()
            self.console.print(line, soft_wrap=True)
