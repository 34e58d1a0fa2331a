"""Small files that hold a whole table, and the thread that writes them (A5, D1, D2, D4).

A table file ``F`` always has its last version beside it as ``F.bak``::

    write F.tmp → rename F to F.bak → rename F.tmp to F

so at every moment at least one of the two is whole. Loading takes ``F``, or ``F.bak`` when ``F`` is missing, empty or
unreadable (RocketMQ leaves the same traces after a crash). When neither can be read although one exists, a server must
not start with an empty table as if nothing had been there: ``CorruptFile`` says what to do.

A table changes on its owner's thread, in memory. ``save`` only notes that it has changed. One save of a file runs at a
time: its beginning copies the table on the owner's thread, and the chores thread encodes the copy, writes it and syncs
it. Changes that come meanwhile share the next save, so a thousand of them cost two. A caller that must not answer
before its change is safe awaits ``saved``; others go on.

A save that fails is logged, told to those that await it, and tried again: with the next change, with ``retry``, and at
the end (``TableFiles.settle``). The table in memory stays in force meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from ternmq.errors import CorruptFile, ProtocolError, TableUnsaved

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[], None]
#: Gives the bytes of a copy of a table that nothing changes any more; called on the chores thread.
Encode = Callable[[], bytes]

#: How often a server tries again to write what could not be written.
RETRY_S: Final = 5.0


def do_now(work: Work) -> None:
    """The simplest way to get chores done: at once, in this thread (tools and tests)."""
    work()


class Chores:
    """One thread for work that may wait for the disk. Leaving the block waits for what was handed in."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="chores")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wait for what was handed in, and take no more."""
        self._pool.shutdown(wait=True)

    def __call__(self, work: Work) -> None:
        """Have ``work`` done soon, in the order of the calls; an error is logged."""
        self._pool.submit(_logged, work)


class HeldBack:
    """Chores that begin later: work that is handed in before ``begin`` waits until then, or is never done."""

    def __init__(self) -> None:
        self._waiting: list[Work] = []
        self._chores: Callable[[Work], None] = self._waiting.append

    def __call__(self, work: Work) -> None:
        """Have ``work`` done after ``begin``, in the order of the calls."""
        self._chores(work)

    def begin(self, chores: Callable[[Work], None]) -> None:
        """Let ``chores`` do what waits, and all that comes."""
        self._chores = chores
        for work in self._waiting:
            chores(work)
        self._waiting.clear()


class Files(Protocol):
    """What table files need of a file system. Errors are ``OSError``."""

    def read(self, path: Path) -> bytes:
        """Raises ``FileNotFoundError``."""
        ...

    def write(self, path: Path, data: bytes) -> None:
        """Make a file, or write it anew, and return when its bytes are on the disk; directories are made when needed,
        and their names are on the disk then."""
        ...

    def move(self, path: Path, to: Path) -> None:
        """Give a file the name of another, which is gone then. Raises ``FileNotFoundError``."""
        ...

    def sync_names(self, directory: Path) -> None:
        """Return when the names of a directory's files are on the disk as they are now."""
        ...


class SystemFiles:
    """The machine's files."""

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write(self, path: Path, data: bytes) -> None:
        try:
            file = path.open("wb")
        except FileNotFoundError:
            make_directory(path.parent)
            file = path.open("wb")
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def move(self, path: Path, to: Path) -> None:
        path.replace(to)

    def sync(self, path: Path) -> None:
        """Return when what was written to a file is on the disk. Raises ``FileNotFoundError``."""
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def sync_names(self, directory: Path) -> None:
        sync_directory(directory)


def make_directory(directory: Path) -> None:
    """Make a directory and those above it, each of them durably: one that is lost takes all that is in it along."""
    if not directory.exists():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Return when a directory's names are on the disk: a new one is only when its directory is."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


SYSTEM_FILES: Final = SystemFiles()


class TableFile:
    """One file. Methods belong to the owner's thread."""

    def __init__(
        self,
        path: Path,
        chores: Callable[[Work], None] = do_now,
        files: Files = SYSTEM_FILES,
        *,
        back: Callable[[Work], object] = do_now,
    ) -> None:
        """``chores`` does work on another thread; ``back`` does it on the owner's (``loop.call_soon_threadsafe``)."""
        self.path = path
        self._files = files
        self.backup = path.with_name(path.name + ".bak")
        self._temporary = path.with_name(path.name + ".tmp")
        self._chores = chores
        self._back = back
        #: How to copy the table, if it has changes that no save has begun to write.
        self._changed: Callable[[], Encode] | None = None
        self._saving = False
        #: Why the last save failed, until one succeeds.
        self._failure: TableUnsaved | None = None
        #: Await the save that runs, and the one after it.
        self._waiting: list[asyncio.Future[None]] = []
        self._waiting_for_next: list[asyncio.Future[None]] = []

    def load(self, decode: Callable[[bytes], T]) -> T | None:
        """The decoded file, else its backup, else None when neither exists.

        ``decode`` raises ``ValueError`` or ``ProtocolError`` for what it cannot read. Raises ``CorruptFile`` when
        files exist but none of them can be read.
        """
        failures: list[str] = []
        for path in (self.path, self.backup):
            try:
                data = self._files.read(path)
                if not data.strip():
                    raise ValueError("it is empty")
                table = decode(data)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, ProtocolError) as error:
                failures.append(f"{path}: {error}")
                continue
            if failures:
                log.warning("cannot read a table file; using its backup", extra={"why": failures[0]})
            return table
        if failures:
            raise CorruptFile(
                f"{' and '.join(failures)}; restore one of these files, or remove them to start with an empty table",
                path=str(self.path),
            )
        return None

    def save(self, copy: Callable[[], Encode]) -> None:
        """Note that the table has changed, and have it written soon. Costs the same however large the table is.

        ``copy`` is called when the save begins, on the owner's thread, and what it returns later, on the chores thread.
        """
        self._changed = copy
        self.retry()

    def retry(self) -> None:
        """Begin to write what has changed, if no save runs."""
        if self._changed is None or self._saving:
            return
        copy, self._changed = self._changed, None
        encode = copy()
        self._saving = True
        self._waiting, self._waiting_for_next = self._waiting_for_next, []
        self._chores(lambda: self._write(copy, encode))

    async def saved(self) -> None:
        """Wait until all changes up to now are on the disk. Raises ``TableUnsaved`` when they could not be written."""
        # Changes that a failed save has left are tried again now, for this caller.
        self.retry()
        if self._saving:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            (self._waiting if self._changed is None else self._waiting_for_next).append(future)
            await future
        elif self._failure is not None:
            raise self._failure

    def _write(self, copy: Callable[[], Encode], encode: Encode) -> None:
        """On the chores thread."""
        failure: TableUnsaved | None = None
        try:
            self._files.write(self._temporary, encode())
            with contextlib.suppress(FileNotFoundError):
                self._files.move(self.path, self.backup)
            self._files.move(self._temporary, self.path)
            self._files.sync_names(self.path.parent)
        except Exception as error:
            # Not only of the disk: a save that does not come back would be the last.
            reason = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
            failure = TableUnsaved(
                f"cannot write {self.path}: {reason}; the change is active, and is lost if the server stops "
                "before the file can be written",
                path=str(self.path),
            )
        self._back(lambda: self._finish(copy, failure))

    def _finish(self, copy: Callable[[], Encode], failure: TableUnsaved | None) -> None:
        self._saving = False
        self._failure = failure
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if future.done():
                continue
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)
        if failure is None:
            self.retry()
            return
        log.error("table not saved: %s", failure)
        if self._changed is None:
            self._changed = copy
        else:
            # Callers may await what changed meanwhile.
            self.retry()


class TableFiles:
    """The table files of one server. Methods belong to its loop."""

    def __init__(
        self,
        directory: Path,
        chores: Callable[[Work], None] = do_now,
        files: Files = SYSTEM_FILES,
        *,
        back: Callable[[Work], object] = do_now,
    ) -> None:
        self._directory = directory
        self._chores = chores
        self._files = files
        self._back = back
        self._open: list[TableFile] = []

    def __call__(self, name: str) -> TableFile:
        """The file of that name in the directory."""
        file = TableFile(self._directory / name, self._chores, self._files, back=self._back)
        self._open.append(file)
        return file

    def retry(self) -> None:
        """Try again to write what could not be written."""
        for file in self._open:
            file.retry()

    async def settle(self) -> None:
        """Wait until all is written, or was tried; what the disk does not take is logged, and at the end lost."""
        for file in self._open:
            with contextlib.suppress(TableUnsaved):
                await file.saved()


def _logged(work: Work) -> None:
    try:
        work()
    except Exception:
        log.exception("a background task failed")
