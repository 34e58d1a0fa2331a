"""The progress of reading a slice, and what to request next; a core (U1, V2).

A pull has a queue offset and a count; the reply has the records from there on and the next offset. Brokers return fewer
than requested: RocketMQ 32 at a time, TernMQ as many as fit into some hundred KiB. The round trips would take most of
the time, so the cursor guesses: if the last pull covered n offsets, the next one will, too, and the following pulls are
sent before it is answered. A right guess doubles the number of pulls in progress; after a wrong one all early requests
are dropped. If bytes are the broker's limit, somewhat fewer messages are requested than fitted last time: then records
of different sizes rarely make a guess wrong. Only the reply for the offset where the last one ended is used, so wrong
guesses cost time, but never change the order or lose a message.

Deleted messages
    Retention deletes from the front, and a broker that lost its last page in a power cut ends earlier than before.
    Without a filter every queue offset of the slice must arrive, so a gap is visible (``gaps``); with one, only the
    broker's reply shows it. With ``failOnDataLoss`` it is an error, else a warning, and the read continues.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import numpy as np

from ternmq.client.connect.routes import MASTER_ID
from ternmq.errors import MessagesLost
from ternmq.filter.tags import ALL
from ternmq.message import MessageQueue
from ternmq.spark.source.plan import Slice
from ternmq.spark.source.records import Int64s
from ternmq.wire.codes import ResponseCode

log = logging.getLogger(__name__)

#: The count of a first pull.
COUNT_MAX: Final = 1_024
#: A larger reply was probably limited by its bytes, a smaller one by its number of messages.
_MANY_BYTES: Final = 32 * 1024
#: A queue that ends before the slice may be that of a slave, or one that is being recovered: retry this often.
END_ASKED_MAX: Final = 5


@dataclass(slots=True, frozen=True)
class SliceReply:
    """The reply to a pull at ``at``, without its body."""

    at: int
    code: int
    next_offset: int
    min_offset: int
    body_bytes: int
    #: Records were skipped because they were deleted, not because of the filter.
    is_gone: bool
    #: The broker of the set to use for the next pull.
    broker_id: int


@dataclass(slots=True, frozen=True)
class PullParameters:
    """The parameters of a read, without its position."""

    tags: str
    sql: str
    fail_on_data_loss: bool
    retry_timeout_ms: int

    @property
    def is_filtered(self) -> bool:
        return bool(self.sql) or self.tags != ALL

    def lost(self, queue: MessageQueue, first: int, end: int) -> None:
        """Messages of a slice were deleted: raise ``MessagesLost``, or log a warning and continue."""
        lost = MessagesLost(
            f"messages {first} to {end - 1} of {queue} were deleted before they were read; keep messages longer "
            "(fileReservedTime), read them earlier, or set the option failOnDataLoss to false to continue "
            "without them",
            first=first,
            end=end,
        )
        self._raise_or_tell(lost)

    def removed(self, queue: MessageQueue, at: int) -> None:
        """A queue was deleted with messages that a stream had not read: raise ``MessagesLost``, or log a warning."""
        self._raise_or_tell(
            MessagesLost(
                f"{queue} no longer exists: the topic was deleted, or has fewer queues now; messages from offset "
                f"{at} on may be lost; start the stream with a new checkpoint, or set the option failOnDataLoss "
                "to false to continue without the queue",
                first=at,
                end=at,
            )
        )

    def _raise_or_tell(self, lost: MessagesLost) -> None:
        if self.fail_on_data_loss:
            raise lost
        log.warning("%s; continuing without them, because failOnDataLoss is false", lost)


class ReplyKind(Enum):
    """What a reply means."""

    #: Its body has records of the slice.
    RECORDS = auto()
    #: It has no records, and the read continues after it.
    NOTHING = auto()
    #: It has no records where there should be some: retry after a pause.
    AGAIN = auto()


class Cursor:
    """Reads a slice: the pulls of ``to_ask`` are sent, and the replies, in that order, are passed to ``take``."""

    def __init__(self, part: Slice, wanted: PullParameters, *, ahead_max: int = 1) -> None:
        self._queue = part.queue
        self._end = part.end
        self._wanted = wanted
        self._ahead_max = 1 if wanted.is_filtered else ahead_max
        #: The current position: all before it is done.
        self.at = part.start
        #: Offsets of pulls in progress, the next one first.
        self.asked: deque[int] = deque()
        self.broker_id = MASTER_ID
        #: How many pulls may be in progress, and how many offsets each covers if the guess is right.
        self._depth = 1
        self._count = COUNT_MAX
        self._end_asked = 0

    @property
    def is_done(self) -> bool:
        return self.at >= self._end

    def to_ask(self) -> list[tuple[int, int]]:
        """Offsets and counts of pulls to send now; none while there are enough, because several at once cost less."""
        first = len(self.asked)
        if first > self._depth // 2:
            return []
        at = self.asked[-1] + self._count if self.asked else self.at
        self.asked.extend(range(at, self._end, self._count)[: self._depth - first])
        return [(at, self._count_at(at)) for at in itertools.islice(self.asked, first, None)]

    def forget(self) -> None:
        """The replies to all pulls in progress are not needed."""
        self.asked.clear()
        self._depth = 1

    def take(self, pulled: SliceReply) -> ReplyKind:
        """Continue after a reply. Raises ``MessagesLost``."""
        self.asked.popleft()
        self.broker_id = pulled.broker_id
        if not self._wanted.is_filtered:
            self._learn(pulled)
        if pulled.code == ResponseCode.SUCCESS:
            self.at = pulled.next_offset
            return ReplyKind.RECORDS
        if pulled.code == ResponseCode.PULL_OFFSET_MOVED or pulled.next_offset <= pulled.at:
            return self._not_there(pulled)
        if pulled.is_gone:
            self._gone(pulled.next_offset)
        self.at = pulled.next_offset
        return ReplyKind.NOTHING

    def _count_at(self, at: int) -> int:
        # Without a filter, offsets are messages; with one, messages beyond the end are dropped later.
        return self._count if self._wanted.is_filtered else min(self._count, self._end - at)

    def _learn(self, pulled: SliceReply) -> None:
        led, asked = pulled.next_offset - pulled.at, self._count_at(pulled.at)
        if led == asked:
            self._depth = min(self._depth * 2, self._ahead_max)
            return
        self.forget()
        if 0 < led < asked:
            self._count = max(1, led * 7 // 8) if pulled.body_bytes > _MANY_BYTES else led

    def _not_there(self, pulled: SliceReply) -> ReplyKind:
        """There is no record at ``at``, although the slice has it: deleted, lost, or not there *yet*."""
        self.forget()
        if pulled.min_offset <= self.at and self._end_asked < END_ASKED_MAX:
            # The missing record is not before the queue's front. A slave may lag behind, so ask the master.
            self.broker_id = MASTER_ID
            self._end_asked += 1
            return ReplyKind.AGAIN
        resume = min(pulled.min_offset, self._end) if pulled.min_offset > self.at else self._end
        self._gone(resume)
        self.at = resume
        return ReplyKind.NOTHING

    def _gone(self, end: int) -> None:
        # Without a filter, the check of the records finds the gap.
        if self._wanted.is_filtered:
            self._wanted.lost(self._queue, self.at, min(end, self._end))


class Expected:
    """Without a filter, all queue offsets of a slice must arrive in order; with one, any may be missing."""

    def __init__(self, part: Slice, wanted: PullParameters) -> None:
        self._part = part
        self._wanted = wanted
        self._next = part.start

    def check(self, queue_offsets: Int64s) -> None:
        """Check the next records. Raises ``MessagesLost`` for gaps before or between them."""
        if self._wanted.is_filtered or not len(queue_offsets):
            return
        for first, end in gaps(queue_offsets, self._next):
            self._wanted.lost(self._part.queue, first, end)
        self._next = int(queue_offsets[-1]) + 1

    def check_end(self) -> None:
        """Check that none is missing at the end."""
        if not self._wanted.is_filtered and self._next < self._part.end:
            self._wanted.lost(self._part.queue, self._next, self._part.end)


def gaps(queue_offsets: Int64s, expected: int) -> list[tuple[int, int]]:
    """The gaps in growing offsets whose first should be ``expected``: first and end of each gap."""
    before = np.concatenate(([expected - 1], queue_offsets[:-1])) if len(queue_offsets) else queue_offsets
    holes = np.flatnonzero(queue_offsets != before + 1)
    return [(int(before[hole]) + 1, int(queue_offsets[hole])) for hole in holes]
