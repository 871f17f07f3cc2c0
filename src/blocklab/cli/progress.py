"""How far a study is: one quiet line that tells the time left."""

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from blocklab.cli.screen import console
from blocklab.report.formats import counted, duration
from blocklab.study.plan import Plan


class LiveProgress:
    """Shows a study's progress on stderr: a bar on a terminal, a line now and then elsewhere."""

    LINES = 10
    """How many lines a whole study prints where there is no terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.console = console(stderr=True)
        self.found = self.expected = 0
        self.began = time.monotonic()
        self.printed = 0
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[left]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("preparing", total=None, left="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def say(self, line: str) -> None:
        """A line of its own, above the bar."""
        self.console.print(line, soft_wrap=True)

    def planned(self, plan: Plan, found: int, expected: int) -> None:
        self.found, self.expected = found, expected
        self.began = time.monotonic()
        arms = ", ".join(dict.fromkeys(arm.name for arm in plan.arms))
        already = f", {found} already finished" if found else ""
        about = "about " if plan.study.search and found < expected else ""
        self.say(
            f"{about}{counted(expected, 'run')}{already}: {arms}{where(plan)}. Results in "
            f"{self.folder}"
        )

    def progressed(self, steps_done: int, steps_expected: int, found: int, expected: int) -> None:
        self.found, self.expected = found, expected
        # What is still to be done in all: runs found finished took no time of this call.
        share = steps_done / steps_expected
        left = _left(time.monotonic() - self.began, share)
        self.bar.update(
            self.task,
            description=f"{found} of {counted(expected, 'run')}",
            completed=steps_done,
            total=steps_expected,
            left=left,
        )
        if not self.console.is_terminal and share * self.LINES >= self.printed + 1:
            self.printed = int(share * self.LINES)
            self.say(f"{found} of {counted(expected, 'run')} finished; {left}")

    def say_how_to_go_on(self) -> None:
        """After Ctrl-C."""
        if not self.expected:
            self.say("stopped before any run began; run the same command again")
        elif self.found == self.expected:
            self.say(
                f"stopped with all runs finished and kept in {self.folder}; run the same command "
                "again for the report"
            )
        else:
            self.say(
                f"stopped: {self.found} of {counted(self.expected, 'run')} finished and kept in "
                f"{self.folder}, those under way are saved where they were; run the same command "
                "again to go on"
            )


def where(plan: Plan) -> str:
    """` in 2 settings of the nuisances on 3 rungs of the ladder`; empty for one place alone."""
    cells = f" in {len(plan.cells)} settings of the nuisances" if len(plan.cells) > 1 else ""
    return cells + (f" on {1 + len(plan.ladder)} rungs of the ladder" if plan.ladder else "")


def _left(elapsed: float, share: float) -> str:
    """The time left, from the time gone by and the share of the work done in it."""
    if share < 0.005 or elapsed < 2:
        return "estimating the time left"
    return f"about {duration(elapsed * (1 - share) / share)} left"
