"""A run as records: everything that decides it, and what it came to."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field

from blocklab.data.dataset import DataConfig
from blocklab.model.config import ModelConfig
from blocklab.record import Record
from blocklab.training.config import TrainingConfig
from blocklab.training.inspection import Insides
from blocklab.training.numerics import Numerics
from blocklab.training.stability import GradientNorms, Spikes

RESULTS = 1
"""Raised whenever a golden loss changes, so that no run of an older version is taken for new."""


class RunSpec(Record):
    """Everything that decides a run's result."""

    model: ModelConfig
    training: TrainingConfig
    data: DataConfig
    data_fingerprint: str
    seed: int
    metrics: tuple[Literal["recall"], ...] = ()
    """What is measured beside the loss at the end."""
    draw: str = ""
    """Names another initial draw under the same seed (the placebo's)."""
    weights: str | None = None
    """Fingerprint of the weights it starts from; null draws them."""
    numerics: Numerics = Numerics()
    torch: str = ".".join(torch.__version__.split(".")[:2])
    plugins: dict[str, str] = Field(default_factory=dict)
    """Fingerprint of each file that defines parts of the user's own."""
    processes: int = Field(1, gt=0)
    """That the model is spread over, each with a share of every batch."""
    results: int = RESULTS

    @property
    def id(self) -> str:
        """16 hex digits, equal for equal records whatever their order on paper."""
        record = self.plain()
        # Where nothing was chosen, a run keeps the id it had before there was a choice.
        for name, usual in (("weights", None), ("processes", 1)):
            if record[name] == usual:
                del record[name]
        text = json.dumps(record, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class RunOutcome:
    """What a finished run is reported by; losses are None when it diverged."""

    validation_loss: float | None
    train_loss: float | None
    start_loss: float
    diverged_at: int | None
    diverged_in: str | None
    steps: int
    tokens: int
    epochs: float
    seconds: float
    tokens_per_second: float
    peak_memory: int
    inspect_seconds: float = 0.0
    """Of `seconds`, what looking into the model took."""
    compile_seconds: float = 0.0
    """Beside `seconds`."""
    recall: float | None = None
    """Share of determined answers given, where it was asked for."""
    spikes: Spikes | None = None
    """Of the training loss; None where the run is too short to tell."""
    norms: GradientNorms | None = None
    log_z: float | None = None
    """Of the output's softmax: mean over the last tenth of the steps."""
    insides: Insides | None = None
    """None where the run was not looked into."""

    @classmethod
    def read(cls, stored: dict[str, Any]) -> "RunOutcome":
        """From the plain values of `asdict`. Raises TypeError for others."""
        kinds = {"spikes": Spikes, "norms": GradientNorms, "insides": Insides}
        parts = {
            name: kind(**stored[name])
            for name, kind in kinds.items()
            if stored.get(name) is not None
        }
        return cls(**stored | parts)
