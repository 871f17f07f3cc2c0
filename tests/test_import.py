"""Importing the package is instant, and it still says what it has."""

import subprocess
import sys

import blocklab


def output_of(script: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_importing_blocklab_imports_no_torch() -> None:
    heavy = "import sys, blocklab; print({'torch', 'pydantic', 'numpy'} & set(sys.modules))"
    assert output_of(heavy) == "set()"


def test_dir_lists_every_public_name_before_and_after_it_is_used() -> None:
    script = "import blocklab; print(*dir(blocklab))"
    names = output_of(script).split()
    assert {"ModelConfig", "Transformer", "count", "generate", "inspect", "presets"} <= set(names)
    assert names == sorted(blocklab.__all__) == dir(blocklab)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(blocklab, "transformer_block")
