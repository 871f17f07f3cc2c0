"""Runs experiments one after another and keeps what each found, so that a page can show all."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from blocklab.errors import BlocklabError
from blocklab.files import write_atomically
from blocklab.report.drawing import Chart
from blocklab.reproduce.comparison import Row
from blocklab.reproduce.experiment import Experiment, Found, Place, Say, published
from blocklab.reproduce.experiments import EXPERIMENTS

FOUND = "found.json"


@dataclass(frozen=True)
class Outcome:
    """An experiment and what it found."""

    experiment: Experiment
    obtained: str
    """How the published figures were obtained."""
    found: Found


def reproduce(experiment: Experiment, folder: Path, say: Say) -> Outcome:
    """Find our figures and keep them in the folder under the experiment's name.

    What was trained before in that folder is read. Raises BlocklabError for a missing text or
    vocabulary, RunFailed when a run or the disk fails.
    """
    place = folder / experiment.name
    figures = published(experiment.name)
    found = experiment.find(figures, Place(place, say))
    write_atomically(place / FOUND, json.dumps(asdict(found), indent=1).encode())
    return Outcome(experiment, figures["obtained"], found)


def kept(folder: Path) -> list[Outcome]:
    """What the folder holds of earlier calls, in the order of the experiments."""
    outcomes = []
    for experiment in EXPERIMENTS:
        path = folder / experiment.name / FOUND
        if path.is_file():
            outcomes.append(
                Outcome(experiment, published(experiment.name)["obtained"], _read(path))
            )
    return outcomes


def _read(path: Path) -> Found:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return Found(
            rows=tuple(Row(**row) for row in stored["rows"]),
            charts=tuple(Chart(**chart) for chart in stored["charts"]),
            notes=tuple(stored["notes"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BlocklabError(f"{path}: cannot be read ({error}); remove it") from None


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """All their rows."""
    return [row for outcome in outcomes for row in outcome.found.rows]
