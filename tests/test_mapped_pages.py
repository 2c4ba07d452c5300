"""Pages of mapped files are given back, and never what was written into them."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from fx2onnx.files.mapped_pages import give_back

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux alone")
PAGES = 64


def present(array: np.ndarray) -> int:
    """The number of pages of the array's memory that are mapped."""
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        file.seek(8 * (array.ctypes.data // mmap.PAGESIZE))
        entries = np.frombuffer(file.read(8 * PAGES), np.uint64)
    return int(np.count_nonzero(entries >> np.uint64(63)))


@pytest.fixture
def mapped(tmp_path: Path) -> np.ndarray:
    """A private mapping of a file, all of its pages read."""
    content = np.arange(PAGES * mmap.PAGESIZE, dtype=np.uint32).astype(np.uint8)
    content.tofile(tmp_path / "file")
    found = np.memmap(tmp_path / "file", np.uint8, mode="c")
    assert found.sum() == content.sum(dtype=np.uint64)
    return found


def test_pages_that_were_read_are_given_back_and_come_again(mapped: np.ndarray) -> None:
    before = mapped.copy()
    assert present(mapped) == PAGES
    give_back(mapped.ctypes.data, mapped.nbytes)
    assert present(mapped) == 0
    np.testing.assert_array_equal(mapped, before)


def test_only_whole_pages_are_given_back(mapped: np.ndarray) -> None:
    give_back(mapped.ctypes.data + 1, 3 * mmap.PAGESIZE)
    assert present(mapped) == PAGES - 2
    give_back(mapped.ctypes.data + 1, 10)
    assert present(mapped) == PAGES - 2


def test_what_was_written_into_stays(mapped: np.ndarray) -> None:
    mapped[5 * mmap.PAGESIZE] ^= 255
    before = mapped.copy()
    give_back(mapped.ctypes.data, mapped.nbytes)
    assert present(mapped) == PAGES
    np.testing.assert_array_equal(mapped, before)


def test_memory_of_no_file_stays() -> None:
    own = np.ones(PAGES * mmap.PAGESIZE, np.uint8)
    give_back(own.ctypes.data, own.nbytes)
    assert own.all()
