"""Small files, each with a whole table, and the thread that writes them (A5, D1, D2, D4).

A table file ``F`` always has its previous version beside it as ``F.bak``::

    write F.tmp → rename F to F.bak → rename F.tmp to F

so at each moment at least one of the two is complete. Loading reads ``F``, or ``F.bak`` if ``F`` is missing, empty or
unreadable (RocketMQ leaves the same files after a crash). If neither can be read although one exists, a server must
not start with an empty table: ``CorruptFile`` says what to do.

A table changes on its owner's thread, in memory. ``save`` only notes that it has changed. One save of a file runs at a
time: first the table is copied on the owner's thread, then the chores thread encodes the copy, writes it and syncs
it. Changes during a save share the next save, so a thousand of them cost two. A caller that must not answer
before its change is safe awaits ``saved``; others do not wait.

A failed save is logged, raised to the callers that await it, and tried again: with the next change, with ``retry``, and
at the end (``TableFiles.settle``). Meanwhile the table in memory is used.
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
#: Returns the bytes of a copied table, which does not change any more; called on the chores thread.
Encode = Callable[[], bytes]

#: How often a server retries failed writes.
RETRY_S: Final = 5.0


def do_now(work: Work) -> None:
    """Do chores at once, in this thread (for tools and tests)."""
    work()


class Chores:
    """One thread for work that may wait for the disk. Leaving the block waits for submitted work."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="chores")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wait for submitted work, and accept no more."""
        self._pool.shutdown(wait=True)

    def __call__(self, work: Work) -> None:
        """Do ``work`` soon, in the order of the calls; an error is logged."""
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
    """The operations of a file system that table files need. Errors are ``OSError``."""

    def read(self, path: Path) -> bytes:
        """Raises ``FileNotFoundError``."""
        ...

    def write(self, path: Path, data: bytes) -> None:
        """Create a file, or replace its content, and return when its bytes are on disk. Missing directories are
        created, and their names are on disk then, too."""
        ...

    def move(self, path: Path, to: Path) -> None:
        """Rename a file; an existing file ``to`` is replaced. Raises ``FileNotFoundError``."""
        ...

    def sync_names(self, directory: Path) -> None:
        """Return when the current names of a directory's files are on disk."""
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
        """Return when a file's written bytes are on disk. Raises ``FileNotFoundError``."""
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def sync_names(self, directory: Path) -> None:
        sync_directory(directory)


def make_directory(directory: Path) -> None:
    """Create a directory and its parents, each of them durably: a lost directory loses all files in it."""
    if not directory.exists():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Return when the names in a directory are on disk: a new file is durable only then."""
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
        """``chores`` runs work on another thread; ``back`` runs it on the owner's (``loop.call_soon_threadsafe``)."""
        self.path = path
        self._files = files
        self.backup = path.with_name(path.name + ".bak")
        self._temporary = path.with_name(path.name + ".tmp")
        self._chores = chores
        self._back = back
        #: Copies the table, if it has changes that are not part of a save yet.
        self._changed: Callable[[], Encode] | None = None
        self._saving = False
        #: Why the last save failed, until one succeeds.
        self._failure: TableUnsaved | None = None
        #: Callers that await the running save, and those that await the next one.
        self._waiting: list[asyncio.Future[None]] = []
        self._waiting_for_next: list[asyncio.Future[None]] = []

    def load(self, decode: Callable[[bytes], T]) -> T | None:
        """The decoded file, else its backup; None if neither exists.

        ``decode`` raises ``ValueError`` or ``ProtocolError`` for unreadable content. Raises ``CorruptFile`` if files
        exist but none of them can be read.
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
        """Note that the table has changed, and write it soon. The cost does not depend on the size of the table.

        ``copy`` is called on the owner's thread when the save begins, and its result later on the chores thread.
        """
        self._changed = copy
        self.retry()

    def retry(self) -> None:
        """Write pending changes, if no save is running."""
        if self._changed is None or self._saving:
            return
        copy, self._changed = self._changed, None
        encode = copy()
        self._saving = True
        self._waiting, self._waiting_for_next = self._waiting_for_next, []
        self._chores(lambda: self._write(copy, encode))

    async def saved(self) -> None:
        """Wait until all changes up to now are on disk. Raises ``TableUnsaved`` if they could not be written."""
        # Changes that remain after a failed save are tried again now, for this caller.
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
            # All errors, not only those of the disk: a save that does not return would block all later ones.
            reason = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
            failure = TableUnsaved(
                f"cannot write {self.path}: {reason}; the change is active, and is lost if the server stops "
                "before the file can be written",
                path=str(self.path),
            )
        self._back(lambda: self._finish(copy, failure))

    def _finish(self, copy: Callable[[], Encode], failure: TableUnsaved | None) -> None:
        self._saving = False
        # Once for each failure, not for each retry: those follow each other as fast as requests change the table.
        if failure is not None and str(failure) != str(self._failure):
            log.error("table not saved: %s", failure)
        elif failure is None and self._failure is not None:
            log.info("%s is saved again", self.path)
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
        if self._changed is None:
            self._changed = copy
        else:
            # Callers may await changes made meanwhile.
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
        """Retry failed writes."""
        for file in self._open:
            file.retry()

    async def settle(self) -> None:
        """Wait until all changes are written, or were tried; failed writes are logged, and lost at the end."""
        for file in self._open:
            with contextlib.suppress(TableUnsaved):
                await file.saved()


def _logged(work: Work) -> None:
    try:
        work()
    except Exception:
        log.exception("a background task failed")
