"""One pull of a shared consumer as values: what it wants, what it gets, and what must be read for it first (R1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ternmq.store.log.protocol import Piece
from ternmq.store.read.taking import TakeWish
from ternmq.wire.record import unpack_place


@dataclass(slots=True, frozen=True, kw_only=True)
class ShareWish(TakeWish):
    """What a consumer that shares a topic wants of it."""

    consumer: str
    bytes_max: int
    #: The last number that it has, and in which life it got it.
    held: int
    held_life: int
    #: When what it gets is taken back; 0: not while the consumer lives.
    due_ms: int
    #: Messages that it may hold.
    held_max: int


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
    #: Messages that are left in the queues, at least.
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
