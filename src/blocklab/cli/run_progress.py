"""How far a single run is, and Ctrl-C as a wish to stop after saving."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from blocklab.cli.screen import console
from blocklab.data.dataset import Dataset
from blocklab.report.formats import counted
from blocklab.training.devices import PROCESSOR
from blocklab.training.numerics import Numerics
from blocklab.training.run import RunOutcome
from blocklab.training.trainer import Trainer

LINE_EVERY_SECONDS = 15.0


class RunProgress:
    """A bar on a terminal, a line every so often elsewhere; the first Ctrl-C asks to stop.

    So does SIGTERM, by which a cluster's queue or a machine that shuts down asks. `one_of_several`
    processes hears it twice, from the terminal and from torchrun; all but one are `quiet`.
    """

    def __init__(self, folder: Path, *, one_of_several: bool = False, quiet: bool = False) -> None:
        self.folder = folder
        self.patient = one_of_several
        self.signals = [signal.SIGINT, signal.SIGTERM]
        self.console = console(stderr=True, quiet=quiet)
        self.stopping = False
        self.said_at = time.monotonic()
        self.bar = Progress(
            TextColumn("step {task.completed:.0f} of {task.total:.0f}, loss {task.fields[loss]}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=quiet or not self.console.is_terminal,
        )
        self.task = self.bar.add_task("training", total=1, loss="—")

    def __enter__(self) -> Self:
        self.before = [signal.signal(number, self._asked_to_stop) for number in self.signals]
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()
        for number, handler in zip(self.signals, self.before, strict=True):
            signal.signal(number, handler)

    def _asked_to_stop(self, number: int, frame: FrameType | None) -> None:
        if self.stopping and not self.patient:
            raise KeyboardInterrupt
        self.stopping = True

    def should_stop(self) -> bool:
        return self.stopping

    def say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)

    def say_text(self, dataset: Dataset, corpus: str) -> None:
        """Which text is trained on, and what was done to it."""
        tokenizer = "" if dataset.tokenizer is None else f", tokenizer {dataset.tokenizer.name}"
        self.say(
            f"{corpus}{tokenizer}: {len(dataset.train):,} tokens to train on, "
            f"{len(dataset.validation):,} to validate"
        )
        for note in dataset.notes:
            self.say(note)

    def begun(self, trainer: Trainer) -> None:
        """Which parameters are updated by what, for how long, where, and from which step on."""
        groups = [
            f"{group.optimizer} of {group.name} ({counted(group.n_tensors, 'tensor')}, "
            f"{group.n_parameters:,} parameters), "
            + (f"decay {group.decay:g}" if group.decay else "no decay")
            for group in trainer.optimizer.groups
        ]
        self.say(f"parameters: {'; '.join(groups)}")
        for line in _of_its_length(trainer):
            self.say(line)
        if trainer.steps_done:
            self.say(f"going on after step {trainer.steps_done:,}")
        # What was done before says nothing of how long the rest takes.
        self.bar.reset(self.task, total=trainer.total_steps, completed=trainer.steps_done)

    def stepped(self, step: int, total: int, loss: float) -> None:
        self.bar.update(self.task, completed=step, total=total, loss=f"{loss:.3f}")
        if self.console.is_terminal or time.monotonic() - self.said_at < LINE_EVERY_SECONDS:
            return
        self.said_at = time.monotonic()
        self.say(f"step {step} of {total}, loss {loss:.3f}")

    def evaluated(self, step: int, loss: float) -> None:
        self.say(f"step {step}: validation loss {loss:.4f}")

    def say_how_to_go_on(self) -> None:
        self.say(f"stopped and saved in {self.folder}; run the same command with --resume to go on")

    def say_outcome(self, outcome: RunOutcome) -> None:
        if outcome.diverged_in == "final loss":
            self.say(
                f"nothing learnt, which counts as diverged: after {counted(outcome.steps, 'step')} "
                "the validation loss is not below both the first loss, "
                f"{outcome.start_loss:.3f}, and "
                "that of guessing evenly"
            )
        elif outcome.diverged_at is not None:
            self.say(f"diverged at step {outcome.diverged_at}: {outcome.diverged_in}")
        else:
            self.say(
                f"validation loss {outcome.validation_loss:.4f} nats after {outcome.tokens:,} "
                f"tokens ({outcome.epochs:.2f} epochs), {outcome.tokens_per_second:,.0f} tokens/s"
            )
        self.say(f"the run is in {self.folder}")


def _of_its_length(trainer: Trainer) -> Iterator[str]:
    """How much is read, and in which numerics."""
    total, batch = trainer.total_steps or 0, trainer.training.batch_size
    context = trainer.config.context_length
    tokens = total * batch * context
    yield (
        f"{counted(total, 'step')} of {batch} × {context} tokens: {tokens:,} in all, "
        f"{tokens / len(trainer.dataset.train):.2f} epochs; {_told(trainer.numerics)}"
    )
    evaluations = -(-total // (trainer.training.evaluate_every or total))
    swept = evaluations * trainer.validation.n_targets
    if swept > tokens:
        yield (
            f"evaluating reads {swept:,} tokens in all, more than training: "
            "training.validation_tokens says how many it may read each time"
        )


def _told(numerics: Numerics) -> str:
    """Where and in what a training computes, in words."""
    threads = f", {counted(numerics.threads, 'thread')}" if numerics.device == PROCESSOR else ""
    compiled = ", compiled" if numerics.compile else ""
    return f"{numerics.dtype} on {numerics.device}{threads}{compiled}"
