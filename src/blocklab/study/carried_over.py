"""What a variant leaves of the baseline without saying so."""

from collections.abc import Iterable

from blocklab.study.plan import Plan


def carried_over(cell: Plan, name: str) -> str:
    """What an arm's changes of kind keep of the baseline, and which layers keep what is stated for
    them alone: the end of a sentence, empty where there is neither.
    """
    baseline = cell.arms[0]
    changes = next(arm.changes for arm in cell.arms if arm.name == name)
    model = {path: value for path, value in changes.items() if not path.startswith("training.")}
    kept = "; ".join(found.sentence for found in baseline.config.kept(model))
    return (f"; of the baseline's, {kept}" if kept else "") + _excepted(cell, name, model)


def _excepted(cell: Plan, name: str, paths: Iterable[str]) -> str:
    """Where an exception of some layers wins over what an arm sets for all."""
    config = next(arm.config for arm in cell.arms if arm.name == name)
    said = ""
    for path in paths:
        if layers := config.overridden(path):
            named = ", ".join(map(str, layers))
            said += f"; layer{'s' * (len(layers) > 1)} {named}: {path} as stated for them alone"
    return said
