"""A small disk of its own, which a test can fill to the last byte."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SIZE_BYTES = 16 << 20


class Tmpfs:
    """A mounted file system of 16 MiB, and a file on it that takes up what the test is not to have."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"
        self._ballast_bytes = 0

    def fill(self, *, leave_bytes: int) -> None:
        """Leave so much space, or less if others take some meanwhile."""
        with self._ballast.open("wb") as file:
            while True:
                disk = os.statvfs(self.path)
                self._ballast_bytes = disk.f_bavail * disk.f_frsize - leave_bytes
                try:
                    os.posix_fallocate(file.fileno(), 0, self._ballast_bytes)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                else:
                    return

    def free(self, freed_bytes: int) -> None:
        self._ballast_bytes -= freed_bytes
        os.truncate(self._ballast, self._ballast_bytes)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Tmpfs]:
    """Needs root, as CI has it: what a full disk does is not to be left untested."""
    assert os.geteuid() == 0, "this test mounts a file system: run it as root, or leave it out with --deselect"
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", path], check=True)
    try:
        yield Tmpfs(path)
    finally:
        # Lazily: a view that a failed test holds must not keep the mount.
        subprocess.run(["umount", "--lazy", path], check=True)
