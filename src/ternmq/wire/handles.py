"""The texts of the pop protocol (F9): the handle of a popped message, and the message lists in a reply.

A *handle* is what a consumer sends to ack a message or to change its invisible time. It is the property
POP_CK, eight fields joined by blanks::

    startOffset popTime invisibleTime reviveQueueId retry brokerName queueId queueOffset

The first four identify the check point that the broker made for all messages of one pop and one queue, the last three
the message. ``retry`` says which topic they were popped from: the topic itself, or one of its two retry topics. Handles
that passed RocketMQ's proxy have a ninth field, the log offset, which is ignored here.

A reply has the same data for all its messages, in one text for each field, with entries joined by ``;``::

    startOffsetInfo   retry queueId startOffset
    msgOffsetInfo     retry queueId queueOffset,queueOffset,…
    orderCountInfo    retry queueId count · retry qo<queueId>%<queueOffset> count

The client builds the handles from it, except for messages from retry topics: the broker builds those.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ternmq import names
from ternmq.errors import RemoteProtocolError

#: Used instead of a revive queue: popped in order, without a check point.
ORDERED: Final = 999
#: Queue id of a pop: all queues of the broker.
ALL_QUEUES: Final = -1
#: Messages of one pop: the acks of a check point are bits of a Java int.
COUNT_MAX: Final = 32

#: Where a message was popped from.
NORMAL: Final = 0
RETRY_V1: Final = 1
RETRY_V2: Final = 2

_FIELDS: Final = 8


class Handle(NamedTuple):
    """A parsed POP_CK."""

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    retry: int
    broker_name: str
    queue_id: int
    queue_offset: int

    @staticmethod
    def parse(text: str) -> Handle:
        """Parse a handle; raises ``RemoteProtocolError`` if the text is not one."""
        try:
            start, pop_time, invisible, revive_queue, retry, broker_name, queue_id, queue_offset, *_ = text.split(
                " ", _FIELDS
            )
            return Handle(
                int(start),
                int(pop_time),
                int(invisible),
                int(revive_queue),
                int(retry),
                broker_name,
                int(queue_id),
                int(queue_offset),
            )
        except ValueError:
            raise RemoteProtocolError(
                f"{text!r} is not the handle of a popped message; send its property POP_CK, {_FIELDS} fields"
            ) from None

    @staticmethod
    def check_point(text: str) -> tuple[int, int, int]:
        """Start offset, pop time and revive queue: all that the broker needs. Hot: called for each ack.

        Raises as ``parse``.
        """
        try:
            start, pop_time, _, revive_queue, _ = text.split(" ", 4)
            return int(start), int(pop_time), int(revive_queue)
        except ValueError:
            handle = Handle.parse(text)
            return handle.start_offset, handle.pop_time_ms, handle.revive_queue_id

    @property
    def text(self) -> str:
        return " ".join(map(str, self))

    @property
    def is_ordered(self) -> bool:
        return self.revive_queue_id == ORDERED

    def real_topic(self, group: str, topic: str) -> str:
        """The topic that the message was popped from: ``topic`` or one of its retry topics."""
        return real_topic(group, topic, self.retry)


def real_topic(group: str, topic: str, retry: int) -> str:
    if retry == RETRY_V1:
        return names.pop_retry_topic(group, topic)
    if retry == RETRY_V2:
        return names.pop_retry_topic_v2(group, topic)
    return topic


# --- The message lists of a reply -----------------------------------------------------------------------------


class OffsetInfos:
    """Collects the texts of one reply."""

    __slots__ = ("_counts", "_messages", "_starts")

    def __init__(self) -> None:
        self._starts: list[str] = []
        self._messages: list[str] = []
        self._counts: list[str] = []

    def add(self, retry: int, queue_id: int, start_offset: int, queue_offsets: Sequence[int]) -> None:
        """Add the messages of one queue; call it once for each queue."""
        self._starts.append(f"{retry} {queue_id} {start_offset}")
        self._messages.append(f"{retry} {queue_id} {','.join(map(str, queue_offsets))}")

    def add_counts(self, queue_id: int, counts: dict[int, int], *, least: int) -> None:
        """How often messages of an ordered pop were consumed before, by queue offset; ``least`` is the minimum."""
        self._counts += [f"{NORMAL} qo{queue_id}%{queue_offset} {count}" for queue_offset, count in counts.items()]
        self._counts.append(f"{NORMAL} {queue_id} {least}")

    @property
    def starts(self) -> str:
        return ";".join(self._starts)

    @property
    def messages(self) -> str:
        return ";".join(self._messages)

    @property
    def counts(self) -> str:
        return ";".join(self._counts)


def parse_starts(text: str | None) -> dict[tuple[int, int], int]:
    """``startOffsetInfo``: by retry flag and queue id. Raises ``RemoteProtocolError``."""
    with _refusing(text):
        return {(int(retry), int(queue)): int(start) for retry, queue, start in _entries(text)}


def parse_messages(text: str | None) -> dict[tuple[int, int], list[int]]:
    """``msgOffsetInfo``: by retry flag and queue id. Raises ``RemoteProtocolError``."""
    with _refusing(text):
        return {
            (int(retry), int(queue)): [int(offset) for offset in offsets.split(",")]
            for retry, queue, offsets in _entries(text)
        }


def parse_counts(text: str | None) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    """``orderCountInfo``: by queue id, and by queue id and queue offset. Raises ``RemoteProtocolError``."""
    by_queue: dict[int, int] = {}
    by_offset: dict[tuple[int, int], int] = {}
    with _refusing(text):
        for _, place, count in _entries(text):
            if place.startswith("qo"):
                queue, queue_offset = place[2:].split("%")
                by_offset[int(queue), int(queue_offset)] = int(count)
            else:
                by_queue[int(place)] = int(count)
    return by_queue, by_offset


def _entries(text: str | None) -> Iterator[tuple[str, str, str]]:
    for entry in (text or "").split(";"):
        if entry:
            retry, place, value = entry.split(" ")
            yield retry, place, value


@contextlib.contextmanager
def _refusing(text: str | None) -> Iterator[None]:
    try:
        yield
    except ValueError:
        raise RemoteProtocolError(f"{text!r} in a pop's reply does not have the form 'retry queue value; …'") from None
