"""The study that a command line asks for."""

from pathlib import Path

from blocklab.cli.options import settings, variants
from blocklab.errors import BlocklabError
from blocklab.study.shipped import DEFAULT, find_study
from blocklab.study.study import Study


def asked_study(
    study: str | None,
    budget: str | None,
    corpus: str | None,
    seeds: str | None,
    changes: list[str] | None,
    further: list[str] | None,
    encoding: str | None = None,
) -> Study:
    """A shipped question or a file, at a budget, with the command line's changes.

    Raises BlocklabError for whatever of it is wrong.
    """
    asked = find_study(study or DEFAULT)
    if budget is not None:
        asked = asked.at_budget(budget)
    changed = settings(changes)
    for path, value, option in (
        ("data.corpus", corpus, "--corpus"),
        ("data.encoding", encoding, "--encoding"),
    ):
        if value is not None and changed.setdefault(path, value) != value:
            raise BlocklabError(f"--set {path}: given twice, once as {option}; give one")
    asked = asked.with_settings(changed).with_variants(variants(further))
    if seeds is not None:
        asked = Study.parse(asked.plain() | {"seeds": _count(seeds)})
    return asked


def _count(seeds: str) -> int | str:
    if seeds == "two-look":
        return seeds
    if seeds.isdecimal() and int(seeds) > 0:
        return int(seeds)
    raise BlocklabError(f"--seeds {seeds}: expected a whole number above 0, or two-look")


def default_folder(study: str | None, asked: Study) -> Path:
    """`out/NAME-BUDGET` where the command runs."""
    return Path("out") / f"{Path(study or DEFAULT).stem}-{asked.budget}"
