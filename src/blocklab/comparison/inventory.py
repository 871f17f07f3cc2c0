"""Parameters of a module beside ours: those that one of the two lacks, shares, or keeps frozen."""

from collections import defaultdict
from collections.abc import Collection

from blocklab.comparison.conduct import shown
from blocklab.comparison.layouts import Layout
from blocklab.comparison.learner import Learner
from blocklab.comparison.subject import Subject
from blocklab.comparison.wiring import Mistake


def parameter_notes(
    learner: Learner, subject: Subject, layout: Layout, mistakes: Collection[Mistake]
) -> tuple[str, ...]:
    """What differs between the two sets of parameters; notes continue "Yours …"."""
    notes = []
    missing = sorted(subject.expected.keys() - layout.tensors.keys())
    if "no-output-projection" in {mistake.name for mistake in mistakes}:
        missing = [name for name in missing if ".output." not in f".{name}"]
    if missing:
        hint = learner.no_parameter({subject.expected[name] for name in missing})
        notes.append(f"lacks {shown(missing)}, which ours has{hint}")
    parameters = learner.parameters
    # What is frozen and stands for nothing of ours is a constant, such as a mask or a table.
    constants = {id(parameters[name]) for name in learner.frozen}
    extra = [
        name
        for name, ids in layout.sources.items()
        if name not in subject.expected and not ids <= constants
    ]
    extra += [
        f"{name} {tuple(p.shape)}"
        for name, p in parameters.items()
        if id(p) not in layout.used | constants
    ]
    if extra:
        notes.append(f"has {shown(sorted(extra))}, which ours has not")
    return (*notes, *_other_shapes(subject, layout), *_shared(layout))


def frozen(learner: Learner, subject: Subject, layout: Layout) -> tuple[Mistake, ...]:
    """Parameters that ours trains, and that ask for no gradient in theirs."""
    ours = (ids for name, ids in layout.sources.items() if name in subject.expected)
    trained = frozenset().union(*ours)
    parameters = learner.parameters.items()
    names = [name for name, p in parameters if name in learner.frozen and id(p) in trained]
    if not names:
        return ()
    which = "any of its parameters" if len(names) == len(learner.parameters) else shown(names)
    words = f"does not train {which}: requires_grad is False there"
    return (Mistake("frozen-parameters", words, {}),)


def _other_shapes(subject: Subject, layout: Layout) -> list[str]:
    """Such as one number for all dimensions, which broadcasts to the same outputs."""
    return [
        f"has {layout.names[name] or name} of shape {tuple(tensor.shape)} where {name} of ours has "
        f"{subject.expected[name]}"
        for name, tensor in layout.tensors.items()
        if name in subject.expected and tensor.shape != subject.expected[name]
    ]


def _shared(layout: Layout) -> list[str]:
    """One parameter in two places of ours. Drawn at random, two are never equal by chance."""
    alike: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for name, tensor in layout.tensors.items():
        flat = tensor.detach().flatten()
        alike[(tuple(tensor.shape), float(flat[:1].sum()), float(flat.sum()))].append(name)
    shared = [" and ".join(names) for names in alike.values() if len(names) > 1]
    return [f"has one parameter for {shown(shared)}; ours has one for each"] if shared else []
