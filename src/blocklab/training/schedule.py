"""Learning-rate schedules: the multiplier of the peak rate at every step of a run.

A schedule is a pure function of the step and the number of steps; it knows no optimiser. Step 0 is
the first update, so its rate is never zero, and step `total - 1` is the last one.
"""

import math
from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from blocklab.errors import BlocklabError
from blocklab.record import Tagged


def _whole_when_steps(value: float) -> float:
    if value >= 1 and value != int(value):
        raise ValueError(f"{value} is neither a share (below 1) nor a whole number of steps")
    return value


Steps = Annotated[float, Field(ge=0), AfterValidator(_whole_when_steps)]
"""A share of all steps when below 1, a number of steps from 1 on; 0 means none."""

Ratio = Annotated[float, Field(ge=0, le=1)]
"""The last step's rate over the peak rate."""


class ScheduleConfig(Tagged):
    """What every schedule has: a linear warm-up to the peak, then a shape of its own.

    A warm-up of w steps gives step i the factor (i + 1) / w, so the peak is reached at step w - 1.
    A warm-up as long as the run or longer leaves no step for what would follow.
    """

    slot: ClassVar[str] = "schedule"
    default_kind: ClassVar[str] = "cosine"

    warmup: Steps = 0.1

    def factor(self, step: int, total: int) -> float:
        """The multiplier of the peak rate for `step` (from 0) of `total` steps.

        Raises BlocklabError when the run has no such step.
        """
        if not 0 <= step < total:
            raise BlocklabError(f"schedule: a run of {total} steps has no step {step} (from 0)")
        warmup = _n_steps(self.warmup, total)
        if step < warmup:
            return (step + 1) / warmup
        peak = max(warmup - 1, 0)
        return self._after_peak(step - peak, total - 1 - peak, total)

    @abstractmethod
    def _after_peak(self, since: int, last: int, total: int) -> float:
        """The factor `since` steps after the peak's; the run's last step is `last` after it."""


class Constant(ScheduleConfig):
    """The peak rate from the end of the warm-up on."""

    kind: Literal["constant"] = "constant"

    def _after_peak(self, since: int, last: int, total: int) -> float:
        return 1.0


class Linear(ScheduleConfig):
    """A straight line from the peak to `final` at the last step."""

    kind: Literal["linear"] = "linear"
    final: Ratio = 0.1

    def _after_peak(self, since: int, last: int, total: int) -> float:
        return _line(since, last, self.final)


class Cosine(ScheduleConfig):
    """Half a cosine from the peak to `final` at the last step (Loshchilov & Hutter 2017, eq. 5)."""

    kind: Literal["cosine"] = "cosine"
    final: Ratio = 0.1

    def _after_peak(self, since: int, last: int, total: int) -> float:
        if since == 0:
            return 1.0
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * since / last)) / 2


class WarmupStableDecay(ScheduleConfig):
    """The peak rate, then a line to `final` over the last `decay` steps (Hu et al. 2024, MiniCPM).

    `decay` is read like `warmup`, at least one step; it gives way to the warm-up where they meet.
    """

    kind: Literal["warmup-stable-decay"] = "warmup-stable-decay"
    final: Ratio = 0.1
    decay: Annotated[Steps, Field(gt=0)] = 0.2

    def _after_peak(self, since: int, last: int, total: int) -> float:
        decay = min(max(_n_steps(self.decay, total), 1), last)
        return _line(max(since - (last - decay), 0), decay, self.final)


def _n_steps(length: float, total: int) -> int:
    return int(length) if length >= 1 else round(length * total)


def _line(step: int, last: int, final: float) -> float:
    if step == 0:
        return 1.0
    return final + (1 - final) * (last - step) / last


Constant.register("constant")
Linear.register("linear")
Cosine.register("cosine")
WarmupStableDecay.register("warmup-stable-decay")
