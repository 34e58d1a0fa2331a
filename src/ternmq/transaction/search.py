"""Whether the message of a half is stored (J1): a search by its unique key, in slices.

A half that was open when the term began may have been committed before, and one that is closed may have been committed
or not. Its message tells. The index finds candidates by the hash of the key, and each must be read. Usually there is
one, and it is in memory: then the search is done at once (``look``). But a producer that makes its keys itself may give
one to thousands of messages, and what is old must be read from the disk. Such a search gives the loop back after each
slice (``known``). One is under way at a time, producer groups take turns, and a limited number of requests wait.

Other transactions end while a search is under way, so its answer may be outdated when it comes. Hence ``stored``: the
message of each commit is noted for the searches that are not done with.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from ternmq import names
from ternmq.errors import CorruptRecord, StoreError
from ternmq.store.read.query import QueueEntry
from ternmq.store.store import MessageStore
from ternmq.transaction import half as halves
from ternmq.transaction.half import Half
from ternmq.turns import Turns
from ternmq.types import Buffer
from ternmq.wire.record import unpack_record

#: A message has one record, and its retries others under other topics. Of more messages with one key, the newest are
#: looked at.
_SAME_KEY_MAX: Final = 4_096
#: Bytes that are looked at in a row, some 0.5 ms of the loop. Each record counts some more than it has, and no more
#: than its head and its properties can have: bodies are not touched.
_SLICE_BYTES: Final = 1 << 18
_RECORD_COST: Final = 4_096
_READ_BYTES_MAX: Final = 1 << 15
#: A message with a delay waits under another topic.
_WAITING_TOPICS: Final = (names.SCHEDULE_TOPIC, names.WHEEL_TOPIC)


class _MessageName(NamedTuple):
    topic: str
    unique_key: str
    born_time_ms: int


class _Wanted:
    """A message that is searched, or for which a request still uses what was found."""

    __slots__ = ("is_stored", "users")

    def __init__(self) -> None:
        self.is_stored: bool | None = None
        self.users = 0


class MessageSearch:
    """Belongs to the broker's loop. ``last`` is a record that is looked at, too: in a store without an index, the one
    that was the last of the log when the term began."""

    def __init__(self, store: MessageStore, last: Buffer | None) -> None:
        self._store = store
        self._last = last
        self._wanted: dict[_MessageName, _Wanted] = {}
        self._turns = Turns("searches of messages by their unique keys")

    @property
    def is_busy(self) -> bool:
        """Whether something is searched, or what was found is still in use: ``stored`` must be called for a commit."""
        return bool(self._wanted)

    def look(self, half: Half) -> bool | None:
        """Whether the message of a half is stored; None if that takes longer than a slice."""
        if self._wanted and (wanted := self._wanted.get(_name(half))) is not None:
            return wanted.is_stored
        if self._last is not None and _is_message(self._last, half):
            return True
        left = _SLICE_BYTES
        for log_offset in self._places(half):
            if left <= 0 or log_offset is None or self._store.cold.is_cold(log_offset):
                return None
            page = self._store.record_at(log_offset)
            if page is not None and _is_message(page, half):
                return True
            left -= _cost(page)
        return False

    @asynccontextmanager
    async def known(self, half: Half) -> AsyncIterator[bool]:
        """Search in slices. Within the block, ``look`` has the answer at once, and it is of now.

        Raises ``SystemBusy`` if too many wait.
        """
        name = _name(half)
        wanted = self._wanted.setdefault(name, _Wanted())
        wanted.users += 1
        try:
            async with self._turns.of(half.group):
                if wanted.is_stored is None:
                    is_stored = await self._search(half)
                    # It may have been stored meanwhile.
                    wanted.is_stored = wanted.is_stored or is_stored
            yield wanted.is_stored
        finally:
            wanted.users -= 1
            if not wanted.users:
                del self._wanted[name]

    def stored(self, half: Half) -> None:
        """The message of a half was stored just now."""
        if self._wanted and (wanted := self._wanted.get(_name(half))) is not None:
            wanted.is_stored = True

    async def read(self, log_offset: int) -> Buffer | None:
        """The record at ``log_offset``; None if none begins there. What is not in memory is read by a thread."""
        cold = self._store.cold.record(log_offset)
        if cold is None:
            return self._store.record_at(log_offset)
        try:
            return await asyncio.wrap_future(cold)
        except StoreError:
            return self._store.record_at(log_offset)

    async def _search(self, half: Half) -> bool:
        if self._last is not None and _is_message(self._last, half):
            return True
        left = _SLICE_BYTES
        for log_offset in self._places(half):
            if log_offset is None:
                await asyncio.sleep(0)
                left = _SLICE_BYTES
                continue
            page = await self.read(log_offset)
            if page is not None and _is_message(page, half):
                return True
            left -= _cost(page)
            # A view of the log must not outlive the turn.
            del page
            if left <= 0:
                await asyncio.sleep(0)
                left = _SLICE_BYTES
        return False

    def _places(self, half: Half) -> Iterator[int | None]:
        """Log offsets of records that may be the message; None now and then: see ``Query.places_of_key``."""
        for topic in (half.topic, *_WAITING_TOPICS):
            yield from self._store.places_of_key(topic, half.unique_key, count_max=_SAME_KEY_MAX)


def last_record(store: MessageStore) -> bytes | None:
    """The last record of the log that is in a queue."""
    last: QueueEntry | None = max(
        (
            entry
            for topic, queue_id in store.queues()
            for entry in store.entries(topic, queue_id, store.max_offset(topic, queue_id) - 1, 1)
        ),
        default=None,
    )
    page = store.record_at(last.log_offset, last.size) if last is not None else None
    return bytes(page) if page is not None else None


def _name(half: Half) -> _MessageName:
    return _MessageName(half.topic, half.unique_key, half.born_time_ms)


def _cost(page: Buffer | None) -> int:
    return _RECORD_COST + (min(len(page), _READ_BYTES_MAX) if page is not None else 0)


def _is_message(page: Buffer, half: Half) -> bool:
    try:
        record = unpack_record(page, check_crc=False)
    except CorruptRecord:
        return False
    # The index knows hashes only, so another topic may have brought it.
    return (record.topic == half.topic or record.topic in _WAITING_TOPICS) and halves.is_commit_of(record, half)
