"""Internal topics: messages that wait for their time or for a commit, and the broker's own notes (F9, I1, J1).

Reading one as a consumer would deliver what is not due, and moving offsets on one would lose what the broker has to do.
One rule for every request that reads or moves:

    pull (11, 361)                                   only tools, which look around as the group TOOLS_CONSUMER
    pop, peek, notification (200050, 200052, …)      refused: a pop hides messages, and writes copies of them
    send back (36)                                   refused: the copy would be delivered
    commit, reset, clone of offsets (15, 222, 314)   refused: the revive log is read from such an offset on
    queries by key or by message id (12, 33, 309)    allowed: they show a record, and change nothing

Halves of transactions are shown by none of them, not even to tools: a message that is not committed does not exist
(J1). What is open is told by ``tern transaction list``, without bodies.

The topics are those of ``names.is_internal_topic``. All others can be read, also those that clients cannot send to.
RocketMQ lets clients pull and pop all of them.
"""

from __future__ import annotations

from ternmq.broker.tables.groups import TOOLS_GROUP
from ternmq.errors import CorruptRecord, NoPermission
from ternmq.names import HALF_TOPIC, is_internal_topic
from ternmq.types import Buffer
from ternmq.wire.record import unpack_record


def check_pull(topic: str, group: str) -> None:
    """Raise ``NoPermission`` if a group may not pull from a topic."""
    if topic == HALF_TOPIC or (is_internal_topic(topic) and group != TOOLS_GROUP):
        raise NoPermission(
            f"the topic[{topic}] pulling message is forbidden: it is an internal topic of the broker; subscribe "
            "to the topic that the messages were sent to"
        )


def is_shown(record: Buffer) -> bool:
    """Whether a record may be shown to a caller that names it: all but halves."""
    try:
        return unpack_record(record, check_crc=False).topic != HALF_TOPIC
    except CorruptRecord:
        # A damaged one is shown as it is, unless it is a half that cannot be told by its topic.
        return HALF_TOPIC.encode() not in bytes(record)


def check_pop(topic: str) -> None:
    """Raise ``NoPermission`` for a topic that cannot be popped from."""
    if is_internal_topic(topic):
        raise NoPermission(
            f"the topic[{topic}] peeking message is forbidden: it is an internal topic of the broker; pop from "
            "the topic that the messages were sent to"
        )


def check_send_back(topic: str) -> None:
    """Raise ``NoPermission`` for a record that no consumer can have got."""
    if is_internal_topic(topic):
        raise NoPermission(
            f"a message of the topic[{topic}] cannot be sent back: it is an internal topic of the broker"
        )


def check_move(topic: str) -> None:
    """Raise ``NoPermission`` if only the broker moves offsets on a topic."""
    if is_internal_topic(topic):
        raise NoPermission(
            f"the offsets of the topic[{topic}] cannot be changed: it is an internal topic of the broker"
        )
