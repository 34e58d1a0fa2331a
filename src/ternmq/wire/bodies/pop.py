"""What pop keeps in the revive topic and in its files (F9): the names are RocketMQ's (``PopCheckPoint``, ``AckMsg``,
``BatchAckMsg``, ``ConsumerOrderInfoManager``)."""

from __future__ import annotations

from msgspec import field

from ternmq.wire.bodies.codec import Body, always


class CheckPointRecord(Body, frozen=True, kw_only=True):
    """A check point in the revive topic, tag ``ck``. ``diffs`` are queue offsets less the first; old ones lack them."""

    start_offset: int = field(name="so")
    pop_time_ms: int = field(name="pt")
    invisible_ms: int = field(name="it")
    #: Of a signed 32-bit int in Java.
    bits: int = always(int, name="bm")
    count: int = field(name="n")
    queue_id: int = field(name="q")
    topic: str = field(name="t")
    group: str = field(name="c")
    revive_offset: int = always(int, name="ro")
    diffs: list[int] = always(list, name="d")
    broker_name: str | None = field(default=None, name="bn")


class AckRecord(Body, frozen=True, kw_only=True):
    """An ack of a check point in the revive topic, tag ``ack``; with ``offsets`` of many messages, tag ``bAck``."""

    queue_offset: int = field(default=-1, name="ao")
    start_offset: int = field(name="so")
    group: str = field(name="c")
    topic: str = field(name="t")
    queue_id: int = field(name="q")
    pop_time_ms: int = field(name="pt")
    broker_name: str | None = field(default=None, name="bn")
    offsets: list[int] | None = field(default=None, name="aol")


class OrderRecord(Body, frozen=True, kw_only=True):
    """The messages of a queue that an ordered pop handed out last."""

    pop_time_ms: int = field(name="popTime")
    invisible_ms: int | None = field(default=None, name="i")
    #: The first queue offset, and those of the others less the first.
    offsets: list[int] = always(list, name="o")
    #: By queue offset: when it is visible again, if that was changed.
    visible_ms: dict[int, int] | None = field(default=None, name="ot")
    #: By queue offset: how often it was handed out before.
    counts: dict[int, int] | None = field(default=None, name="oc")
    last_time_ms: int = always(int, name="l")
    bits: int = always(int, name="cm")
    attempt_id: str | None = field(default=None, name="a")


class OrderTable(Body, frozen=True, kw_only=True):
    """``config/consumerOrderInfo.json``: by ``topic@group``, then queue id."""

    table: dict[str, dict[int, OrderRecord]] = always(dict)
