"""No test here touches the user's cache or the network."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than a few seconds")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("BLOCKLAB_CACHE")
    os.environ["BLOCKLAB_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.pop("BLOCKLAB_CACHE")
    if before is not None:
        os.environ["BLOCKLAB_CACHE"] = before


@pytest.fixture(scope="session")
def published_data() -> Path:
    """The folder with the texts that published figures were made with."""
    folder = os.environ.get("BLOCKLAB_DATA")
    if not folder or not (Path(folder) / "time_machine.txt").is_file():
        pytest.skip("BLOCKLAB_DATA names no folder with time_machine.txt")
    return Path(folder)
