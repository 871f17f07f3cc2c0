"""What an experiment is: a name, what it shows, and a function that finds our figures."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from blocklab.report.drawing import Chart
from blocklab.reproduce.comparison import Row

Say: TypeAlias = Callable[[str], None]

PUBLISHED = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True)
class Place:
    """Where an experiment keeps its runs, and whom it tells how far it is."""

    folder: Path
    say: Say


@dataclass(frozen=True)
class Found:
    """What an experiment came to."""

    rows: tuple[Row, ...]
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """One published experiment."""

    name: str
    title: str
    find: Callable[[dict[str, Any], Place], Found]
    takes: str = "seconds"
    """About how long."""

    @property
    def long(self) -> bool:
        """Whether it trains for minutes."""
        return self.takes != "seconds"


def published(name: str) -> dict[str, Any]:
    """The figures published for an experiment, and how they were `obtained`."""
    found: dict[str, Any] = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))[name]
    return found
