"""A whole ablation: train a study, write its report. What the command line and a script share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from blocklab.errors import BlocklabError
from blocklab.expected import described, require, require_place, require_whole
from blocklab.record import with_changes
from blocklab.report.html import write_report
from blocklab.report.terminal import summary_text
from blocklab.shown import Shown
from blocklab.study.plan import plan
from blocklab.study.plugins import load_plugins, require_given
from blocklab.study.results import Arm, RunResult, StudyResult, Text
from blocklab.study.runner import Watcher, train_study
from blocklab.study.study import Study
from blocklab.study.timing import Say
from blocklab.study.verdict import Verdict


@dataclass(frozen=True, repr=False)
class Experiment(Shown):
    """What a study came to. Prints as its sentences, and where the report lies."""

    result: StudyResult
    report: Path
    """Path of report.html."""

    def __repr__(self) -> str:
        variants = len(self.verdicts)
        return f"Experiment({variants} variants, {len(self.runs):,} runs, report={self.report})"

    def __str__(self) -> str:
        return "\n".join([*summary_text(self.result), f"report: {self.report}"])

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The baseline, the variants and the placebo, with their effects."""
        return self.result.arms

    @property
    def verdicts(self) -> Mapping[str, Verdict | None]:
        """What may be claimed of each variant, by its name, in the study's order.

        None where rates were not searched: there are effects then and no verdicts. The placebo has
        none; what it shows is `chance` of its arm.
        """
        return {arm.name: arm.verdict for arm in self.arms if arm.role == "variant"}

    @property
    def runs(self) -> tuple[RunResult, ...]:
        """One row a run."""
        return self.result.runs


def run_study(
    study: Study,
    folder: str | Path,
    *,
    workers: int | None = None,
    plugins: Sequence[str | Path] = (),
    reuse: str | Path | None = None,
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
    require(Study, study, "study")
    require_place(folder, "folder")
    if reuse is not None:
        require_place(reuse, "reuse")
    if workers is not None:
        require_whole(workers, "workers")
    files = [Path(file) for file in _places(plugins, "plugins")]
    _require_own_parts_given(study, files)
    result = train_study(
        study,
        folder,
        workers=workers,
        plugins=files,
        reuse=None if reuse is None else Path(reuse),
        ray=ray,
        watcher=watcher,
        say=say,
        command=command,
    )
    return Experiment(result, write_report(result, Path(folder)))


def _places(values: Sequence[str | Path], name: str) -> Sequence[str | Path]:
    """Raise BlocklabError unless they are some paths: one alone would be read letter by letter."""
    if not isinstance(values, list | tuple):
        raise BlocklabError(f"{name}: expected a list of paths, found {described(values)}")
    for value in values:
        require_place(value, name)
    return values


def _require_own_parts_given(study: Study, plugins: Sequence[Path]) -> None:
    """Raise BlocklabError where a part of the user's own is defined in none of the files."""
    fingerprints = load_plugins(plugins)
    # Which parts there are does not depend on sizes, nor on the text that they are matched for.
    unmatched = with_changes(study, {"match": "none"})
    rows = study.baseline.config().vocab_size or 1024
    planned = plan(unmatched, Text("", rows, "", 0.0, 0, 0), fingerprints)
    for arm in (arm for part in planned.whole for arm in part.arms):
        at = f"variants.{arm.name}" if arm.role == "variant" else arm.role
        for record in (arm.config, arm.training):
            require_given(record, fingerprints, at)
