"""The body of GET_SHARE_MEMBERS 15064, TernMQ's own (R3)."""

from __future__ import annotations

from msgspec import field

from ternmq.wire.bodies.codec import Body


class ShareMember(Body, frozen=True, kw_only=True):
    """One consumer of a topic. ``state`` is online, offline or gone; without a name, it is what waits to be written
    again."""

    topic: str
    consumer: str
    state: str
    #: Messages that it holds, and the last number that it was given; all up to ``acked`` are confirmed.
    held: int = 0
    pulled: int = -1
    acked: int = -1
    #: How long it was not heard of.
    idle_ms: int = 0


class ShareMembers(Body, frozen=True, kw_only=True):
    """Those of one answer, and whether there are more."""

    members: list[ShareMember] = field(default_factory=list)
    more: bool = False
