"""The files of all queues, of which few are open (C2, «files in number»).

There may be 10,000 queues, so nothing of them is mapped, and descriptors are shared.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Final

from ternmq.errors import StoreError
from ternmq.store.disk.base import Disk, PlainFile

#: Open queue files, of all queues together.
OPEN_FILES_MAX: Final = 256


class FilePool:
    """Open queue files, the least recently used closed first; and which directories have names that are not synced.

    To make a file and its directories takes 0.2 to 1 ms, and a thousand new queues may come at once. So a new queue's
    first file is made by another thread while its first entries are still in memory (``make_soon``). If it is not done
    when they are written out, or if it failed, the file is made then.
    """

    __slots__ = ("_chores", "_disk", "_files", "_limit", "_lock", "_wanted", "unsynced_names")

    def __init__(self, disk: Disk, limit: int = OPEN_FILES_MAX) -> None:
        self._disk = disk
        self._limit = limit
        self._files: dict[Path, PlainFile] = {}
        #: Runs what may wait for the disk on another thread, if there is one.
        self._chores: Callable[[Callable[[], None]], object] | None = None
        #: Files to be made there. A call that removes a file or its directory takes it out first, under the lock.
        self._wanted: dict[Path, None] = {}
        self._lock = threading.Lock()
        #: Directories in which files were made or removed, in order. Without a sync of these a power cut may bring
        #: files back, or take them although they were synced.
        self.unsynced_names: dict[Path, None] = {}

    def get(self, path: Path, create_size: int | None = None) -> PlainFile:
        file = self._files.pop(path, None)
        if file is None:
            if len(self._files) >= self._limit:
                self._files.pop(next(iter(self._files))).close()
            file = self._disk.open_file(path, create_size=create_size)
            if create_size is not None:
                # The queue's directory, the topic's, that of all queues, and the store's: any of them may be new.
                self.unsynced_names |= dict.fromkeys(path.parents[:4])
        # A dict keeps its order of insertion: taken out and put in again, the file is the newest.
        self._files[path] = file
        return file

    def start_thread(self, chores: Callable[[Callable[[], None]], object]) -> None:
        """From now on ``chores`` makes the first files of queues."""
        self._chores = chores

    def make_soon(self, path: Path, size: int) -> None:
        """Have a file made on another thread, if there is one."""
        if self._chores is not None:
            self._wanted[path] = None
            self._chores(partial(self._make, path, size))

    def _make(self, path: Path, size: int) -> None:
        with self._lock:
            if path in self._wanted:
                del self._wanted[path]
                with contextlib.suppress(StoreError):
                    self._disk.open_file(path, create_size=size).close()

    def remove(self, path: Path) -> None:
        """Close a file and remove it; also a whole directory, none of whose files is open."""
        if self._wanted:
            with self._lock:
                for wanted in [each for each in self._wanted if each == path or path in each.parents]:
                    del self._wanted[wanted]
        file = self._files.pop(path, None)
        if file is not None:
            file.close()
        self._disk.remove(path)
        self.unsynced_names[path.parent] = None

    def remove_strays(self, directory: Path, kept: Collection[Path]) -> None:
        """Remove all files of a directory but these.

        The process that died may have made and removed others, so all names here are taken for not synced.
        """
        self.unsynced_names |= dict.fromkeys((directory, *directory.parents[:3]))
        for name, _, is_directory in self._disk.list(directory):
            path = directory / name
            if not is_directory and path not in kept:
                self.remove(path)

    def take_unsynced_names(self) -> list[Path]:
        """Directories to sync."""
        directories = list(self.unsynced_names)
        self.unsynced_names.clear()
        return directories

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
