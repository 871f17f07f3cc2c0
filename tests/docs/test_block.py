"""The walk through one block is what running the code gives."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_block", DOCS / "build_block.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_page_is_up_to_date(builder: ModuleType) -> None:
    assert (DOCS / "block.md").read_text(encoding="utf-8") == builder.page(), (
        "run: python docs/build_block.py"
    )


def test_every_answer_is_hidden_until_asked_for() -> None:
    page = (DOCS / "block.md").read_text(encoding="utf-8")
    questions = page[page.index("## Questions") :]
    assert questions.count("<details>") == questions.count("</details>") >= 6
    assert "<details open" not in page
