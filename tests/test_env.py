"""What work on a loop is charged with."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from ternmq.env import WAIT_S_LEAST, UsedTime, thread_faults


class Thread:
    """The clocks of a thread, to be moved by hand."""

    def __init__(self) -> None:
        self.wall = 5.0
        self.cpu = 1.0
        self.faults = 7
        self.asked = 0
        self.used = UsedTime(lambda: self.wall, lambda: self.cpu, self._count)

    def _count(self) -> int:
        self.asked += 1
        return self.faults

    def works(self, seconds: float) -> None:
        self.wall += seconds
        self.cpu += seconds

    def is_off(self, seconds: float, *, faults: int = 0) -> None:
        """Does not run, for so long, in which it waits for so many pages."""
        self.wall += seconds
        self.faults += faults


def test_time_on_the_processor_is_used() -> None:
    """R4"""
    thread = Thread()
    before = thread.used()
    thread.works(0.25)
    assert 0.25 == thread.used() - before


def test_time_in_which_another_program_had_the_processor_is_not_used() -> None:
    """R4"""
    thread = Thread()
    before = thread.used()
    thread.works(0.25)
    thread.is_off(2.0)
    assert 0.25 == thread.used() - before


def test_time_in_which_the_thread_waited_for_pages_of_a_file_is_used() -> None:
    """R4: the loop stands still, whoever's work it is."""
    thread = Thread()
    before = thread.used()
    thread.works(0.25)
    thread.is_off(2.0, faults=3)
    assert 2.25 == thread.used() - before

    thread.is_off(1.0)
    assert 2.25 == thread.used() - before, "a page is not counted twice"


def test_pages_that_came_before_the_work_are_not_part_of_it() -> None:
    """R4: the loop was idle for an hour, and something else of this thread waited for the disk."""
    thread = Thread()
    thread.is_off(3600.0, faults=3)
    before = thread.used()
    thread.works(0.25)
    thread.is_off(2.0)
    assert 0.25 == thread.used() - before


def test_the_system_is_asked_for_pages_only_after_a_long_wait() -> None:
    """R4: the question is a system call."""
    thread = Thread()
    asked = thread.asked
    thread.works(1.0)
    thread.is_off(WAIT_S_LEAST / 2, faults=1)
    thread.used()
    assert asked == thread.asked


def test_a_page_that_must_be_read_from_the_disk_is_counted(tmp_path: Path) -> None:
    """R4: the kernel's count, with a real file."""
    faults = thread_faults()
    path = tmp_path / "segment"
    size = 16 * 1024 * 1024
    path.write_bytes(os.urandom(size))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
            mapped.madvise(mmap.MADV_RANDOM)
            before = faults()
            for at in range(0, size, mmap.PAGESIZE):
                mapped[at]
            if faults() == before:
                pytest.skip("this file system keeps its pages in memory")
    assert faults() - before > 100
