"""Gradients of a module beside ours, and where its graph is cut when they differ.

A cut leaves every output as it is. It is found as the other mistakes are: made in ours too.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from blocklab.comparison.conduct import shown
from blocklab.comparison.diagnosis import EXACT, Explanation, as_answered
from blocklab.comparison.learner import Learner
from blocklab.comparison.subject import Subject
from blocklab.comparison.wiring import Mistake, applies, changed
from blocklab.errors import BlocklabError

SAME = 1e-4
"""How near gradients come to each other that are computed in float32 somewhere."""
INPUT = "the input"

Gradients: TypeAlias = dict[str, Tensor]
"""By the parameter's name in the learner's module, and the input's."""

NO_GRAPH = Mistake(
    "no-graph",
    "gives an output without a graph (torch.no_grad, detach, .data, .item or numpy): no gradient "
    "comes back from it, so nothing in it trains",
    {},
)


@dataclass(frozen=True)
class Gradient:
    """What came of comparing gradients."""

    difference: float
    """Largest relative difference once the mistakes are made in ours; inf where theirs has none."""
    mistakes: tuple[Mistake, ...] = ()
    notes: tuple[str, ...] = ()


def gradient(learner: Learner, subject: Subject, found: Explanation) -> Gradient:
    """Compare gradients with respect to every parameter, and to the input where it has any."""
    probe = subject.probe.clone()
    leaves: dict[str, Tensor] = dict(learner.parameters)
    if probe.is_floating_point():
        leaves[INPUT] = probe.requires_grad_()
    leaves = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    try:
        theirs = learner(probe)
    except BlocklabError as error:
        return Gradient(math.inf, (_failure(learner, str(error)),))
    if not theirs.requires_grad:
        return Gradient(math.inf, (NO_GRAPH,))
    direction = _direction(theirs)

    def ours(wiring: Any) -> Tensor:
        return as_answered(subject.compute(probe, found.layout.tensors, wiring), theirs)

    plain = _gradients(ours(found.wiring), leaves, direction)
    # What ours has no use for is told among the parameters.
    leaves = {name: leaves[name] for name in plain}
    try:
        there = _all_gradients(theirs, leaves, direction)
    except Exception as error:  # A backward pass may be the learner's own.
        return Gradient(math.inf, (_failure(learner, str(error)),))
    if not bool(theirs.isfinite().all()):
        return Gradient(math.nan)
    broken = [name for name, g in there.items() if not bool(g.isfinite().all())]
    if broken:
        note = f"gives a gradient that is not finite to {shown(broken)}"
        return Gradient(math.inf, notes=(note,))
    # A gradient that is zero but for rounding (a key's bias) has no size of its own.
    least = 1e-4 if found.error <= EXACT else 0.1
    differences = _differences(plain, there, least)
    worst = max(differences.values(), default=0.0)
    if worst <= SAME:
        return Gradient(worst)
    for mistakes, wiring in _ways_to_cut(subject.cuts, found.wiring):
        mine = _all_gradients(ours(wiring), leaves, direction)
        left = max(_differences(mine, there, least).values())
        if left <= SAME:
            return Gradient(left, mistakes)
    return Gradient(worst, notes=(_unexplained(differences, there),))


def _direction(output: Tensor) -> Tensor:
    """A random direction to differentiate in, nothing where the output is not finite."""
    generator = torch.Generator().manual_seed(2)
    direction = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    return torch.where(output.isfinite(), direction, 0.0)


def _gradients(output: Tensor, leaves: Mapping[str, Tensor], direction: Tensor) -> Gradients:
    """Those of the leaves that the output depends on."""
    if not output.requires_grad:
        return {}
    # Retained, for tensors cut out of a larger one share a piece of graph from try to try.
    found = torch.autograd.grad(
        output,
        list(leaves.values()),
        direction,
        retain_graph=True,
        allow_unused=True,
    )
    pairs = zip(leaves, found, strict=True)
    return {name: g.to_dense() for name, g in pairs if g is not None}


def _all_gradients(output: Tensor, leaves: Mapping[str, Tensor], direction: Tensor) -> Gradients:
    """Those of every leaf, zero where the output does not depend on it."""
    found = _gradients(output, leaves, direction)
    return {name: found.get(name, torch.zeros_like(leaf)) for name, leaf in leaves.items()}


def _differences(ours: Gradients, theirs: Gradients, least: float) -> dict[str, float]:
    """Each leaf's largest difference, relative to its largest gradient in ours.

    No gradient counts as smaller than `least` of the largest of all.
    """
    sizes = {name: float(g.abs().max()) for name, g in ours.items()}
    floor = max(least * max(sizes.values(), default=0.0), 1e-30)
    return {
        name: float((g - theirs[name]).abs().max()) / max(sizes[name], floor)
        for name, g in ours.items()
    }


def _ways_to_cut(
    mistakes: Sequence[Mistake], wiring: Any
) -> Iterator[tuple[tuple[Mistake, ...], Any]]:
    """One cut, then two, each with the wiring that it makes."""
    possible = [mistake for mistake in mistakes if applies(mistake, wiring)]
    for mistake in possible:
        yield (mistake,), changed(wiring, mistake.changes)
    for pair in itertools.combinations(possible, 2):
        if not set(pair[0].changes) & set(pair[1].changes):
            yield pair, changed(wiring, {**pair[0].changes, **pair[1].changes})


def _unexplained(differences: Mapping[str, float], theirs: Gradients) -> str:
    other = sorted(
        (name for name, apart in differences.items() if apart > SAME),
        key=lambda name: -differences[name],
    )
    without = [name for name in other if not bool(theirs[name].any())]
    none_at_all = f", and none at all to {shown(without)}" if without else ""
    return (
        f"gives other gradients to {shown(other)} (by up to {max(differences.values()):.2g})"
        f"{none_at_all}: something is detached, or a backward pass of its own is wrong"
    )


def _failure(learner: Learner, error: str) -> Mistake:
    """Why it cannot be trained, from what torch says."""
    if "in-place" not in error and "inplace" not in error:
        first = (error.splitlines() or ["no reason is given"])[0].rstrip(".")
        return Mistake("backward-fails", f"cannot be trained: {first}", {})
    written = ", ".join(learner.overwriting[:4]) or "x += …"
    return Mistake(
        "overwrites-what-backward-needs",
        f"cannot be trained: an operation in place ({written}) overwrites what the backward pass "
        "needs; write x = x + …, which makes a new tensor, and leave out inplace=True",
        {},
    )
