"""Which group may read which topic, and what may be moved: one rule for every way of reading (D1, D2, F9, I1, J1).

``Access.may_read`` is asked by pulls, pops and queries; Spark's source pulls, so it is asked for Spark, too (its file
source reads a directory, where the permissions of the file system count).

================================  ===================  ==========================  ======================
rule                              pull (11, 361)       pop, peek, notify, share    query by key or id
================================  ===================  ==========================  ======================
the broker may be read            yes                  yes                         —
the topic exists                  yes                  yes                         —
the topic has permission to read  yes                  yes                         —
the group may consume             yes                  yes                         no group
not forbidden for the group (353) yes                  yes                         no group
internal topics                   TOOLS_CONSUMER only  no                          yes
halves of transactions            no                   no                          no
================================  ===================  ==========================  ======================

*Internal topics* hold messages that wait for their time or for a commit, and the broker's own notes
(``names.is_internal_topic``). Reading one as a consumer would deliver what is not due. A pop would hide messages of
them and write copies; tools look at them by pulls. A query shows one record, and changes nothing. Messages of internal
topics cannot be sent back either, and offsets on them cannot be moved: the revive log is read from such an offset on.
RocketMQ lets clients pull and pop all of them, and lets a group pop what it may not pull.

*Halves of transactions* are shown to no caller, not even to tools: a message that is not committed does not exist (J1).
What is open is told by ``tern transaction list``, without bodies.
"""

from __future__ import annotations

from enum import Enum

from ternmq.broker.config import READ, BrokerConfig
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.topics import Topics
from ternmq.errors import CorruptRecord, InvalidParameter, NoPermission, NotFound
from ternmq.names import HALF_TOPIC, TOOLS_GROUP, is_internal_topic
from ternmq.types import Buffer
from ternmq.wire.bodies.groups import SubscriptionGroupConfig
from ternmq.wire.bodies.topics import TopicConfig
from ternmq.wire.record import unpack_record


class Way(Enum):
    """How a topic is read."""

    PULL = "pulling"
    #: Also peek, notification and polling info.
    POP = "peeking"
    #: By pulls of shared consumption.
    SHARE = "sharing"
    #: By key or id; tools ask without a group.
    QUERY = "querying"


class Access:
    """All methods belong to the broker's loop."""

    def __init__(self, config: BrokerConfig, *, topics: Topics, groups: Groups) -> None:
        self._topics = topics
        self._groups = groups
        self.apply(config)

    def apply(self, config: BrokerConfig) -> None:
        self._readable = bool(config.broker_permission & READ)

    def group(self, name: str, *, creates: bool) -> SubscriptionGroupConfig:
        """A group that reads. Only a request that moves it creates it; others leave no trace of its name.

        Raises ``GroupMissing``.
        """
        return self._groups.find(name) if creates else self._groups.for_read(name)

    def may_read(self, group: SubscriptionGroupConfig | None, topic: str, way: Way) -> None:
        """Raise ``TopicMissing`` or ``NoPermission`` if a topic may not be read in this way; a query has no group."""
        if group is None or way is Way.QUERY:
            # It shows single records, of all topics but one, and changes nothing.
            if topic == HALF_TOPIC:
                raise NotFound("can not find message: half messages of transactions are not shown")
            return
        self.topic_for(group, topic, way)

    def topic_for(self, group: SubscriptionGroupConfig, topic: str, way: Way) -> TopicConfig:
        """The topic that a group reads; raises as ``may_read``."""
        if not self._readable:
            what = "pop" if way is Way.POP else way.value
            raise NoPermission(f"the broker {what} message is forbidden; set brokerPermission to 6")
        name = group.group_name
        if not group.consume_enable:
            raise NoPermission(f"subscription group no permission, {name}; set its consumeEnable to true")
        config = self._topics.find(topic)
        if not self._groups.may_read(name, topic):
            raise NoPermission(
                f"the consumer group[{name}] is forbidden for topic[{topic}]; an administrator can allow it again "
                "(request code 353)"
            )
        is_for_tools = way is Way.PULL and name == TOOLS_GROUP and topic != HALF_TOPIC
        if is_internal_topic(topic) and not is_for_tools:
            cure = "pop from" if way is Way.POP else "subscribe to"
            raise NoPermission(
                f"the topic[{topic}] {way.value} message is forbidden: it is an internal topic of the broker; {cure} "
                "the topic that the messages were sent to"
            )
        if not config.perm & READ:
            raise NoPermission(f"the topic[{topic}] {way.value} message is forbidden; give it read permission")
        return config


def check_queue(config: TopicConfig, queue_id: int, group: str, *, may_be_all: bool = False) -> None:
    """Raise ``InvalidParameter`` for a queue that cannot be read; ``may_be_all``: below 0 means all queues."""
    if queue_id >= config.read_queue_nums or (queue_id < 0 and not may_be_all):
        raise InvalidParameter(
            f"queueId[{queue_id}] is illegal, topic:[{config.topic_name}] has {config.read_queue_nums} queues "
            f"to read; consumer:[{group}]"
        )


def is_shown(record: Buffer) -> bool:
    """Whether a record may be shown to a caller that names it: all but halves of transactions."""
    try:
        return unpack_record(record, check_crc=False).topic != HALF_TOPIC
    except CorruptRecord:
        # A damaged one is shown as it is, unless it may be a half.
        return HALF_TOPIC.encode() not in bytes(record)


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
