"""Table files in memory."""

from __future__ import annotations

from pathlib import Path


class MemoryFiles:
    """Implements ``ternmq.files.Files``. What is written is on the disk at once: the worst case for all that rests on
    records which are not."""

    def __init__(self) -> None:
        self.saved: dict[Path, bytes] = {}

    def read(self, path: Path) -> bytes:
        try:
            return self.saved[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def write(self, path: Path, data: bytes) -> None:
        self.saved[path] = data

    def move(self, path: Path, to: Path) -> None:
        try:
            self.saved[to] = self.saved.pop(path)
        except KeyError:
            raise FileNotFoundError(path) from None

    def sync_names(self, directory: Path) -> None:
        """They are all there is."""
