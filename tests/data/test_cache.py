import os
import time
from pathlib import Path

import pytest

from blocklab.data.cache import (
    default_cache,
    digest,
    new_file,
    new_folder,
    read_json,
    writable_cache,
    write_json,
)
from blocklab.errors import BlocklabError, RunFailed


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


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(KeyboardInterrupt), new_file(path) as partial:
        partial.write_text("half")
        assert read_json(path) == {"a": 1}
        raise KeyboardInterrupt
    assert read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "sets" / "one"
    with pytest.raises(BlocklabError), new_folder(path) as partial:
        (partial / "a").write_text("half")
        assert not path.exists()
        raise BlocklabError("bad text")
    assert list((tmp_path / "sets").iterdir()) == []


def test_the_first_of_two_folders_stays(tmp_path: Path) -> None:
    path = tmp_path / "one"
    with new_folder(path) as late:
        (late / "a").write_text("late")
        with new_folder(path) as early:
            (early / "a").write_text("early")
    assert (path / "a").read_text() == "early"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_a_failed_run_not_bad_input(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="No space left"), new_folder(tmp_path / "one"):
        raise OSError(28, "No space left on device")
    with pytest.raises(RunFailed, match="No space left"), new_file(tmp_path / "two"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_what_killed_processes_left_is_swept_after_a_day_and_not_before(tmp_path: Path) -> None:
    old, young = tmp_path / ".partial-old", tmp_path / ".partial-young"
    old.mkdir(), young.mkdir()
    os.utime(old, (time.time() - 90_000,) * 2)
    with new_folder(tmp_path / "one"):
        pass
    assert young.exists() and not old.exists()


def test_a_broken_json_file_reads_as_none(tmp_path: Path) -> None:
    for content in ("{", "[]", ""):
        (tmp_path / "a").write_text(content)
        assert read_json(tmp_path / "a") is None
    assert read_json(tmp_path / "gone") is None


def test_a_digest_tells_values_and_types_apart() -> None:
    assert digest("a", 1) == digest("a", 1)
    assert len({digest("a", 1), digest("a", "1"), digest("a1"), digest(["a", 1])}) == 4
