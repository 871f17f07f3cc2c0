from pathlib import Path

import pytest

from blocklab.data.cache import (
    default_cache,
    digest,
    read_json,
    writable_cache,
)
from blocklab.errors import BlocklabError


def test_the_environment_names_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BLOCKLAB_CACHE", str(tmp_path))
    assert default_cache() == tmp_path
    monkeypatch.delenv("BLOCKLAB_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache" / "blocklab"


def test_an_unwritable_default_gives_way_to_the_temporary_folder_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file, where a folder is wanted")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("BLOCKLAB_CACHE", str(blocked / "cache"))
    folder, notes = writable_cache(None)
    assert folder.parent == tmp_path / "temporary"
    assert str(blocked) in notes[0] and str(folder) in notes[0]
    with pytest.raises(BlocklabError, match="cannot be written"):
        writable_cache(blocked / "cache")  # asked for outright: no silent substitute


def test_a_broken_json_file_reads_as_none(tmp_path: Path) -> None:
    for content in ("{", "[]", ""):
        (tmp_path / "a").write_text(content)
        assert read_json(tmp_path / "a") is None
    assert read_json(tmp_path / "gone") is None


def test_a_digest_tells_values_and_types_apart() -> None:
    assert digest("a", 1) == digest("a", 1)
    assert len({digest("a", 1), digest("a", "1"), digest("a1"), digest(["a", 1])}) == 4
