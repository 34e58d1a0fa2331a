"""Headers of shared consumption, TernMQ's own (R1–R3): pull 15060, ack 15061, hold 15062, leave 15063, members 15064.

A consumer names itself (``consumer``) with each call. Messages of a pull's answer have the numbers ``first``, ``first``
+ 1 … in the order of the body. ``life`` tells in which life of the broker the numbers were given (``share.pull_log``);
a consumer says it again with each number that it sends.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, field

from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.requests import Call, Int32, Int64, InvisibleMs, carried_by

#: Messages of one answer.
COUNT_MAX: Final = 1_024
#: The name of a consumer is kept with all that its consumer holds, so its bytes are limited.
_CONSUMER: Final = re.compile(r"[^/\s\x00-\x20\x7f\ud800-\udfff]+\Z")
_CONSUMER_BYTES_MAX: Final = 255

#: How long a pull may wait.
PollMs: TypeAlias = Annotated[int, Meta(ge=0, le=3_600_000)]


def is_consumer(name: str) -> bool:
    """Whether this can be the name of a consumer: 1 to 255 bytes without slashes and blanks."""
    return _CONSUMER.match(name) is not None and len(name.encode()) <= _CONSUMER_BYTES_MAX


@carried_by(Code.SHARE_PULL)
class SharePull(Call, kw_only=True):
    """SHARE_PULL 15060. ``held`` is the last number that the consumer has, -1 for none. ``init_mode`` 1: a group that
    is new to a queue begins behind its last message. ``hold_ms`` 0: the broker takes nothing back while the consumer
    lives. ``order``: messages of one key are held by one consumer at a time."""

    consumer_group: str
    topic: str
    consumer: str
    count_max: Int32
    bytes_max: Int32 = 256 * 1024
    held: Int64 = -1
    life: Int64 = 0
    hold_ms: InvisibleMs = field(default=0, name="holdTime")
    poll_ms: PollMs = 0
    init_mode: Int32 = 0
    expression_type: str | None = field(default=None, name="expType")
    subscription: str | None = field(default=None, name="exp")
    order: bool | None = None


class SharePullReply(Call, kw_only=True):
    """To SHARE_PULL: the number of the first message. ``again``: they were given to this consumer before."""

    first: Int64
    life: Int64
    rest_count: Int64 = field(default=0, name="restNum")
    again: bool = False


@carried_by(Code.SHARE_ACK)
class ShareAck(Call, kw_only=True):
    """SHARE_ACK 15061: the numbers ``first`` to ``last`` are done. Without ``last`` it is a heartbeat."""

    consumer_group: str
    topic: str
    consumer: str
    life: Int64 = 0
    first: Int64 = 0
    last: Int64 | None = None


@carried_by(Code.SHARE_HOLD)
class ShareHold(Call, kw_only=True):
    """SHARE_HOLD 15062: take the numbers ``first`` to ``last`` back after ``hold_ms`` from now on; 0: not at all."""

    consumer_group: str
    topic: str
    consumer: str
    life: Int64
    first: Int64
    last: Int64
    hold_ms: InvisibleMs = field(name="holdTime")


@carried_by(Code.SHARE_LEAVE)
class ShareLeave(Call, kw_only=True):
    """SHARE_LEAVE 15063: the consumer ends; other members may have what it holds."""

    consumer_group: str
    topic: str
    consumer: str


@carried_by(Code.GET_SHARE_MEMBERS)
class GetShareMembers(Call, kw_only=True):
    """GET_SHARE_MEMBERS 15064: the consumers of a group that take messages by SHARE_PULL, by topic and name. An answer
    that has ``more`` is not the last one: ask for those behind its last topic and consumer."""

    consumer_group: str
    after_topic: str = ""
    after_consumer: str = ""
