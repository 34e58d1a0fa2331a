"""Offsets that were committed on a slave, on their way to the master (O3); a body of TernMQ's own."""

from __future__ import annotations

from ternmq.wire.bodies.codec import Body, always


class OwnOffset(Body, frozen=True, kw_only=True):
    """How far a group is in a queue, as it was committed on a slave."""

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    #: By the clock of the slave in its file, by that of the master in a request.
    committed_ms: int


class OwnOffsets(Body, frozen=True, kw_only=True):
    """RETURN_OFFSETS 15030, and the file in which a slave keeps them."""

    offsets: list[OwnOffset] = always(list)


class OffsetsTaken(Body, frozen=True, kw_only=True):
    """Its answer: the master's clock, and how many offsets it has taken; its own are newer than the others."""

    now_ms: int
    taken: int = always(int)


class MovedQueue(Body, frozen=True, kw_only=True):
    """A queue, as RocketMQ's bodies have it."""

    topic: str
    broker_name: str
    queue_id: int


class OffsetMoved(Body, frozen=True, kw_only=True):
    """The body of a message of OFFSET_MOVED_EVENT: a pull asked for an offset that its queue does not have."""

    consumer_group: str
    message_queue: MovedQueue
    offset_request: int
    offset_new: int
