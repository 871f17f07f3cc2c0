"""`bl.compare`: a learner's own norm, feed-forward, attention or whole GPT beside ours."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blocklab.comparison.diagnosis import EXACT, Explanation, difference, explained
from blocklab.comparison.learner import Learner
from blocklab.comparison.subject import Subject, subject_of
from blocklab.comparison.wiring import Mistake
from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.parts.part import PartConfig
from blocklab.parts.positions import PositionsConfig

DROPOUT = Mistake(
    "dropout-in-evaluation",
    "drops out in evaluation too: pass training=self.training, or use nn.Dropout",
    {},
)


@dataclass(frozen=True)
class Comparison:
    """What came of comparing a module with ours. Prints as words."""

    module: str
    part: str
    agrees: bool
    """Outputs, gradients and parameters are ours, to the rounding of float32 at least."""
    mistakes: tuple[Mistake, ...]
    """Decisions taken otherwise, by name; together they explain the outputs."""
    explained: bool
    """Whether ours with these mistakes gives the module's outputs."""
    difference: float
    """Largest difference of the outputs from ours, relative to the largest output."""
    unexplained: float
    """The same, once the mistakes are made in ours too."""
    gradient_difference: float
    """Largest relative difference of a parameter's gradient then; NaN while unexplained."""
    parameters: dict[str, str]
    """Our parameter's name, and where in the module it was found."""
    notes: tuple[str, ...]
    """Further differences: parameters that one of the two lacks, widths, gradients."""

    @property
    def names(self) -> tuple[str, ...]:
        """The mistakes' names."""
        return tuple(mistake.name for mistake in self.mistakes)

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
        if self.agrees:
            rounded = self.difference > EXACT
            return (
                f"{start} agree: outputs to {self.difference:.0e}, gradients to "
                f"{self.gradient_difference:.0e}"
                f"{'; somewhere yours computes in float32' if rounded else ''}."
            )
        if self.difference <= EXACT:
            return f"{start} give the same outputs, but differ:"
        apart = f"{start} part: outputs differ by up to {self.difference:.2g} of the largest."
        if math.isinf(self.difference):
            apart = f"{start} part: ours cannot be computed with what yours has."
        if not self.explained:
            return (
                f"{apart} None of the known mistakes explains it (nearest: {self.unexplained:.2g})."
            )
        return f"{apart} With what follows, ours gives yours to {self.unexplained:.0e}:"


def compare(
    module: nn.Module,
    config: PartConfig | ModelConfig,
    *,
    d_model: int | None = None,
    positions: PositionsConfig | None = None,
) -> Comparison:
    """Compare a learner's module with the part that `config` describes.

    The module takes (B, T, d_model), or tokens (B, T) for a ModelConfig; it may also ask for a
    mask. A copy of it is drawn anew in float64 and tried beside ours on the same values: as it is,
    then with every known mistake made in ours, alone and in pairs. `d_model` defaults to the width
    that the module accepts; `positions` is for attention that rotates. The module stays as it was.

    Raises BlocklabError when the module cannot be called or none of its parameters fit.
    """
    if not isinstance(module, nn.Module):
        raise BlocklabError(f"expected a torch module, found {type(module).__name__}")
    learner = Learner(module)
    subject = subject_of(learner, config, d_model, positions)
    learner.notice_dropout(subject.probe)
    with torch.no_grad():
        output = learner(subject.probe)
    if output.shape[-1] != subject.width:
        raise BlocklabError(
            f"{learner.name} gives {tuple(output.shape)} for {tuple(subject.probe.shape)}; "
            f"expected {subject.width} at the end"
        )
    found, plain = explained(subject, output)
    mistakes = found.mistakes if found.explains else ()
    if learner.drops_in_evaluation:
        mistakes = (DROPOUT, *mistakes)
    notes = _notes(learner, subject, found, output)
    gradient = _gradient_difference(learner, subject, found) if found.explains else math.nan
    if gradient > 1e-4:
        notes = (*notes, f"has other gradients (by up to {gradient:.2g}): is something detached?")
    return Comparison(
        module=learner.name,
        part=subject.name,
        agrees=found.explains and not mistakes and not notes,
        mistakes=mistakes,
        explained=found.explains,
        difference=plain,
        unexplained=found.error,
        gradient_difference=gradient,
        parameters={name: found.layout.names.get(name, "") for name in found.layout.tensors},
        notes=notes,
    )


def _notes(
    learner: Learner, subject: Subject, found: Explanation, output: Tensor
) -> tuple[str, ...]:
    notes = list(subject.notes)
    known = set(found.layout.tensors)
    explained_away = {"no-output-projection"} & {m.name for m in found.mistakes}
    missing = sorted(subject.expected - known)
    if missing and not explained_away:
        notes.append(f"lacks {_listed(missing)}, which ours has")
    extra = sorted(known - subject.expected)
    if extra:
        notes.append(f"has {_listed(extra)}, which ours has not")
    if not bool(output.isfinite().all()):
        notes.append("gives values that are not finite")
    if output.ndim == 3 and output.shape[1] == 1 < subject.probe.shape[1]:
        notes.append("answers the last position only")
    if not found.explains and _sees_the_future(learner, subject.probe):
        notes.append("lets a position see later ones: changing the last changes the first outputs")
    return tuple(notes)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


def _sees_the_future(learner: Learner, probe: Tensor) -> bool:
    """Whether an output changes when a later input does."""
    if probe.ndim < 2 or probe.shape[1] < 2:
        return False
    other = probe.clone()
    other[:, -1] = probe[:, 0] + (0 if probe.dtype == torch.long else 1.0)
    if torch.equal(other, probe):
        return False
    with torch.no_grad():
        before, after = learner(probe), learner(other)
    if before.shape[1] != probe.shape[1]:
        return False
    return difference(after[:, :-1], before[:, :-1]) > EXACT


def _gradient_difference(learner: Learner, subject: Subject, found: Explanation) -> float:
    """Largest relative difference over the parameters' gradients of one random direction."""
    parameters = list(learner.parameters.values())
    ours = subject.compute(subject.probe, found.layout.tensors, found.wiring)
    theirs = learner(subject.probe)
    if theirs.shape != ours.shape or not theirs.requires_grad or not ours.requires_grad:
        return 0.0
    generator = torch.Generator().manual_seed(2)
    direction = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
    direction = torch.where(theirs.isfinite(), direction, 0.0)
    gradients = [
        (torch.zeros_like(p) if a is None else a, torch.zeros_like(p) if b is None else b)
        for p, a, b in zip(
            parameters,
            torch.autograd.grad(ours, parameters, direction, allow_unused=True),
            torch.autograd.grad(theirs, parameters, direction, allow_unused=True),
            strict=True,
        )
    ]
    largest = max(float(a.abs().max()) for a, _ in gradients)
    # A gradient that is zero but for rounding (a key's bias) has no size of its own.
    sizes = [max(float(a.abs().max()), 1e-4 * largest, 1e-30) for a, _ in gradients]
    worst = max(
        float((a - b).abs().max()) / size for (a, b), size in zip(gradients, sizes, strict=True)
    )
    return worst if math.isfinite(worst) else 0.0
