"""What came of a comparison, and how it is said."""

import math
from dataclasses import dataclass

from blocklab.comparison.diagnosis import EXACT, SINGLE
from blocklab.comparison.wiring import Mistake
from blocklab.shown import Shown


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """What came of comparing a module with ours. Prints as words."""

    module: str
    part: str
    agrees: bool
    """Outputs, gradients and parameters are ours, to the rounding of float32 at least."""
    mistakes: tuple[Mistake, ...]
    """Decisions taken otherwise, by name; together they explain the outputs and gradients."""
    explained: bool
    """Whether ours with these mistakes gives the module's outputs."""
    difference: float
    """Largest difference of the outputs from ours, relative to the largest output."""
    unexplained: float
    """The same, once the mistakes are made in ours too; of the nearest known ones where none do."""
    gradient_difference: float
    """Largest relative difference of a gradient then, of the input's too; inf where it has none.
    NaN while outputs are unexplained or not finite."""
    parameters: dict[str, str]
    """Our parameter's name, and where in the module it was found."""
    notes: tuple[str, ...]
    """Further differences: parameters that one of the two lacks, widths, gradients."""
    rounding: str = ""
    """Where outputs agree but not to float64: what rounds in the module."""

    @property
    def names(self) -> tuple[str, ...]:
        """The mistakes' names."""
        return tuple(mistake.name for mistake in self.mistakes)

    def __repr__(self) -> str:
        found = "agree" if self.agrees else ", ".join(self.names) or "differ"
        return f"Comparison({self.module} and our {self.part}: {found})"

    def __str__(self) -> str:
        lines = [self._verdict()]
        lines += [f"  - Yours {mistake.words}. [{mistake.name}]" for mistake in self.mistakes]
        lines += [f"  - Yours {note}." for note in self.notes]
        if self.parameters:
            width = max(map(len, self.parameters))
            lines.append("  parameters (ours: yours)")
            lines += [f"    {ours:<{width}}  {yours}" for ours, yours in self.parameters.items()]
        return "\n".join(lines)

    def _verdict(self) -> str:
        start = f"{self.module} and our {self.part}"
        rounding = f"; {self.rounding}" if self.rounding else ""
        if self.agrees:
            return (
                f"{start} agree: outputs to {self.difference:.0e}, gradients to "
                f"{self.gradient_difference:.0e}{rounding}."
            )
        if self.difference <= EXACT:
            return f"{start} give the same outputs, but differ:"
        if self.difference <= SINGLE and self.unexplained > 0.1 * self.difference:
            why = f" ({self.rounding})" if self.rounding else ""
            return f"{start} give the same outputs to {self.difference:.0e}{why}, but differ:"
        apart = f"{start} part: outputs differ by up to {self.difference:.2g} of the largest."
        if math.isinf(self.difference):
            apart = f"{start} part: ours cannot be computed with what yours has."
        if not self.explained:
            return (
                f"{apart} None of the known mistakes explains it (nearest: {self.unexplained:.2g})."
            )
        return f"{apart} With what follows, ours gives yours to {self.unexplained:.0e}:"
