"""On which nuisance factors a variant's effect depends: initialisation, warm-up and their kin.

Every arm is trained in the same cells, one for each combination of the factors' levels. The
headline is the effect averaged over cells, seed by seed; a claim about a factor has a test of
its own. Signs are never counted, and the best cell of one arm never meets another's.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from blocklab.errors import BlocklabError
from blocklab.study.rates import Losses, diverged
from blocklab.study.statistics import SIGNIFICANT, Estimate, holm, mean, paired
from blocklab.study.verdict import FEWEST_SEEDS, enough_pairs, require_slack
from blocklab.study.wording import interval_text

Dependence = Literal["flips", "size depends", "not shown to depend"]


@dataclass(frozen=True)
class Cell:
    """One variant against the baseline under one combination of the nuisance factors."""

    levels: Mapping[str, str]
    """Level by factor; every cell names the same factors."""
    differences: Losses
    """Variant's loss minus the baseline's by seed, nats; None or not finite where one diverged."""
    slack_variant: float = 0.0
    slack_baseline: float = 0.0
    undecided: str | None = None
    """Why nothing may be claimed here."""

    def __post_init__(self) -> None:
        require_slack(self.name, self.slack_variant + self.slack_baseline, self.undecided)

    @property
    def name(self) -> str:
        return ", ".join(f"{factor} {level}" for factor, level in self.levels.items())


@dataclass(frozen=True)
class FactorFinding:
    """What may be said of one factor."""

    factor: str
    word: Dependence
    levels: tuple[str, ...]
    """`flips`: two of opposite sign; `size depends`: the two whose difference is surest."""
    by_level: Mapping[str, Estimate]
    """The effect at each level, over the combinations that have all levels."""
    p: float | None
    """Of the contrast between levels, adjusted for the pairs of levels and (Holm) the factors; 1
    where it is within its slack."""

    @property
    def sentence(self) -> str:
        match self.word:
            case "flips":
                signs = " and ".join(self._at(level) for level in self.levels)
                return f"flips with {self.factor}: {signs}"
            case "size depends":
                sizes = " and ".join(self._at(level) for level in self.levels)
                return f"size depends on {self.factor}: {sizes} (p = {self.p:.2g})"
            case "not shown to depend":
                if self.p is None:
                    return f"whether it depends on {self.factor} could not be tested"
                return f"not shown to depend on {self.factor} (p = {self.p:.2g})"

    def _at(self, level: str) -> str:
        return f"{self.by_level[level].mean:+.4f} nats at {level}"


@dataclass(frozen=True)
class NuisanceFinding:
    """The effect over all cells, whether it holds in each, and on what it depends."""

    headline: Estimate | None
    """Per-seed effects averaged over the matched cells; None under two complete seeds."""
    holds: bool
    factors: tuple[FactorFinding, ...]
    """As first named by the cells; empty where nothing may be claimed."""
    n_cells: int
    left_out: tuple[str, ...]
    """Cells without enough complete pairs, or undecided; *holds* is then not said."""
    exploratory: bool

    @property
    def sentence(self) -> str:
        if self.headline is None:
            return "no comparison over nuisances: too few complete pairs"
        read = self.n_cells - len(self.left_out)
        over = f"{read} of {self.n_cells}" if self.left_out else "all"
        effect = f"{self.headline.mean:+.4f} nats over {over} settings"
        said = f"{effect} ({interval_text(self.headline)})"
        return f"exploratory: {said}" if self.exploratory else ". ".join([said, *self.remarks()])

    def remarks(self, but: Sequence[FactorFinding] = ()) -> list[str]:
        """What is to be said beside the effect, `but` for some factors: a sentence each."""
        said = [f"holds in each of {self.n_cells} settings"] if self.holds else []
        said += [factor.sentence for factor in self.factors if factor not in but]
        if self.left_out:
            said.append(f"left out: {'; '.join(self.left_out)}")
        return said


def headline(cells: Sequence[Cell], seeds: Sequence[int]) -> Estimate | None:
    """Effect averaged over the matched cells seed by seed; its p value enters the study's family.

    A cell is matched when it is decided and 0.8 of its planned pairs are complete; a seed counts
    when it is complete in every matched cell, as an average over other cells for some seeds would
    mix seeds with cells. None when fewer than 0.8 of the planned seeds are.
    """
    matched = _matched(cells, seeds)
    complete = _complete(matched)
    if not enough_pairs(len(complete), len(seeds)):
        return None
    return _average([(1.0, matched)], complete)


def nuisance_finding(
    cells: Sequence[Cell], seeds: Sequence[int], significant: bool
) -> NuisanceFinding:
    """What the cells of one variant say.

    Args:
        cells: every combination of levels that was trained, each once.
        seeds: those that every cell planned, fixed beforehand; under five nothing is claimed.
        significant: whether the headline's p value, after Holm over the variants, is below 0.05,
            and its mean larger than its slack.

    *holds*: significant, and one-sided p < 0.05 with the headline's sign in every cell. *flips*:
    opposite signs at two levels, each one-sided p < 0.05/F over F factors; a factor with L > 2
    levels has L - 1 chances to find one sign beside a true other, and pays for them. *size
    depends*: paired t on the per-seed contrast of two levels, times the pairs of levels, Holm
    over the factors. Slack of an arm counts against each of them, and none is said of an effect
    or a contrast that is within it.

    Raises BlocklabError when cells name different factors or one combination comes twice.
    """
    factors = _factors(cells)
    matched = _matched(cells, seeds)
    overall = headline(cells, seeds)
    exploratory = len(seeds) < FEWEST_SEEDS
    claims = overall is not None and not exploratory
    names = {cell.name for cell in matched}
    return NuisanceFinding(
        headline=overall,
        holds=(
            claims
            and significant
            and overall is not None
            and len(matched) == len(cells)
            and all(_agrees(cell, overall.mean) for cell in matched)
        ),
        factors=_findings(factors, matched) if claims else (),
        n_cells=len(cells),
        left_out=tuple(cell.name for cell in cells if cell.name not in names),
        exploratory=exploratory,
    )


def _factors(cells: Sequence[Cell]) -> list[str]:
    """Factors with two levels or more."""
    if not cells:
        raise BlocklabError("nuisances: expected one cell or more, found none")
    names = list(cells[0].levels)
    for cell in cells:
        if set(cell.levels) != set(names):
            raise BlocklabError(f"nuisances: cell '{cell.name}' does not name {names}")
    combinations = {tuple(cell.levels[name] for name in names) for cell in cells}
    if len(combinations) < len(cells):
        raise BlocklabError("nuisances: a combination of levels comes twice")
    return [name for name in names if len({cell.levels[name] for cell in cells}) > 1]


def _matched(cells: Sequence[Cell], seeds: Sequence[int]) -> list[Cell]:
    """Decided cells with enough complete pairs, holding only those pairs of planned seeds."""
    matched = []
    for cell in cells:
        complete = {s: d for s in seeds if not diverged(d := cell.differences.get(s))}
        if cell.undecided is None and enough_pairs(len(complete), len(seeds)):
            matched.append(replace(cell, differences=complete))
    return matched


def _complete(matched: Sequence[Cell]) -> list[int]:
    """Seeds that ended well in every cell."""
    return sorted(set.intersection(*(set(cell.differences) for cell in matched))) if matched else []


def _values(cells: Sequence[Cell], seeds: Iterable[int]) -> list[float]:
    """Mean of the cells' differences, seed by seed."""
    table = [[cell.differences[seed] for cell in cells] for seed in seeds]
    return [mean([d for d in row if d is not None]) for row in table]


def _agrees(cell: Cell, sign: float) -> bool:
    values = _values([cell], cell.differences)
    here = paired(values, cell.slack_variant, cell.slack_baseline)
    return here.p_with_sign(sign) < SIGNIFICANT and not here.within_slack


def _average(groups: Sequence[tuple[float, Sequence[Cell]]], seeds: Sequence[int]) -> Estimate:
    """Weighted sum of the groups' averages, seed by seed; a negative weight turns slack round."""
    below = above = 0.0
    for weight, cells in groups:
        variant = mean([cell.slack_variant for cell in cells])
        baseline = mean([cell.slack_baseline for cell in cells])
        below += weight * variant if weight > 0 else -weight * baseline
        above += weight * baseline if weight > 0 else -weight * variant
    parts = [[weight * value for value in _values(cells, seeds)] for weight, cells in groups]
    values = [math.fsum(terms) for terms in zip(*parts, strict=True)]
    return paired(values, below, above)


def _balanced(factor: str, cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Cells by level of the factor, only of combinations of the others that have every level."""
    levels = list(dict.fromkeys(cell.levels[factor] for cell in cells))
    strata: dict[tuple[tuple[str, str], ...], list[Cell]] = {}
    for cell in cells:
        others = tuple(sorted(item for item in cell.levels.items() if item[0] != factor))
        strata.setdefault(others, []).append(cell)
    whole = [cell for stratum in strata.values() if len(stratum) == len(levels) for cell in stratum]
    by_level = {level: [c for c in whole if c.levels[factor] == level] for level in levels}
    return by_level if whole and len(levels) > 1 else {}


def _findings(factors: Sequence[str], matched: Sequence[Cell]) -> tuple[FactorFinding, ...]:
    seeds = _complete(matched)
    balanced = [_balanced(factor, matched) for factor in factors]
    contrasts = [_contrasts(by_level, seeds) for by_level in balanced]
    # A factor that cannot be tested counts in the family all the same.
    raw = [min(1.0, len(c) * min(c.values())) if c else 1.0 for c in contrasts]
    return tuple(
        _finding(
            factor,
            {level: _average([(1.0, here)], seeds) for level, here in by_level.items()},
            contrast,
            float(p),
            SIGNIFICANT / len(factors),
        )
        for factor, by_level, contrast, p in zip(
            factors, balanced, contrasts, holm(raw), strict=True
        )
    )


def _contrasts(
    by_level: Mapping[str, Sequence[Cell]], seeds: Sequence[int]
) -> dict[tuple[str, str], float]:
    """p value of the per-seed difference between each two levels; 1 within its slack."""
    found = {
        (first, second): _average([(1.0, by_level[first]), (-1.0, by_level[second])], seeds)
        for first, second in itertools.combinations(by_level, 2)
    }
    return {pair: 1.0 if one.within_slack else one.p for pair, one in found.items()}


def _finding(
    factor: str,
    by_level: Mapping[str, Estimate],
    contrast: Mapping[tuple[str, str], float],
    p: float,
    threshold: float,
) -> FactorFinding:
    if not by_level:
        return FactorFinding(factor, "not shown to depend", (), {}, None)
    opposite = _opposite(by_level, threshold / (len(by_level) - 1))
    if opposite:
        return FactorFinding(factor, "flips", opposite, by_level, p)
    if p < SIGNIFICANT:
        apart = min(contrast, key=lambda pair: contrast[pair])
        return FactorFinding(factor, "size depends", apart, by_level, p)
    return FactorFinding(factor, "not shown to depend", (), by_level, p)


def _opposite(by_level: Mapping[str, Estimate], threshold: float) -> tuple[str, ...]:
    """The levels with the surest positive and the surest negative effect, if both are sure."""
    shown = [level for level, effect in by_level.items() if not effect.within_slack]
    if not shown:
        return ()
    up = min(shown, key=lambda level: by_level[level].p_positive)
    down = min(shown, key=lambda level: by_level[level].p_negative)
    sure = max(by_level[up].p_positive, by_level[down].p_negative) < threshold
    return (up, down) if sure else ()
