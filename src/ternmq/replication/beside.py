"""What a TernMQ slave gets beside the log: deletions of topics, and the files of derived parts (O4).

*Deletions.* A topic is deleted at a log offset (``store.delete_topics``). No record says so. A master tells its slaves
of each deletion that it remembers, before it sends any byte behind that offset. The slave deletes the topic when its
dispatch has come to the same offset. A topic of the same name may follow.

*Files.* Messages that wait for their time are kept in files by the hour (``delay.schedule_log``), for longer than their
records are in the log. So an empty slave first gets these files, then the log, of which it folds what is newer than the
files. The last file of a part makes the others count: a master reads it first, because the others only grow; a slave
writes it last, when the others are on the disk. A connection that ends meanwhile leaves an empty log: all begins anew.

On the wire these are texts between the transfers (``replication.stream``), and the bytes of files behind a header with
the log offset -2.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

import msgspec

from ternmq.errors import UNREADABLE, RemoteProtocolError, StoreError
from ternmq.replication.handshake import Refusal
from ternmq.store.disk.base import Disk, PlainFile
from ternmq.types import Buffer
from ternmq.wire.requests import Int64

#: Bytes of a file that are read at once.
CHUNK_BYTES: Final = 1 << 20
#: The file that makes the others count is kept in memory until it is complete.
LAST_BYTES_MAX: Final = 64 << 20


class TopicDeleted(msgspec.Struct, frozen=True, rename="camel", tag="topicDeleted"):
    """The records of a topic before a log offset belong to no topic any more."""

    topic: str
    log_offset: Int64


class FileBegins(msgspec.Struct, frozen=True, rename="camel", tag="fileBegins"):
    """The bytes of a file follow; ``name`` is below the directory of the store."""

    name: str
    length_bytes: Int64
    #: It makes the files before it count.
    is_last: bool = False


class FilesEnd(msgspec.Struct, frozen=True, rename="camel", tag="filesEnd"):
    """There are no more files: the log follows."""


class Ends(msgspec.Struct, frozen=True, rename="camel", tag="ends"):
    """The log does not flow any more, and why."""

    refusal: Refusal
    reason: str


Notice: TypeAlias = TopicDeleted | FileBegins | FilesEnd | Ends

encode: Final = msgspec.json.Encoder().encode
_decoder: Final[msgspec.json.Decoder[Notice]] = msgspec.json.Decoder(Notice)


def decode(data: bytes) -> Notice:
    """Raises ``RemoteProtocolError``."""
    try:
        return _decoder.decode(data)
    except UNREADABLE as error:
        raise RemoteProtocolError(f"a notice of the master is not valid: {error}") from None


def _no_files() -> list[list[Path]]:
    return []


_NO_DELETIONS: Final[Mapping[str, int]] = {}


def _no_deletions() -> Mapping[str, int]:
    return _NO_DELETIONS


@dataclass(slots=True, frozen=True)
class Beside:
    """What a master has beside its log; ``root`` is the directory of its store."""

    root: Path = Path("/")
    #: The files of each derived part, of which the last makes the others count.
    files: Callable[[], Sequence[Sequence[Path]]] = _no_files
    #: Topic → log offset of its deletion: the same object until it changes, and another one then.
    deletions: Callable[[], Mapping[str, int]] = _no_deletions

    async def parcels(self, disk: Disk) -> AsyncIterator[FileBegins | bytes]:
        """All files, each with its bytes. Raises ``StoreError`` if one is removed meanwhile."""
        for paths in self.files():
            if not paths:
                continue
            *others, last = paths
            # First: what it counts is in the others, which only grow.
            counts = await asyncio.to_thread(disk.read, last)
            if counts is None:
                continue
            for path in others:
                length_bytes = {entry.name: entry.length_bytes for entry in disk.list(path.parent)}.get(path.name, 0)
                yield FileBegins(path.relative_to(self.root).as_posix(), length_bytes)
                for at in range(0, length_bytes, CHUNK_BYTES):
                    part_bytes = min(CHUNK_BYTES, length_bytes - at)
                    data = await asyncio.to_thread(disk.read_at, path, at, part_bytes)
                    if len(data) < part_bytes:
                        raise StoreError(f"{path} became shorter while it was copied")
                    yield data
            yield FileBegins(last.relative_to(self.root).as_posix(), len(counts), is_last=True)
            for at in range(0, len(counts), CHUNK_BYTES):
                yield counts[at : at + CHUNK_BYTES]


class Adoption:
    """Files that come from a master, on an empty slave. Raises ``StoreError`` and ``RemoteProtocolError``.

    Only files in ``directories``, which are those of the derived parts, are written. What is there is removed first.
    """

    def __init__(self, disk: Disk, root: Path, directories: Sequence[Path]) -> None:
        self._disk = disk
        self._root = root
        self._directories = directories
        for directory in directories:
            disk.remove(directory)
        self._path = root
        self._file: PlainFile | None = None
        self._last: bytearray | None = None
        self._at = 0
        self._length_bytes = 0

    def begin(self, notice: FileBegins) -> None:
        self._check_complete()
        name = PurePosixPath(notice.name)
        path = self._root / name
        if name.is_absolute() or ".." in name.parts or path.parent not in self._directories:
            raise RemoteProtocolError(f"the master sent a file {notice.name[:100]!r}, which has no place here")
        if notice.length_bytes < 0 or (notice.is_last and notice.length_bytes > LAST_BYTES_MAX):
            raise RemoteProtocolError(f"the master sent a file of {notice.length_bytes} bytes")
        self._path, self._at, self._length_bytes = path, 0, notice.length_bytes
        if notice.is_last:
            self._last = bytearray()
        else:
            self._file = self._disk.open_file(path, create_size=0)
        self._finish_file()

    def add(self, data: Buffer) -> None:
        if len(data) > self._length_bytes - self._at:
            raise RemoteProtocolError("the master sent more bytes of a file than it has")
        if self._last is not None:
            self._last += data
        elif self._file is not None:
            self._file.write(self._at, bytes(data))
        self._at += len(data)
        self._finish_file()

    def finish(self) -> None:
        """There are no more files."""
        self._check_complete()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _finish_file(self) -> None:
        if self._at < self._length_bytes:
            return
        if self._last is not None:
            for directory in (*self._directories, self._root):
                self._disk.sync_names(directory)
            self._disk.replace(self._path, bytes(self._last))
            self._last = None
        else:
            self.close()
            self._disk.sync_file(self._path)

    def _check_complete(self) -> None:
        if self._at < self._length_bytes:
            raise RemoteProtocolError(f"the master sent {self._at} bytes of a file that has {self._length_bytes}")
