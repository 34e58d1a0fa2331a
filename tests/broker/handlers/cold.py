"""A gate before the disk, for tests of old messages."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from ternmq.store.disk.file_disk import FileDisk


class Gate:
    """Lets reads of old messages through when it is opened, or fails them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self._reached = threading.Event()
        self.remove = False
        self.reads = 0
        real = FileDisk.read_at

        def read_at(disk: FileDisk, path: Path, at: int, length_bytes: int) -> bytes:
            self.reads += 1
            self._reached.set()
            assert self.opened.wait(60)
            if self.remove:
                return real(disk, path.with_name("gone"), at, length_bytes)
            return real(disk, path, at, length_bytes)

        monkeypatch.setattr(FileDisk, "read_at", read_at)

    async def reached(self) -> None:
        """Return when a read waits before it."""
        assert await asyncio.to_thread(self._reached.wait, 60)
