"""A whole ablation: train a study, write its report. What the command line and a script share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blocklab.report.html import write_report
from blocklab.study.results import Arm, RunResult, StudyResult
from blocklab.study.runner import Watcher, train_study
from blocklab.study.study import Study
from blocklab.study.timing import Say


@dataclass(frozen=True)
class Experiment:
    """What a study came to."""

    result: StudyResult
    report: Path
    """Path of report.html."""

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The baseline, the variants and the placebo, with their effects."""
        return self.result.arms

    @property
    def runs(self) -> tuple[RunResult, ...]:
        """One row a run."""
        return self.result.runs


def run_study(
    study: Study,
    folder: str | Path,
    *,
    workers: int | None = None,
    plugins: Sequence[Path] = (),
    reuse: Path | None = None,
    ray: str | None = None,
    watcher: Watcher | None = None,
    say: Say | None = None,
    command: str | None = None,
) -> Experiment:
    """Train what is missing of `study` in `folder` and write its report there.

    `workers` defaults to the cores; with `ray`, the address of a Ray cluster, runs are trained on
    its machines. `plugins` are files that register parts of the user's own; finished runs of the
    study in `reuse` are taken over. Runs already finished are never trained again. Raises
    BlocklabError for bad input before anything is written, RunFailed when a run or the disk fails;
    KeyboardInterrupt leaves everything finished in place.
    """
    result = train_study(
        study,
        folder,
        workers=workers,
        plugins=plugins,
        reuse=reuse,
        ray=ray,
        watcher=watcher,
        say=say,
        command=command,
    )
    return Experiment(result, write_report(result, Path(folder)))
