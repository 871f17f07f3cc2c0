"""A study on disk: its resolved question, its runs, and a lock while it is worked on."""

import contextlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import safetensors.numpy

from blocklab.errors import BlocklabError
from blocklab.files import LOCK, alone_in, write_atomically
from blocklab.record import Value, first_difference
from blocklab.study.plan import PlannedRun
from blocklab.study.plugins import copies_in, sources_of, write_copies
from blocklab.study.results import Point, RunResult, Text
from blocklab.study.statistics import Array
from blocklab.study.study import Study
from blocklab.training.checkpoint import METRICS, read_metrics
from blocklab.training.inspection import Inspection
from blocklab.training.run import WINDOWS, RunOutcome, finished

FIXED = (
    "baseline",
    "training",
    "data",
    "match",
    "nuisances",
    "ladder",
    "search",
    "delta",
    "resolution",
    "metrics",
    "budget",
)
"""What every study in one folder has in common; variants and seeds may be added."""

ASKED = ("baseline", "training", "data", "match", "nuisances", "search")
"""Those of them that decide which losses were seen; another delta reads the same ones again."""

FACTS = "facts.json"

REPORT = "report.html"
"""Where the report lies; once it is there, the seeds so far were looked at."""

POINTS_KEPT = 400
"""Steps of a run that a report is given; a longer curve is thinned evenly."""


LOOKS_KEPT = 40
"""Looks into a run's model that a report is given."""


@dataclass(frozen=True)
class Circumstances:
    """What a study's folder keeps beside the question, so that a report needs no corpus."""

    text: Text
    command: str
    """What to type to run it again."""
    differences: Mapping[str, str]
    """By variant: where it was seen to differ from the baseline, before any training."""


class StudyFolder:
    """The folder of one study: `study.yaml`, `runs/ID/`, and what the report writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.study_file = path / "study.yaml"
        self._outcomes: dict[Path, RunOutcome] = {}

    def run_folder(self, run: PlannedRun) -> Path:
        return self.path / "runs" / run.id

    @property
    def plugins(self) -> tuple[Path, ...]:
        """Copies of the files that define parts of the user's own, each with what it imports."""
        return copies_in(self.path / "plugins")

    def read(self) -> tuple[Study, Circumstances]:
        """The study, and what is known of how it began.

        Raises BlocklabError when the folder holds no study.
        """
        facts = self.path / FACTS
        try:
            known = json.loads(facts.read_text(encoding="utf-8"))
            text = Text(**known["text"] | {"notes": tuple(known["text"]["notes"])})
            circumstances = Circumstances(text, str(known["command"]), dict(known["differences"]))
        except (OSError, ValueError, KeyError, TypeError):
            raise BlocklabError(
                f"{self.path}: holds no study (no readable {FACTS}); give the folder that "
                "blocklab ablate wrote"
            ) from None
        return Study.from_yaml(self.study_file), circumstances

    def widened(self, study: Study, fingerprint: str) -> Study:
        """`study` with what the folder already holds of the same question.

        Raises BlocklabError naming the first path that differs when it holds another one.
        """
        if not self.study_file.exists():
            if self.path.is_dir() and any(p.name != LOCK for p in self.path.iterdir()):
                raise BlocklabError(f"{self.path}: is not empty and holds no study; give --out")
            return study
        held, circumstances = self.read()
        text = circumstances.text
        where = first_difference(_of(FIXED, held), _of(FIXED, study))
        if where is None and text.fingerprint != fingerprint:
            where = ("the text of data.corpus", text.fingerprint, fingerprint)
        for field in ("variants", "interactions"):
            there, here = getattr(held, field), getattr(study, field)
            for name in there.keys() & here.keys():
                where = where or first_difference(there[name], here[name], f"{field}.{name}")
        numerics = study.numerics or held.numerics
        if where is None and held.numerics not in (None, numerics):
            where = ("numerics", held.numerics, numerics)
        if where is not None:
            path, there, here = where
            raise BlocklabError(
                f"{self.path}: holds another study: {path} is {there!r} there and {here!r} here; "
                "choose another folder with --out"
            )
        return Study.parse(
            study.plain()
            | {
                "variants": {**held.variants, **study.variants},
                "interactions": {**held.interactions, **study.interactions},
                "widths": {**study.widths, **held.widths},
                "numerics": None if numerics is None else numerics.plain(),
            }
            | self._widened_seeds(held, study)
        )

    def continued_by(self, study: Study) -> Study:
        """`study` as it takes finished runs from this folder: in its numerics, and with the seeds
        that were looked at here counted as such where it asks the same question.

        Raises BlocklabError when the folder holds no study.
        """
        held, _ = self.read()
        numerics = study.numerics or held.numerics
        known: dict[str, Value] = {"numerics": None if numerics is None else numerics.plain()}
        seen = held.looked or (self.path / REPORT).exists()
        if seen and first_difference(_of(ASKED, held), _of(ASKED, study)) is None:
            known["looked"] = self._looked(held, study, "leave --reuse out")
        return Study.parse(study.plain() | known)

    def _widened_seeds(self, held: Study, study: Study) -> dict[str, Value]:
        """The larger number of seeds, and how many of them were looked at already.

        Raises BlocklabError where looking twice was declared, or would be declared too late.
        """
        looked = self._looked(held, study, "choose another folder with --out")
        if held.seeds == "two-look" or study.seeds == "two-look":
            return {}
        return {"seeds": max(held.seeds, study.seeds), "looked": max(held.looked, looked)}

    def _looked(self, held: Study, study: Study, otherwise: str) -> int:
        """How many of the study's seeds were looked at, here or before, when others were added.

        Raises BlocklabError where looking twice was declared, or would be declared too late;
        `otherwise` is what else to do.
        """
        if held.seeds == "two-look" or study.seeds == "two-look":
            if held.seeds != study.seeds:
                raise BlocklabError(
                    f"{self.path}: how often the study looks was fixed before it began: seeds is "
                    f"{held.seeds} there and {study.seeds} here; {otherwise}"
                )
            return 0
        added = (self.path / REPORT).exists() and study.seeds > held.seeds
        before = held.seeds if added else held.looked
        # Those that were looked at first are a study whose seeds nobody added to.
        return max(study.looked, before if before < study.seeds else 0)

    def write(self, study: Study, circumstances: Circumstances, plugins: Sequence[Path]) -> None:
        """Write the question and its circumstances. Raises RunFailed when the disk refuses."""
        facts = json.dumps(asdict(circumstances), indent=1)
        write_atomically(self.path / FACTS, facts.encode())
        write_copies(sources_of(plugins), self.path / "plugins")
        write_atomically(self.study_file, study.resolved().to_yaml().encode())

    def _outcome(self, folder: Path) -> RunOutcome | None:
        """What a run came to, read once; None while it is not finished."""
        if folder not in self._outcomes:
            outcome = finished(folder)
            if outcome is None:
                return None
            self._outcomes[folder] = outcome
        return self._outcomes[folder]

    def loss_of(self, folder: Path) -> float | None:
        """Final loss of a run that is finished; None when it diverged."""
        outcome = self._outcome(folder)
        if outcome is None:
            raise BlocklabError(f"{folder}: holds no finished run")
        return outcome.validation_loss

    def known(self) -> dict[str, float | None]:
        """Final loss of every finished run, by id."""
        return {
            file.parent.name: self.loss_of(file.parent)
            for file in (self.path / "runs").glob("*/run.json")
        }

    def windows_of(self, run: PlannedRun) -> tuple[Array, Array]:
        """Final loss of every validation window of a finished run, and the windows' weights."""
        stored = safetensors.numpy.load_file(self.run_folder(run) / WINDOWS)
        return stored["losses"], stored["n_targets"]

    def result_of(self, run: PlannedRun) -> RunResult | None:
        """A finished run's result without its curves, or None."""
        outcome = self._outcome(self.run_folder(run))
        if outcome is None:
            return None
        return RunResult(
            id=run.id,
            arm=run.arm,
            seed=run.seed,
            learning_rate=run.learning_rate,
            cell=run.cell,
            rung=run.rung,
            **vars(outcome),
        )

    def with_curves(self, result: RunResult) -> RunResult:
        """The result of a run of this folder with what was logged on the way."""
        rows = read_metrics(self.path / "runs" / result.id / METRICS)
        looks = tuple(
            (row["step"], Inspection(**row["inspection"])) for row in rows if "inspection" in row
        )
        stride = max(1, len(rows) // POINTS_KEPT)
        kept = [row for i, row in enumerate(rows) if i % stride == 0 or i == len(rows) - 1]
        return replace(
            result,
            curve=tuple(
                Point(
                    row["step"],
                    _finite(row["train_loss"]),
                    row["learning_rate"],
                    _finite(row["gradient_norm"]),
                )
                for row in kept
            ),
            validation_curve=tuple(
                (row["step"], row["validation_loss"])
                for row in rows
                if row.get("validation_loss") is not None
            ),
            looks=tuple(looks[i] for i in _evenly(len(looks))),
        )

    def take_finished(self, runs: Sequence[PlannedRun], other: "StudyFolder") -> None:
        """Copy those of the runs that another study has finished."""
        for run in runs:
            there, here = other.run_folder(run), self.run_folder(run)
            if finished(there) is None or finished(here) is not None:
                continue
            beside = here.with_name(f"{here.name}.copy")
            shutil.rmtree(beside, ignore_errors=True)
            shutil.copytree(there, beside)
            shutil.rmtree(here, ignore_errors=True)
            beside.rename(here)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out while runs are trained here."""
        refusal = f"{self.path}: another blocklab is at work there; wait for it or give --out"
        with alone_in(self.path, refusal):
            yield


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _evenly(n: int) -> list[int]:
    """Up to LOOKS_KEPT places among `n`, with the first and the last."""
    if n <= LOOKS_KEPT:
        return list(range(n))
    return [round(i * (n - 1) / (LOOKS_KEPT - 1)) for i in range(LOOKS_KEPT)]


def _of(names: Sequence[str], study: Study) -> dict[str, Value]:
    plain = study.resolved().plain()
    return {name: plain[name] for name in names}
