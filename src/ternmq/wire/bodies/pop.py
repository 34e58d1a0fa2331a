"""What pop keeps in the revive topic and in its files (F9): the names are RocketMQ's (``PopCheckPoint``, ``AckMsg``,
``BatchAckMsg``, ``ConsumerOrderInfoManager``).

Each number has the bounds that it has in Java, and no list is longer than a pop: a record that exceeds them is refused
when it is decoded, before its numbers are used.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Raw, field

from ternmq.wire.bodies.codec import Body, always
from ternmq.wire.handles import COUNT_MAX

#: A topic or a group. A name with a separator of properties in it could not be stored in any record.
_Name: TypeAlias = Annotated[str, Meta(max_length=255, pattern=r"^[^\x01\x02]+$")]
_Int32: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
_Int64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_QueueId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Offset: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
_Offsets: TypeAlias = Annotated[list[_Offset], Meta(max_length=COUNT_MAX)]


class CheckPointRecord(Body, frozen=True, kw_only=True):
    """A check point in the revive topic, tag ``ck``. ``diffs`` are queue offsets less the first; old ones lack them."""

    start_offset: _Offset = field(name="so")
    pop_time_ms: _Int64 = field(name="pt")
    invisible_ms: _Int64 = field(name="it")
    bits: _Int32 = always(int, name="bm")
    count: _Count = field(name="n")
    queue_id: _QueueId = field(name="q")
    topic: _Name = field(name="t")
    group: _Name = field(name="c")
    revive_offset: _Int64 = always(int, name="ro")
    diffs: _Offsets = always(list, name="d")
    broker_name: str | None = field(default=None, name="bn")


class AckRecord(Body, frozen=True, kw_only=True):
    """An ack of a check point in the revive topic, tag ``ack``; with ``offsets`` of many messages, tag ``bAck``."""

    queue_offset: _Int64 = field(default=-1, name="ao")
    start_offset: _Offset = field(name="so")
    group: _Name = field(name="c")
    topic: _Name = field(name="t")
    queue_id: _QueueId = field(name="q")
    pop_time_ms: _Int64 = field(name="pt")
    broker_name: str | None = field(default=None, name="bn")
    offsets: _Offsets | None = field(default=None, name="aol")


class OrderRecord(Body, frozen=True, kw_only=True):
    """The messages of a queue that the last ordered pop returned."""

    pop_time_ms: _Int64 = field(name="popTime")
    invisible_ms: _Int64 | None = field(default=None, name="i")
    #: The first queue offset, and those of the others less the first.
    offsets: _Offsets = always(list, name="o")
    #: By queue offset: when the message becomes visible again, if that was changed.
    visible_ms: dict[_Offset, _Int64] | None = field(default=None, name="ot")
    #: By queue offset: how often the message was delivered before.
    counts: dict[_Offset, _Int32] | None = field(default=None, name="oc")
    last_time_ms: _Int64 = always(int, name="l")
    bits: _Int64 = always(int, name="cm")
    attempt_id: str | None = field(default=None, name="a")


class OrderTable(Body, frozen=True, kw_only=True):
    """``config/consumerOrderInfo.json``: by ``topic@group``, then queue id an ``OrderRecord`` in JSON, which is decoded
    by itself: a bad one must not make the others unreadable."""

    table: dict[str, dict[int, Raw]] = always(dict)
