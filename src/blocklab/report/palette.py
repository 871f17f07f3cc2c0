"""Which line stands for which arm: one colour and one dash each, the same in every chart.

The colours are those of Okabe and Ito (2008), told apart by colour-blind readers, without the
yellow that white paper swallows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from blocklab.study.results import StudyResult

INK = "#1b1f24"
QUIET = "#5c6670"
FAINT = "#e3e7eb"
EDGE = "#b8c0c8"

_BASELINE = INK
_PLACEBO = "#8a9199"
_VARIANTS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
# Once the colours are used up, the same ones return dashed.
_DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (7, 2), (2, 2), (7, 2, 2, 2))


@dataclass(frozen=True)
class Style:
    colour: str
    dash: tuple[int, ...]
    width: float = 2.5

    def row(self) -> dict[str, str | float | Sequence[int]]:
        """The look as part of a line's rows."""
        return {"colour": self.colour, "dash": self.dash, "width": self.width}

    def dot(self, fill: str | None = None) -> dict[str, str]:
        """The look as part of a point's row; `fill` makes it hollow."""
        return {"fill": fill or self.colour, "stroke": self.colour}


def styles(result: StudyResult) -> dict[str, Style]:
    """The style of every arm, by its name."""
    found: dict[str, Style] = {}
    variants = 0
    for arm in result.arms:
        if arm.role == "baseline":
            # Drawn last and thin, so that a variant that lies beneath it still shows its edges.
            found[arm.name] = Style(_BASELINE, _DASHES[0], 1.4)
        elif arm.role == "placebo":
            found[arm.name] = Style(_PLACEBO, (4, 3))
        else:
            found[arm.name] = numbered_style(variants)
            variants += 1
    return found


def numbered_style(number: int) -> Style:
    """The look of the line with this number, from 0, where no arm is meant."""
    lap, place = divmod(number, len(_VARIANTS))
    return Style(_VARIANTS[place], _DASHES[lap % len(_DASHES)])
