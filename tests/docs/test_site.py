"""The pages of the documentation name what there is, and say of it what holds."""

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from blocklab.model import presets
from blocklab.study.plan import plan
from blocklab.study.study import Study
from blocklab.study.verdict import Word
from tests.study.test_study import TEXT

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STUDY = (DOCS / "study.md").read_text(encoding="utf-8")
PAGES = sorted(DOCS.glob("**/*.md"))


def nav_pages(items: list[dict[str, Any]]) -> list[str]:
    found: list[str] = []
    for item in items:
        for where in item.values():
            found += nav_pages(where) if isinstance(where, list) else [where]
    return found


def addressed(identifier: str) -> object:
    """What a page includes by its dotted name."""
    names = identifier.split(".")
    for n in range(len(names), 0, -1):
        try:
            found: object = importlib.import_module(".".join(names[:n]))
        except ModuleNotFoundError:
            continue
        for name in names[n:]:
            found = getattr(found, name)
        return found
    raise AssertionError(identifier)


def test_every_page_can_be_reached() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    listed = {DOCS / page for page in nav_pages(site["nav"])}
    linked = {DOCS / where for where in re.findall(r"\((examples/[^)#]+\.md)", index())}
    assert listed | linked == set(PAGES)


def index() -> str:
    return (DOCS / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_what_a_page_includes_is_there_and_says_what_it_is(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for identifier in re.findall(r"^::: (\S+)$", text, re.MULTILINE):
        assert addressed(identifier).__doc__, identifier
    for block in re.findall(r"^::: (\S+)\n    options:\n((?: {6,}.*\n)+)", text, re.MULTILINE):
        for member in yaml.safe_load(block[1]).get("members", ()):
            assert getattr(addressed(block[0]), member).__doc__, member
    for where in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / where).exists(), where


def test_every_public_name_is_in_the_reference() -> None:
    import blocklab

    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    included = set(re.findall(r"^::: \S*?(\w+)$", text, re.MULTILINE))
    missing = set(blocklab.__all__) - included - {"__version__", "BlocklabError"}
    assert missing <= {"parts", "presets"}, "these have a page or a section by hand"


def test_the_study_on_the_page_can_be_planned_with_each_of_its_conditions() -> None:
    whole, *conditions = re.findall(r"```yaml\n(.*?)```", STUDY, re.DOTALL)
    study = yaml.safe_load(whole)
    assert plan(Study.parse(study), TEXT).arms
    told = [yaml.safe_load(condition) for condition in conditions]
    assert [next(iter(one)) for one in told] == ["nuisances", "ladder", "interactions"]
    for one in told[:2]:
        assert plan(Study.parse(study | one), TEXT).arms
    one, other, both = next(iter(told[2]["interactions"].values()))
    changes = {one: {"block.norm.kind": "layer"}, other: {"block.placement": "post"}}
    changes[both] = changes[one] | changes[other]
    assert plan(Study.parse(study | told[2] | {"variants": changes}), TEXT).arms


def test_every_word_of_a_verdict_is_explained() -> None:
    explained = {word.removesuffix(" within δ") for word in re.findall(r"\*([a-z δ]+)\*", STUDY)}
    assert set(get_args(Word)) <= explained


def test_every_preset_is_named() -> None:
    page = (DOCS / "reference" / "config.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9_]+)`", page))
    assert {name.replace("-", "_") for name in presets.names()} <= named
