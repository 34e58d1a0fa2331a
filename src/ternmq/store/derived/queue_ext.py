"""ConsumeQueueExt: beside each queue a row of units, for what an entry of 20 bytes has no room for (C3, K3).

::

    consumequeue_ext/TOPIC/QUEUE/00000000000000000000      files of 48 MiB, sparse, named by their first byte
    | unit | unit | … | unit | -1 |                        no unit spans two files: -1, in 2 bytes, ends a file

    2 size of the unit   8 tags code   8 store time, ms   2 bytes of the bit map   bit map (``filter.bloom``)

An entry that has a unit holds its *address* where others hold their tags code: the unit's position in the row, less
2⁶³. Tags codes are 32-bit hashes and due times are positive, so no entry's own value is as small (``ADDRESS_MAX``).
Both kinds may stand in one queue: the switch ``enableConsumeQueueExt`` decides what is written, never what is read.

Units are worth only what entries make of them, and so the entries tell where the row ends: behind the unit of the
newest address. What lies further back in the files is a rest of another process, and goes before the first write.

A unit may be missing, because files were deleted by hand or a power cut took them. Its entry then passes every filter,
as in RocketMQ: the caller looks at the message itself. That is safe only while no address is given twice, or old
entries would find the units of new ones. Hence a row whose newest unit is missing starts over *behind* that unit's
file.

Invariants: units from the row's first file up to ``end`` stand in files or in ``_runs``; a unit is written out before
the entry that holds its address; behind ``end`` stand zeros.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ternmq.errors import StoreError
from ternmq.store.config import UNIT_BYTES, UNIT_END_BYTES
from ternmq.store.disk.base import Disk
from ternmq.store.disk.segment import segment_name, segment_starts

if TYPE_CHECKING:
    from ternmq.store.derived.fact import Fact
    from ternmq.store.derived.queue_files import FilePool

log = logging.getLogger(__name__)

#: size tags_code store_time_ms bits_bytes
UNIT: Final = struct.Struct(">hqqh")
_unpack_unit: Final = UNIT.unpack_from
#: A unit's size is a signed short.
UNIT_BYTES_MAX: Final = 32_767
_END: Final = struct.pack(">h", -1)

#: The largest value of a tags field that is an address (RocketMQ's MAX_ADDR), and the address of position 0.
ADDRESS_MAX: Final = -(1 << 31) - 1
ADDRESS_ZERO: Final = -(1 << 63)
#: The highest byte of every address, for rows below 64 PiB: with it whole pages of entries are searched at once.
ADDRESS_BYTE: Final = 0x80

#: Units of neighbouring entries lie side by side: some hundred come with one read.
_WINDOW_BYTES: Final = 4096


class Unit(NamedTuple):
    """What stands beside an entry."""

    tags_code: int
    store_time_ms: int
    bits: bytes


class QueueExt:
    """The row of one queue. Belongs to the store's thread."""

    __slots__ = ("_all", "_paths", "_runs", "_unsynced", "directory", "end")

    def __init__(self, owner: QueueExts, topic: str, queue_id: int) -> None:
        self._all = owner
        self.directory = owner.directory / topic / str(queue_id)
        #: Where the next unit goes; -1 until ``begin``.
        self.end = -1
        #: Start in bytes → path, in order.
        self._paths: dict[int, Path] = {}
        #: Units in memory only: position of the first, and their bytes. Another run for each file.
        self._runs: list[tuple[int, bytearray]] = []
        self._unsynced: set[Path] = set()

    # --- Writing ----------------------------------------------------------------------------------------------

    def tags_field(self, fact: Fact, last_address: Callable[[], int | None]) -> int:
        """What the entry of a record holds: the address of a new unit, or the tags code itself.

        ``last_address`` finds the newest one that the queue has. Never raises: the log has the record already, and
        without a unit it only takes longer to filter.
        """
        if not self._all.writes:
            return fact.tags_code
        bits = self._all.bits(fact) if self._all.bits is not None else b""
        if UNIT_BYTES + len(bits) > min(UNIT_BYTES_MAX, self._all.file_bytes - UNIT_END_BYTES):
            return fact.tags_code
        if self.end < 0:
            try:
                self.begin(last_address())
            except StoreError as error:
                self._all.complain(error)
                return fact.tags_code
        return self._append(fact.tags_code, fact.store_time_ms, bits)

    def begin(self, last_address: int | None) -> None:
        """Let the row end with the unit of this address, the newest that the queue has; without one it is empty.

        Raises ``StoreError``; then it has not begun.
        """
        file_bytes = self._all.file_bytes
        self._runs = []
        unit = self.read(last_address) if last_address is not None else None
        if last_address is None:
            end = 0
        elif unit is not None:
            end = last_address - ADDRESS_ZERO + UNIT_BYTES + len(unit.bits)
        else:
            end = ((last_address - ADDRESS_ZERO) // file_bytes + 1) * file_bytes
            log.warning("units are missing, the row starts over", extra={"path": str(self.directory), "end": end})
        for start in [start for start in self._paths if start >= end or unit is None]:
            self._drop(start)
        if unit is not None:
            path = self._paths[end - end % file_bytes]
            self._all.files.get(path).zero_from(end % file_bytes)
            self._unsynced.add(path)
        self.end = end

    def _append(self, tags_code: int, store_time_ms: int, bits: bytes) -> int:
        size, position = UNIT_BYTES + len(bits), self.end
        left = self._all.file_bytes - position % self._all.file_bytes
        if not self._runs:
            self._runs.append((position, bytearray()))
        if size + UNIT_END_BYTES > left:
            self._runs[-1][1].extend(_END)
            position += left
            self._runs.append((position, bytearray()))
        run = self._runs[-1][1]
        run += UNIT.pack(size, tags_code, store_time_ms, len(bits))
        run += bits
        self.end = position + size
        return position + ADDRESS_ZERO

    def write_out(self) -> int:
        """Write the units in memory to their files; how many bytes. Raises ``DiskFull``; then they stay in memory."""
        file_bytes = self._all.file_bytes
        done = 0
        for position, data in self._runs:
            start = position - position % file_bytes
            path = self._paths.get(start)
            if path is None:
                path = self.directory / segment_name(start)
                self._all.files.get(path, create_size=file_bytes)
                self._paths[start] = path
            self._all.files.get(path).write(position - start, data)
            self._unsynced.add(path)
            done += len(data)
        self._runs = []
        return done

    def take_unsynced(self) -> list[Path]:
        """Files written to since they were last asked for; the caller syncs them, before those of the queue."""
        paths = sorted(self._unsynced)
        self._unsynced.clear()
        return paths

    # --- Reading ----------------------------------------------------------------------------------------------

    def read(self, address: int) -> Unit | None:
        """The unit at an address; None if there is none."""
        return UnitReader(self).unit(address)

    def bytes_at(self, position: int, length_bytes: int) -> bytes | bytearray:
        """Bytes of the row, fewer where a file or the row ends or memory begins."""
        for start, data in self._runs:
            if position < start:
                length_bytes = min(length_bytes, start - position)
                break
            if position < start + len(data):
                return data[position - start : position - start + length_bytes]
        start = position - position % self._all.file_bytes
        path = self._paths.get(start)
        if path is None:
            return b""
        return self._all.files.get(path).read(
            position - start, min(length_bytes, start + self._all.file_bytes - position)
        )

    # --- Life: load, cut, remove --------------------------------------------------------------------------------

    def load(self, *, lenient: bool = False) -> None:
        """Find the files; changes nothing. Raises ``CorruptFile``."""
        size = self._all.file_bytes
        starts = segment_starts(
            self._all.disk, self.directory, size=size, key="mappedFileSizeConsumeQueueExt", lenient=lenient
        )
        self._paths = {start: self.directory / segment_name(start) for start in starts}

    def cut(self, last_address: Callable[[], int | None]) -> None:
        """Forget the units behind the one of the newest address; the queue was cut before.

        While the switch is off nothing is done: when it is turned on again, the row begins where the entries say.
        """
        self.end = -1
        if self._all.writes:
            # It is not known what a process that died had synced.
            self._unsynced.update(self._paths.values())
            self.begin(last_address())

    @property
    def file_count(self) -> int:
        return len(self._paths)

    def drop_before(self, field: int) -> None:
        """Delete the files whose units are all older than the one of this field; a tags code says nothing."""
        if field > ADDRESS_MAX:
            return
        oldest = field - ADDRESS_ZERO
        for start in [start for start in self._paths if start + self._all.file_bytes <= oldest]:
            self._drop(start)

    def remove(self) -> None:
        """Remove the files; the row is empty."""
        for start in list(self._paths):
            self._drop(start)
        self._runs = []
        self._unsynced.clear()
        self.end = 0

    def remove_strays(self) -> None:
        """Remove files that ``load`` left out: behind one that is missing, or without their length."""
        self._all.files.remove_strays(self.directory, kept=self._paths.values())

    def _drop(self, start: int) -> None:
        path = self._paths.pop(start)
        self._unsynced.discard(path)
        self._all.files.remove(path)


class UnitReader:
    """Reads units that are near each other, as those of neighbouring entries are. For one request: it keeps bytes."""

    __slots__ = ("_data", "_ext", "_position")

    def __init__(self, ext: QueueExt) -> None:
        self._ext = ext
        self._position = 0
        self._data: bytes | bytearray = b""

    def tags_code(self, address: int) -> int | None:
        """The tags code of the unit at an address; None if there is none."""
        at = address - ADDRESS_ZERO - self._position
        if not 0 <= at <= len(self._data) - UNIT_BYTES:
            self._load(address, _WINDOW_BYTES)
            at = 0
            if len(self._data) < UNIT_BYTES:
                return None
        size, tags_code, _, bits_bytes = _unpack_unit(self._data, at)
        # Anything else is zeros, the end of a file, or never was a unit.
        return tags_code if 0 <= bits_bytes == size - UNIT_BYTES else None

    def unit(self, address: int) -> Unit | None:
        """The unit at an address; None if there is none."""
        at = address - ADDRESS_ZERO - self._position
        data = self._data
        if not 0 <= at <= len(data) - UNIT_BYTES:
            self._load(address, _WINDOW_BYTES)
            at, data = 0, self._data
            if len(data) < UNIT_BYTES:
                return None
        size, tags_code, store_time_ms, bits_bytes = _unpack_unit(data, at)
        if not 0 <= bits_bytes == size - UNIT_BYTES:
            return None
        if at + size > len(data):
            self._load(address, max(size, _WINDOW_BYTES))
            at, data = 0, self._data
            if len(data) < size:
                return None
        return Unit(tags_code, store_time_ms, bytes(data[at + UNIT_BYTES : at + size]))

    def _load(self, address: int, length_bytes: int) -> None:
        self._position = address - ADDRESS_ZERO
        self._data = self._ext.bytes_at(self._position, length_bytes)


def by_unit(
    ext: QueueExt | None, matches: Callable[[int], bool] | None, may_pass: Callable[[Unit], bool] | None
) -> Callable[[int], bool]:
    """A filter for the tags fields of a queue in which addresses stand: by tags code, or by the whole unit.

    A missing unit passes, and so does a tags code where a unit is wanted.
    """
    reader = UnitReader(ext) if ext is not None else None

    def passes(field: int) -> bool:
        if field > ADDRESS_MAX:
            return matches is None or matches(field)
        if reader is None:
            return True
        if may_pass is not None:
            unit = reader.unit(field)
            return unit is None or may_pass(unit)
        tags_code = reader.tags_code(field)
        return matches is None or tags_code is None or matches(tags_code)

    return passes


class QueueExts:
    """The rows of all queues. ``ConsumeQueues`` writes, syncs, cuts and removes them with their queues."""

    __slots__ = ("_has_complained", "bits", "directory", "disk", "file_bytes", "files", "table", "writes")

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        files: FilePool,
        file_bytes: int,
        writes: bool,
        bits: Callable[[Fact], bytes] | None = None,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.files = files
        self.file_bytes = file_bytes
        #: Whether new entries get units.
        self.writes = writes
        #: Makes the bit map of a record; without it units have none. It must not raise.
        self.bits = bits
        self.table: dict[tuple[str, int], QueueExt] = {}
        self._has_complained = False

    def of(self, topic: str, queue_id: int) -> QueueExt | None:
        """The row of a queue, new if rows are written; None if this queue has none."""
        key = (topic, queue_id)
        ext = self.table.get(key)
        if ext is None and self.writes:
            ext = self.table[key] = QueueExt(self, topic, queue_id)
        return ext

    def load(self, *, lenient: bool = False) -> None:
        """Find all rows; changes nothing. Raises ``CorruptFile``."""
        for topic, _, is_directory in self.disk.list(self.directory):
            if not is_directory:
                continue
            for name, _, is_queue in self.disk.list(self.directory / topic):
                if is_queue and name.isascii() and name.isdigit():
                    ext = self.table[topic, int(name)] = QueueExt(self, topic, int(name))
                    ext.load(lenient=lenient)

    def remove_strays(self) -> None:
        for ext in self.table.values():
            ext.remove_strays()

    def remove_topics(self, topics: Iterable[str]) -> None:
        """Remove the rows of these topics, also of queues that do not exist."""
        gone = set(topics)
        for key, ext in list(self.table.items()):
            if key[0] in gone:
                ext.remove()
                del self.table[key]
        for topic in sorted(gone):
            self.files.remove(self.directory / topic)

    def complain(self, error: StoreError) -> None:
        """Say once that entries stay without units."""
        if not self._has_complained:
            self._has_complained = True
            log.warning("units cannot be written; filters read each message", extra={"error": str(error)})
