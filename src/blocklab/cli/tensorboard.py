"""`blocklab tensorboard`: what runs measured, for TensorBoard."""

import math
import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blocklab.cli.options import Out, path_to_read

if TYPE_CHECKING:
    from blocklab.report.tensorboard import LoggedRun
    from blocklab.study.plan import PlannedRun
    from blocklab.training.run_record import RunOutcome

SECONDS_BETWEEN_LOOKS = 5.0


def tensorboard(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", parser=path_to_read, help="What blocklab train or ablate wrote."
        ),
    ],
    out: Out = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on while it trains, until Ctrl-C.")
    ] = False,
) -> None:
    """Write what a run or a study's runs measured step by step as TensorBoard reads it.

    Losses, rates, gradient norms and looks inside, by run; of a study also the table of what each
    was trained with. Both may be training still.
    """
    from blocklab.report.formats import counted
    from blocklab.report.tensorboard import EventFolder

    events = EventFolder(out or folder / "tensorboard")
    steps = events.show(_runs(folder))
    print(
        f"{counted(steps, 'step')} in {events.folder}; tensorboard --logdir {events.folder}",
        flush=True,
    )
    try:
        while follow:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            events.show(_runs(folder))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        events.close()


def _runs(folder: Path) -> "list[LoggedRun]":
    """The run that `folder` is, or those of the study that it holds."""
    from blocklab.errors import BlocklabError
    from blocklab.report.tensorboard import LoggedRun
    from blocklab.study.folder import FACTS
    from blocklab.study.stored import stored_runs
    from blocklab.training.checkpoint import METRICS
    from blocklab.training.run import finished

    if not (folder / FACTS).exists():
        if not (folder / METRICS).exists():
            raise BlocklabError(
                f"{folder}: holds nothing that was measured; give the folder of a run or a study"
            )
        return [LoggedRun("", folder, final_loss=_final_loss(finished(folder)))]
    asked = stored_runs(folder)
    usual = asked[0].run.spec.numerics.dtype
    names = [_name(of.run, usual) for of in asked]
    alike = {name for name, n in Counter(names).items() if n > 1}
    return [
        LoggedRun(
            f"{name}-{of.run.id}" if name in alike else name,
            of.folder,
            _settings(of.run),
            _final_loss(of.outcome),
        )
        for name, of in zip(names, asked, strict=True)
        if (of.folder / METRICS).exists()
    ]


def _name(run: "PlannedRun", usual: str) -> str:
    """Arm, circumstances, rate and seed, each a folder's name."""
    from blocklab.report.formats import rate

    dtype = run.spec.numerics.dtype
    parts = [run.arm, run.cell, run.rung, "" if dtype == usual else dtype]
    parts += [f"rate={rate(run.learning_rate)}", f"seed={run.seed}"]
    return "/".join(re.sub(r"[^\w.,=+-]+", "_", part).lstrip(".") for part in parts if part)


def _settings(run: "PlannedRun") -> dict[str, str | float]:
    said = {"variant": run.arm, "setting": run.cell, "rung": run.rung}
    return {name: value for name, value in said.items() if value} | {
        "learning_rate": run.learning_rate,
        "seed": float(run.seed),
        "dtype": run.spec.numerics.dtype,
    }


def _final_loss(outcome: "RunOutcome | None") -> float | None:
    if outcome is None:
        return None
    return math.nan if outcome.validation_loss is None else outcome.validation_loss
