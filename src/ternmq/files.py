"""Small files that hold a whole table, and the thread that syncs them (A5, D1, D2, D4).

A table file ``F`` always has its last version beside it as ``F.bak``::

    write F.tmp → rename F to F.bak → rename F.tmp to F

so at every moment at least one of the two is whole. Loading takes ``F``, or ``F.bak`` when ``F`` is missing, empty or
unreadable (RocketMQ leaves the same traces after a crash). When neither can be read although one exists, nobody must
start with an empty table as if nothing had been there: ``CorruptFile`` says what to do.

Two ways to save, after what is at stake:

- ``save``: written before it returns, so that what is acknowledged next (a topic created by a send) survives
  ``kill -9``; only what a power cut would need, an ``fsync`` of the file and of its directory, goes to the chores
  thread.
- ``save_soon``: written by the chores thread; of several versions that wait only the last is written. For tables that
  are saved periodically anyway (offsets).

A write that fails is logged and tried again with the next save; its owner goes on, as the table in memory is right.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from ternmq.errors import CorruptFile, ProtocolError

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[], None]


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


class Files(Protocol):
    """What table files need of a file system. Errors are ``OSError``."""

    def read(self, path: Path) -> bytes:
        """Raises ``FileNotFoundError``."""
        ...

    def write(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Make a file, or write it anew; directories are made when needed, and their names are on the disk then."""
        ...

    def move(self, path: Path, to: Path) -> None:
        """Give a file the name of another, which is gone then. Raises ``FileNotFoundError``."""
        ...

    def sync(self, path: Path) -> None:
        """Return when what was written to a file is on the disk. Raises ``FileNotFoundError``."""
        ...

    def sync_names(self, directory: Path) -> None:
        """Return when the names of a directory's files are on the disk as they are now."""
        ...


class SystemFiles:
    """The machine's files."""

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write(self, path: Path, data: bytes, *, sync: bool) -> None:
        try:
            file = path.open("wb")
        except FileNotFoundError:
            make_directory(path.parent)
            file = path.open("wb")
        with file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())

    def move(self, path: Path, to: Path) -> None:
        path.replace(to)

    def sync(self, path: Path) -> None:
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

    def __init__(self, path: Path, chores: Callable[[Work], None] = do_now, files: Files = SYSTEM_FILES) -> None:
        self.path = path
        self._files = files
        self.backup = path.with_name(path.name + ".bak")
        self._temporary = path.with_name(path.name + ".tmp")
        self._chores = chores
        # Set here, read by the chores thread: a version that is not the latest any more needs no writing.
        self._latest = b""

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
                log.warning("table file was unreadable, its backup was taken", extra={"why": failures[0]})
            return table
        if failures:
            raise CorruptFile(
                f"{' and '.join(failures)}; restore one of these files, or remove them to start with an empty table",
                path=str(self.path),
            )
        return None

    def save(self, data: bytes) -> None:
        """Write now, sync soon."""
        with _logging_failure(self.path):
            self._write(data, sync=False)
            self._chores(self._sync)

    def save_soon(self, data: bytes) -> None:
        """Write and sync soon, on the chores thread."""
        self._latest = data
        self._chores(lambda: self._write_if_latest(data))

    def _write_if_latest(self, data: bytes) -> None:
        if data is self._latest:
            with _logging_failure(self.path):
                self._write(data, sync=True)

    def _write(self, data: bytes, *, sync: bool) -> None:
        self._files.write(self._temporary, data, sync=sync)
        with contextlib.suppress(FileNotFoundError):
            self._files.move(self.path, self.backup)
        self._files.move(self._temporary, self.path)
        if sync:
            self._files.sync_names(self.path.parent)

    def _sync(self) -> None:
        # Another save may be renaming the file at this moment; its own sync follows.
        with _logging_failure(self.path), contextlib.suppress(FileNotFoundError):
            self._files.sync(self.path)
            self._files.sync_names(self.path.parent)


@contextlib.contextmanager
def _logging_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.error("table file could not be written", extra={"path": str(path), "why": str(error)})


def _logged(work: Work) -> None:
    try:
        work()
    except Exception:
        log.exception("a chore failed")
