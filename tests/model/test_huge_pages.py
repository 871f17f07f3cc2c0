"""Weights come to lie in huge pages where the system has them, otherwise nothing changes."""

import sys
from pathlib import Path

import pytest
import torch

from blocklab.model import huge_pages
from blocklab.model.huge_pages import SIZE, into_huge_pages

OFFERED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def bytes_in_huge_pages() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(text.split("AnonHugePages:")[1].split()[0]) * 1024


@pytest.mark.skipif(
    not OFFERED.exists() or "[never]" in OFFERED.read_text(), reason="no huge pages are offered"
)
def test_memory_is_moved_and_nothing_else_changes():
    tensors = [torch.arange(n, dtype=torch.float32) for n in (7 * SIZE, 5, 3 * SIZE)]
    places, before = [t.data_ptr() for t in tensors], bytes_in_huge_pages()
    into_huge_pages(tensors)
    if bytes_in_huge_pages() == before:
        pytest.skip("the system had no huge page to give")
    assert bytes_in_huge_pages() - before >= 30 * SIZE  # of the 40 that they fill
    assert [t.data_ptr() for t in tensors] == places
    for tensor in tensors:
        assert torch.equal(tensor, torch.arange(len(tensor), dtype=torch.float32))


def test_a_page_that_is_mostly_something_else_is_left_alone():
    block = torch.empty(4 * SIZE)  # four bytes each
    start = -block.data_ptr() % SIZE // 4
    page = block[start : start + SIZE // 4]
    assert huge_pages._pages([page[: SIZE // 16]]) == []
    found = huge_pages._pages([page[: SIZE // 16], page[SIZE // 16 : SIZE // 8]])
    assert found == [page.data_ptr()]


def test_pages_side_by_side_are_one_run():
    runs = huge_pages._runs([SIZE, 2 * SIZE, 5 * SIZE, 7 * SIZE, 8 * SIZE])
    assert list(runs) == [(SIZE, 3 * SIZE), (5 * SIZE, 6 * SIZE), (7 * SIZE, 9 * SIZE)]
    assert list(huge_pages._runs([])) == []


def test_memory_of_a_file_is_left_alone(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(4 * SIZE))
    mapped = torch.from_file(str(path), shared=True, size=SIZE, dtype=torch.float32)
    assert huge_pages._pages([mapped]) == []
    into_huge_pages([mapped, torch.empty(0), torch.empty(3, device="meta")])


def test_elsewhere_nothing_happens(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(huge_pages, "_pages", lambda tensors: 1 / 0)
    into_huge_pages([torch.ones(3)])
