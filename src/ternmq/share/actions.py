"""Actions: what happened to the shared consumption of this broker, as records of an internal topic (R1).

QMQ has an *action log* of its own; here it is the topic ``TERNMQ_SYS_SHARE_LOG``, with one queue, so that slaves and
the members of a Raft group have it with the rest of the log. An action is written before what it says takes effect:

====  ===========  ===============================================================================================
tag   action       what it says
====  ===========  ===============================================================================================
0     ``Mark``     a checkpoint begins here: all that is known follows, as ``Cursors`` and ``Holding`` records
1     ``Cursors``  from where on the group takes messages of these queues, and whether it keeps the order of keys
2     ``Pull``     a consumer was given messages, numbered from ``first`` on; the cursors are behind them now
3     ``Ack``      these numbers of a consumer are confirmed
4     ``Hold``     these numbers of a consumer have another time limit
5     ``MoveRuns`` these numbers of a consumer are another's now, or of none (``LOST``): to be written again
6     ``Gone``     a consumer is forgotten
7     ``Forget``   a group or a topic was deleted
8     ``Holding``  all that one consumer holds, in a checkpoint; ``is_more``: and this, behind the record before
====  ===========  ===============================================================================================

The body of a record is MessagePack: an array of the tag and the fields. What is not such an array, or has numbers that
cannot be, was not written by a broker and is left out of the fold.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from ternmq.errors import RemoteProtocolError
from ternmq.types import Buffer

#: The consumer that holds what has to be written again. No consumer can have this name.
LOST: Final = ""

#: Largest number that Java can hold; offsets and numbers never get near it.
_MAX: Final = 2**62
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_MAX)]
#: A number, or -1 for none.
Before: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=_MAX)]
QueueId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
MessageCount: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
#: Queue id, and the queue offset of the next message to hand out.
QueueCursor: TypeAlias = tuple[QueueId, Number]
#: Queue id, first queue offset, how many: neighbours in one queue.
Stretch: TypeAlias = tuple[QueueId, Number, MessageCount]
#: First number, queue id, first queue offset, how many, life, time limit.
HeldRun: TypeAlias = tuple[Number, QueueId, Number, MessageCount, Number, Number]


class Mark(msgspec.Struct, frozen=True, array_like=True, tag=0):
    time_ms: Number


class Cursors(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """``ordered``: whether one consumer at a time holds messages of a key from now on; None: as before."""

    group: str
    topic: str
    cursors: list[QueueCursor]
    ordered: bool | None = None


class Pull(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """``life`` is that of the term in which the messages were given (``pull_log``); ``due_ms`` 0: no time limit."""

    group: str
    topic: str
    consumer: str
    first: Number
    life: Number
    due_ms: Number
    runs: list[Stretch]
    cursors: list[QueueCursor]


class Ack(msgspec.Struct, frozen=True, array_like=True, tag=3):
    group: str
    topic: str
    consumer: str
    first: Number
    last: Number


class Hold(msgspec.Struct, frozen=True, array_like=True, tag=4):
    group: str
    topic: str
    consumer: str
    first: Number
    last: Number
    due_ms: Number


class MoveRuns(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """``at`` is the first number that the messages get as ``to``'s. ``runs`` says which messages: in a fold that begins
    with a checkpoint, what the first consumer holds may come later."""

    group: str
    topic: str
    consumer: str
    first: Number
    last: Number
    to: str
    at: Number
    life: Number
    due_ms: Number
    runs: list[Stretch]


class Gone(msgspec.Struct, frozen=True, array_like=True, tag=6):
    group: str
    topic: str
    consumer: str


class Forget(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """All of a group, or all of a topic; the other one is empty."""

    group: str
    topic: str


class Holding(msgspec.Struct, frozen=True, array_like=True, tag=8):
    group: str
    topic: str
    consumer: str
    pulled: Before
    runs: list[HeldRun]
    is_more: bool = False


ShareAction: TypeAlias = Mark | Cursors | Pull | Ack | Hold | MoveRuns | Gone | Forget | Holding

encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(ShareAction).decode


def decode(body: Buffer) -> ShareAction:
    """The action that a record's body is; raises ``RemoteProtocolError``."""
    try:
        action: ShareAction = _decode(body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise RemoteProtocolError(f"a record is no action of shared consumption: {error}") from None
    return action
