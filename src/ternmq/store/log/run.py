"""Sends of one read, appended together (C1, E1), where compiled kernels are used.

A run of plain sends (``wire.frame``) becomes records, queue entries, index entries and replies in one call; it leaves
the bytes that ``RecordWriter.put`` would leave. The kernel has no state: the end of the log and the next offsets of
the queues are read before the call, and moved behind it, where they always are.

The log seals the records, and fills the bytes in front of them where it has such. What the kernel derived from them is
dispatched at once, or when the log confirms them (``store.log.pending``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from ternmq.kernels import HAS_NATIVE, native
from ternmq.store.config import FlushDiskType, StoreConfig
from ternmq.store.derived.parts import Closings
from ternmq.store.derived.queue import ConsumeQueue
from ternmq.store.log.protocol import Log
from ternmq.store.log.writer import RecordLimits
from ternmq.wire.layouts.queue_entry import ENTRY_BYTES
from ternmq.wire.record import HOST_V4_BYTES, NO_HOST_FLAGS, Page, Sysflag

if TYPE_CHECKING:
    from ternmq._native import ReplyForm, Sends, SendTerms

#: Index entries that may wait with a few small records.
_WAITING_KEYS_BYTES_MAX: Final = 64 << 10
_SYSFLAG_MASK: Final = NO_HOST_FLAGS & ~Sysflag.TRANSACTION_MASK


#: What the records of a run add to one queue: the queue, its new entries, the log offset behind the last of them, the
#: bytes of the bodies, and each tags code, with the queue offset behind its last record. A plain tuple: a kernel makes
#: one for each queue of each run.
RunPart: TypeAlias = tuple[ConsumeQueue, bytes, int, int, list[tuple[int, int]]]


def record_count(part: RunPart) -> int:
    """How many records these are."""
    return len(part[1]) // ENTRY_BYTES


class SealedRun(msgspec.Struct, frozen=True):
    """Records of a run that were sealed together, and what a kernel made of them.

    Their queues have neither due times nor units; only that of the timer may be needed by a further part.
    """

    parts: list[RunPart]
    #: Index entries.
    keys: bytes
    #: Log offset of the last record, and behind it.
    last_offset: int
    end_offset: int
    store_time_ms: int
    #: Whether, and how, they close other records.
    closings: Closings | None = None


class PlacedRun(msgspec.Struct, frozen=True):
    """What became of a run."""

    #: Number of the first send that is not stored.
    next: int
    #: For each topic one of its queues, how many messages it has got, and the bytes of their bodies.
    counts: list[tuple[ConsumeQueue, int, int]]
    #: Of all that are stored, as frames.
    replies: bytes
    #: Log offsets behind the records of senders that get a reply, as numbers of 8 bytes in the machine's order.
    ends: bytes


class PackingRoom(NamedTuple):
    """Where a kernel may pack whole records, one behind the other, and what they need to know."""

    page: Page
    #: Between these positions of the page.
    at: int
    end: int
    #: Of the first record, and bytes between two, which the log fills.
    log_offset: int
    lead: int
    store_time_ms: int
    store_host: bytes
    #: A record of this size breaks no limit, whatever it is made of.
    unchecked_bytes_max: int
    #: By topic and queue id.
    table: dict[tuple[str, int], ConsumeQueue]


class PackedRun(NamedTuple):
    """Records that stand in the room for them."""

    #: Log offset behind the last of them, and of the last.
    end_offset: int
    last_offset: int
    parts: list[RunPart]
    #: Index entries.
    keys: bytes
    closings: Closings | None = None


#: Packs records into a room; None if it packed none.
RunPacker: TypeAlias = Callable[[PackingRoom], PackedRun | None]


def may_wait(log: Log, keys: bytes, record_bytes: int) -> bool:
    """Whether index entries may wait with their records, where these wait. One takes 20 bytes, and a key may have a
    single byte: then the texts of the records, which wait otherwise, take less memory."""
    return log.confirms_at_once or len(keys) <= max(_WAITING_KEYS_BYTES_MAX, record_bytes)


class RunWriter:
    """Belongs to the store's thread, like all that it writes to."""

    def __init__(
        self,
        config: StoreConfig,
        log: Log,
        table: dict[tuple[str, int], ConsumeQueue],
        dispatch: Callable[[SealedRun], None],
        *,
        store_host: bytes,
        now_ms: Callable[[], int],
        limits: RecordLimits,
        wake: Callable[[], None],
    ) -> None:
        """``dispatch`` takes in what was sealed: ``Dispatcher.fresh_run``, or ``Pending.fresh_run`` if the log confirms
        later. ``wake`` is called under SYNC_FLUSH after each run."""
        self._log = log
        self._table = table
        self._dispatch = dispatch
        self._store_host = store_host
        self._now_ms = now_ms
        self._limits = limits
        self._is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._wake = wake
        self._can_run = HAS_NATIVE and len(store_host) == HOST_V4_BYTES
        #: Whether what is sealed is as safe as this store makes it.
        self._is_safe_at_once = log.confirms_at_once and not log.lead and not self._is_sync

    def terms(self, more_properties: bytes, marks: Sequence[bytes]) -> SendTerms | None:
        """What ``put`` needs to know of all sends: the properties that stand behind those of each, and texts in
        properties that make a send special. None if this store takes no runs."""
        if not self._can_run:
            return None
        return native.SendTerms(
            store_host=self._store_host,
            more_properties=more_properties,
            marks=marks,
            sysflag_mask=_SYSFLAG_MASK,
            body_bytes_max=self._limits.body_bytes_max,
            record_bytes_max=self._limits.record_bytes_max,
        )

    def put(
        self,
        sends: Sends,
        first: int,
        plain: Mapping[str, int],
        *,
        count_max: int,
        terms: SendTerms,
        form: ReplyForm,
        born_host: bytes,
    ) -> PlacedRun | None:
        """Append and dispatch the sends from number ``first`` on, up to one that is not plain, at most ``count_max``.

        ``plain`` has the topics to which sends can go without further questions, with the number of their queues. None
        if ``RecordWriter.put`` must decide about the first one, and nothing was stored.
        """
        window = self._log.window
        log_offset, limit = window.at, window.limit
        if limit <= log_offset:
            return None
        get_queue, count_of = self._table.get, plain.get
        targets: list[tuple[ConsumeQueue, int, bytes] | None] = []
        for place in sends.places:
            queue = get_queue(place)
            if queue is None or queue.is_special or place[1] >= count_of(place[0], 0):
                targets.append(None)
            else:
                # What ``queue.assigned`` says.
                targets.append((queue, queue.next_offset + queue.pending, queue.topic_part))
        store_time_ms = self._now_ms()
        base = window.base
        made = native.store_sends(
            sends,
            terms,
            form,
            first,
            first + count_max,
            window.page,
            log_offset - base,
            limit - base,
            self._log.lead,
            log_offset,
            store_time_ms,
            born_host,
            targets,
        )
        if made is None:
            return None
        number, end_offset, last_offset, parts, counts, keys, replies, ends = made
        if not may_wait(self._log, keys, end_offset - log_offset):
            return None
        self._log.seal(end_offset, store_time_ms)
        self._dispatch(SealedRun(parts, keys, last_offset, end_offset, store_time_ms))
        if self._is_sync:
            self._wake()
        return PlacedRun(number, counts, replies, ends)

    def put_packed(self, pack: RunPacker, *, answers_at_once: bool = True) -> bool:
        """Append and dispatch records that ``pack`` makes.

        False if it packed none, there is no room, or they have too many keys to wait: nothing was stored. With
        ``answers_at_once`` senders are told at once that their records are stored: False, too, if they have to wait
        for the log or the disk.
        """
        window = self._log.window
        log_offset, limit, base = window.at, window.limit, window.base
        if limit <= log_offset or not self._can_run or (answers_at_once and not self._is_safe_at_once):
            return False
        store_time_ms = self._now_ms()
        packed = pack(
            PackingRoom(
                window.page,
                log_offset - base,
                limit - base,
                log_offset,
                self._log.lead,
                store_time_ms,
                self._store_host,
                self._limits.unchecked_bytes_max,
                self._table,
            )
        )
        if packed is None:
            return False
        end_offset, last_offset, parts, keys, closings = packed
        if not may_wait(self._log, keys, end_offset - log_offset):
            return False
        self._log.seal(end_offset, store_time_ms)
        self._dispatch(SealedRun(parts, keys, last_offset, end_offset, store_time_ms, closings))
        if self._is_sync:
            self._wake()
        return True
