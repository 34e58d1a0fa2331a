"""One pull of a shared consumer as values: what it wants, what it gets, and what must be read for it first (R1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ternmq.store.log.protocol import Piece
from ternmq.store.read.query import GetResult
from ternmq.types import Accepts, IsOver, Matches
from ternmq.wire.record import unpack_place


class ShareTakeStore(Protocol):
    """What taking, and reading the keys of what was taken, needs of the message store."""

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int | None = None,
        matches: Matches | None = None,
        accepts: Accepts | None = None,
        is_over: IsOver | None = None,
        leave_cold: bool = False,
    ) -> GetResult: ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...


@dataclass(slots=True, frozen=True)
class ShareWish:
    """What a consumer wants of a topic."""

    group: str
    topic: str
    consumer: str
    count_max: int
    bytes_max: int
    #: The last number that it has, and in which life it got it.
    held: int
    held_life: int
    #: When what it gets is taken back; 0: not while the consumer lives.
    due_ms: int
    matches: Matches | None = None
    accepts: Accepts | None = None
    is_over: IsOver | None = None
    #: Whether a group that is new to a queue begins behind its last message.
    from_last: bool = False
    ordered: bool = False
    #: Messages that it may hold.
    held_max: int = 10_000


@dataclass(slots=True, frozen=True)
class ColdPlace:
    """Records that must be read before they are taken: from where, how many, and their places on disk."""

    queue_id: int
    queue_offset: int
    count: int
    pieces: list[Piece]


@dataclass(slots=True)
class ShareTaken:
    """What it gets. The messages have the numbers ``first``, ``first`` + 1 …"""

    first: int = -1
    life: int = 0
    buffers: list[memoryview] = field(default_factory=list)
    count: int = 0
    body_bytes: int = 0
    #: Whether these were given to it before.
    is_again: bool = False
    #: Whether it holds as much as it may.
    is_full: bool = False
    #: Messages that are left in the queues.
    rest: int = 0
    #: A filter let nothing through so far, and there is more to look at.
    unfinished: bool = False
    #: Where the log must be confirmed before the messages may go out; 0: nothing was written.
    end_offset: int = 0
    cold: ColdPlace | None = None
    #: Whether there is nothing new because keys of held messages must be read first.
    is_unread: bool = False
    #: Other consumers that were given messages.
    others: list[str] = field(default_factory=list)

    @property
    def is_more_to_look_at(self) -> bool:
        """Whether a pull that found nothing for its consumer may find something without an arrival: a filter has left
        the rest for later, or all so far was for others."""
        return self.unfinished or (bool(self.others) and self.rest > 0)


def records_in(buffers: Sequence[memoryview]) -> Iterator[tuple[memoryview, int]]:
    """Each record, and its queue offset."""
    for view in buffers:
        at = 0
        while at < len(view):
            size, queue_offset = unpack_place(view, at)
            yield view[at : at + size], queue_offset
            at += size
