"""What runs measured step by step, as TensorBoard reads it.

A run's `metrics.jsonl` stays the record: events are written from it into a folder of their own, as
often as asked, while the run trains or after it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blocklab.errors import BlocklabError, RunFailed
from blocklab.training.checkpoint import METRICS, JsonObject, read_metrics
from blocklab.training.inspection import Inspection

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

EVENTS = "events.out.tfevents.*"
"""How TensorBoard's own files are named."""

FINAL = "final/validation_loss"


@dataclass(frozen=True)
class LoggedRun:
    """A run whose metrics are shown."""

    name: str
    """Its place in TensorBoard's tree, parts parted by slashes; empty for the only one."""
    folder: Path
    settings: Mapping[str, str | float] = field(default_factory=dict)
    """What it was trained with, for the table of hyperparameters."""
    final_loss: float | None = None
    """At its end, nats, not a number when it diverged; None while it trains."""


class EventFolder:
    """A folder of event files, kept up with the metrics of runs.

    Whatever events lie there of a run are written anew when it is first shown. Raises BlocklabError
    where the package tensorboard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer_class = _writer_class()
        self._runs: dict[str, _Written] = {}

    def show(self, runs: Sequence[LoggedRun]) -> int:
        """Add what the runs have measured since they were last shown; how many steps that was.

        Raises RunFailed when the disk refuses.
        """
        try:
            return sum(self._add(run) for run in runs)
        except OSError as error:
            raise RunFailed(f"{self.folder}: cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Have all of it on disk."""
        for written in self._runs.values():
            written.close()

    def _add(self, run: LoggedRun) -> int:
        if run.name not in self._runs:
            into = self.folder / run.name
            for old in into.glob(EVENTS):
                old.unlink()
            self._runs[run.name] = _Written(self._writer_class, into)
        return self._runs[run.name].add(run)


class _Written:
    """One run's events. Its file is open only while it grows: a study may have thousands."""

    def __init__(self, writer_class: "type[SummaryWriter]", into: Path) -> None:
        self._writer_class, self._into = writer_class, into
        self._writer: SummaryWriter | None = None
        self._last_step = 0
        self._ended = False

    def add(self, run: LoggedRun) -> int:
        if self._ended:
            return 0
        rows = read_metrics(run.folder / METRICS)
        # Steps that a stopped run trains again come out the same to the bit: these stand already.
        new = [row for row in rows if row["step"] > self._last_step]
        if new or run.final_loss is not None:
            writer = self._writer = self._writer or self._writer_class(str(self._into))
            for row in new:
                for tag, value in scalars(row):
                    writer.add_scalar(tag, value, row["step"])
            writer.flush()
        if new:
            self._last_step = new[-1]["step"]
        if run.final_loss is not None:
            self._end(run, run.final_loss)
        return len(new)

    def _end(self, run: LoggedRun, loss: float) -> None:
        assert self._writer is not None
        # Under the run's own name: left to itself the table names its rows by the time.
        self._writer.add_hparams(
            dict(run.settings), {FINAL: loss}, run_name=".", global_step=self._last_step
        )
        self._ended = True
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def scalars(row: JsonObject) -> Iterator[tuple[str, float]]:
    """The numbers of one step of `metrics.jsonl`, each by its tag; blocks by their address.

    What is not finite is among them: TensorBoard marks it on the curve.
    """
    yield "loss/train", row["train_loss"]
    if row.get("validation_loss") is not None:
        yield "loss/validation", row["validation_loss"]
    for name in ("learning_rate", "gradient_norm", "log_z"):
        yield f"step/{name}", row[name]
    if "inspection" in row:
        yield from _of_a_look(Inspection(**row["inspection"]))


def _of_a_look(look: Inspection) -> Iterator[tuple[str, float]]:
    by_place: dict[str, Mapping[str, float | None]] = {
        "gradient_norm": look.gradient_norm,
        "update_ratio": look.update_ratio,
        "stream_rms": _by_block(look.stream_rms[1:]) | {"embedding": look.stream_rms[0]},
        "position_similarity": _by_block(look.position_similarity),
        "largest_attention_logit": _by_block(look.largest_attention_logit),
    }
    for what, values in by_place.items():
        for place, value in values.items():
            if value is not None:
                yield f"{what}/{place}", value


def _by_block(values: Sequence[float | None]) -> dict[str, float | None]:
    return {f"blocks.{i}": value for i, value in enumerate(values)}


def _writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BlocklabError(
            "TensorBoard's files need the package tensorboard; pip install 'blocklab[tensorboard]'"
        ) from None
    return SummaryWriter
