"""The search: which layout, and which mistakes, give the learner's own numbers.

Every try is an experiment in float64. The cheapest explanation that reproduces the outputs to
1e-9 is taken; two mistakes at once are tried when one does not explain them.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blocklab.comparison.layouts import CONTRADICTION, Layout
from blocklab.comparison.subject import Subject
from blocklab.comparison.wiring import Mistake, applies, changed

EXACT = 1e-9
SINGLE = 2e-6
"""How near two computations in float32 come to each other."""
PRICE = CONTRADICTION // 2
PAIR_LAYOUTS = 2


@dataclass(frozen=True)
class Explanation:
    """A layout and the mistakes under which ours gives the learner's output."""

    layout: Layout
    mistakes: tuple[Mistake, ...]
    wiring: Any
    error: float
    """Largest difference of the outputs, relative to the largest output."""
    against: tuple[tuple[str, str], ...] = ()
    """Names of theirs, and what each is read as, where names that fit speak for another layout."""

    @property
    def explains(self) -> bool:
        return self.error <= SINGLE


def explained(subject: Subject, output: Tensor) -> tuple[Explanation, float]:
    """The best explanation of `output`, and how far ours is from it without any mistake.

    Where nothing explains it, the explanation is the layout by name, with the error of the nearest.
    """
    natural = _natural(subject.layouts)
    as_they_are = [_tried(subject, layout, (), output) for layout in natural]
    plain = min(found.error for found in as_they_are)
    if plain <= SINGLE:
        # Rounding alone may explain it: only a single mistake, in this layout, is worth a look.
        near = next(found.layout for found in as_they_are if found.error == plain)
        subject = replace(subject, layouts=(near,))
    best = Explanation(natural[0], (), subject.wiring, float("inf"))
    nearest = best.error
    for layout, mistakes in _hypotheses(subject):
        if len(mistakes) == 2 and plain <= SINGLE:
            continue
        found = _tried(subject, layout, mistakes, output)
        if layout.cost >= natural[0].cost + CONTRADICTION:
            found = replace(found, against=layout.against)
        if found.error <= EXACT:
            return found, plain
        # A later one must be clearly better: rounding is no reason to claim a mistake.
        if found.error < best.error * 0.1:
            best = found
        nearest = min(nearest, found.error)
    if best.explains:
        return best, plain
    return Explanation(natural[0], (), subject.wiring, nearest), plain


def _natural(layouts: Sequence[Layout]) -> list[Layout]:
    """Those that contradict no name for which another one fits; the likeliest first."""
    by_cost = sorted(layouts, key=lambda layout: layout.cost)
    return [one for one in by_cost if one.cost < by_cost[0].cost + CONTRADICTION]


def _hypotheses(subject: Subject) -> Iterator[tuple[Layout, tuple[Mistake, ...]]]:
    """Layouts with no mistake, one, or two at once: the cheapest first."""
    possible = [m for m in subject.mistakes if applies(m, subject.wiring)]
    pairs = [
        pair
        for pair in itertools.combinations(possible, 2)
        if not set(pair[0].changes) & set(pair[1].changes)
    ]
    found: list[tuple[int, Layout, tuple[Mistake, ...]]] = []
    for number, layout in enumerate(subject.layouts):
        found.append((layout.cost, layout, ()))
        found += [(layout.cost + PRICE, layout, (mistake,)) for mistake in possible]
        if number < PAIR_LAYOUTS:
            found += [(layout.cost + 2 * PRICE + 1, layout, pair) for pair in pairs]
    for _, layout, mistakes in sorted(found, key=lambda one: one[0]):
        yield layout, mistakes


def _tried(
    subject: Subject, layout: Layout, mistakes: tuple[Mistake, ...], output: Tensor
) -> Explanation:
    wiring = subject.wiring
    for mistake in mistakes:
        wiring = changed(wiring, mistake.changes)
    try:
        with torch.no_grad():
            ours = subject.compute(subject.probe, layout.tensors, wiring)
        error = difference(ours, output)
    except (RuntimeError, KeyError, IndexError, ValueError):
        # Sizes that this mistake cannot be made with.
        error = float("inf")
    return Explanation(layout, mistakes, wiring, error)


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference where theirs is finite, relative to the largest of theirs."""
    ours = as_answered(ours, theirs)
    if ours.shape != theirs.shape:
        return float("inf")
    known = theirs.isfinite()
    if not bool(known.any()) or not bool(ours[known].isfinite().all()):
        return float("inf")
    size = float(theirs[known].abs().max()) or 1.0
    return float((ours[known] - theirs[known]).abs().max()) / size


def as_answered(ours: Tensor, theirs: Tensor) -> Tensor:
    """Ours (B, T, ...), or its last position where theirs answers only that."""
    last = ours.ndim == 3 and theirs.ndim == 3 and theirs.shape[1] == 1 < ours.shape[1]
    return ours[:, -1:] if last else ours
