"""`bl.compare`: a learner's own norm, feed-forward, attention or whole GPT beside ours."""

import math

import torch
from torch import Tensor, nn

from blocklab.comparison.conduct import conduct
from blocklab.comparison.diagnosis import EXACT, Explanation, difference, explained
from blocklab.comparison.gradients import Gradient, gradient
from blocklab.comparison.inventory import frozen, parameter_notes
from blocklab.comparison.learner import Learner
from blocklab.comparison.subject import Subject, subject_of
from blocklab.comparison.verdict import Comparison
from blocklab.comparison.wiring import Mistake
from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.parts.part import PartConfig
from blocklab.parts.positions import PositionsConfig


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
    # Its dice are not the caller's.
    with torch.random.fork_rng(devices=[]):
        return _compared(learner, subject_of(learner, config, d_model, positions))


def _compared(learner: Learner, subject: Subject) -> Comparison:
    learner.give_first_values_back(frozenset().union(*(one.used for one in subject.layouts)))
    behaviour = conduct(learner, subject.probe)
    with torch.no_grad():
        output = learner(subject.probe)
    if not output.ndim or output.shape[-1] != subject.width:
        raise BlocklabError(
            f"{learner.name} gives {tuple(output.shape)} for {tuple(subject.probe.shape)}; "
            f"expected {subject.width} at the end"
        )
    found, plain = explained(subject, output)
    backward = gradient(learner, subject, found) if found.explains else Gradient(math.nan)
    mistakes = (
        *behaviour,
        *frozen(learner, subject, found.layout),
        *_other_roles(found),
        *(found.mistakes if found.explains else ()),
        *backward.mistakes,
    )
    notes = (*_notes(learner, subject, found, output), *backward.notes)
    return Comparison(
        module=learner.name,
        part=subject.name,
        agrees=found.explains and not mistakes and not notes,
        mistakes=mistakes,
        explained=found.explains,
        difference=plain,
        unexplained=found.error,
        gradient_difference=backward.difference,
        parameters={name: found.layout.names.get(name, "") for name in found.layout.tensors},
        notes=notes,
        rounding=_rounding(learner) if found.explains and found.error > EXACT else "",
    )


def _other_roles(found: Explanation) -> tuple[Mistake, ...]:
    """Ours is theirs only where parameters are read as something else than their names say."""
    if not found.against:
        return ()
    read = ", ".join(f"{name or 'its parameter'} as the {role}" for name, role in found.against)
    exchanged = {role for _, role in found.against} == {"query", "key"}
    order = " (are its scores k @ q.T, not q @ k.T?)" if exchanged else ""
    words = f"is ours only with parameters in other roles than their names say: {read}{order}"
    return (Mistake("roles-exchanged", words, {}),)


def _rounding(learner: Learner) -> str:
    """Why outputs agree to the rounding of float32 only."""
    if learner.narrow:
        narrow = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in learner.narrow))
        return f"somewhere yours computes in {narrow}"
    return "a constant or a table of yours is rounded or a little different"


def _notes(
    learner: Learner, subject: Subject, found: Explanation, output: Tensor
) -> tuple[str, ...]:
    notes = [*subject.notes, *parameter_notes(learner, subject, found.layout, found.mistakes)]
    if not bool(output.isfinite().all()):
        notes.append("gives values that are not finite")
    if output.ndim == 3 and output.shape[1] == 1 < subject.probe.shape[1]:
        notes.append("answers the last position only")
    # Within rounding too: a mask may let a little through.
    known = found.error <= EXACT or (found.explains and found.mistakes)
    if not known and _sees_the_future(learner, subject.probe, output):
        notes.append("lets a position see later ones: changing the last changes the first outputs")
    if not found.explains and learner.narrow:
        notes.append(f"is compared in float64, but {_rounding(learner).replace('yours', 'it')}")
    return tuple(notes)


def _sees_the_future(learner: Learner, probe: Tensor, before: Tensor) -> bool:
    """Whether an output changes when a later input does, and only then."""
    if probe.ndim < 2 or probe.shape[1] < 2 or before.shape[1] != probe.shape[1]:
        return False
    other = probe.clone()
    other[:, -1] = probe[:, 0] + (0 if probe.dtype == torch.long else 1.0)
    if torch.equal(other, probe):
        return False
    with torch.no_grad():
        again, after = learner(probe), learner(other)
    same = difference(again, before) <= EXACT
    return same and difference(after[:, :-1], before[:, :-1]) > EXACT
