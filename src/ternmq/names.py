"""Names with a special meaning: system topics, retry and dead-letter topics, and the rules
that topic and group names follow (D1, E2, H1)."""

from __future__ import annotations

import re
from typing import Final

from ternmq.errors import InvalidName

TOPIC_LENGTH_MAX: Final = 127
#: Retry and dead-letter topics have a prefix before the group's name.
DERIVED_TOPIC_LENGTH_MAX: Final = 255
GROUP_LENGTH_MAX: Final = 120

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
#: A broker accepts longer group names than our clients: Java's may be as long as the retry topic allows.
SERVED_GROUP_LENGTH_MAX: Final = DERIVED_TOPIC_LENGTH_MAX - len(RETRY_PREFIX)
#: RocketMQ 5 names its own topics with this prefix.
SYSTEM_PREFIX: Final = "rmq_sys_"
#: The only such topics that clients write: traces, if RocketMQ's clients are configured to use a cloud service.
TRACE_DATA_PREFIX: Final = "rmq_sys_TRACE_DATA_"
#: The Spark sink names its own topics with this prefix, and writes to them as a producer of this group.
SPARK_PREFIX: Final = "TERNMQ_SPARK_"
SPARK_GROUP: Final = "TERNMQ_SPARK"
#: The topic with pop's check points (F9), and the group with the progress in it.
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
#: Every broker has this group, for tools that read without being a member of a group.
TOOLS_GROUP: Final = "TOOLS_CONSUMER"

#: Producers use this topic's route for a topic that does not exist yet (D1).
AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
#: Attributes of a topic or group, of TernMQ: messages and bytes a second that may be sent to it, or given to it (M1).
QUOTA_MESSAGES: Final = "quota.messages"
QUOTA_BYTES: Final = "quota.bytes"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
#: The first record of each term of a Raft group (P1).
RAFT_TERM_TOPIC: Final = "TERNMQ_SYS_RAFT_TERM"
#: The members of a Raft group, at each change (P1).
RAFT_MEMBERS_TOPIC: Final = "TERNMQ_SYS_RAFT_MEMBERS"
#: Changes of topics and groups in a Raft group (P4).
TABLES_TOPIC: Final = "TERNMQ_SYS_TABLES"
#: The actions of shared consumption (R1), and the group that notes where their last checkpoint is.
SHARE_TOPIC: Final = "TERNMQ_SYS_SHARE_LOG"
SHARE_GROUP: Final = "CID_RMQ_SYS_TERNMQ_SHARE"
#: Where RocketMQ 5 keeps messages with an individual delivery time.
WHEEL_TOPIC: Final = "rmq_sys_wheel_timer"

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        BENCHMARK_TOPIC,
        OFFSET_MOVED_TOPIC,
        RAFT_TERM_TOPIC,
        RAFT_MEMBERS_TOPIC,
        TABLES_TOPIC,
        SHARE_TOPIC,
    }
)

#: Topics that an application may not send to (RocketMQ's ``NOT_ALLOWED_SEND_TOPIC_SET``); see ``may_send``.
UNSENDABLE_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        RAFT_TERM_TOPIC,
        RAFT_MEMBERS_TOPIC,
        TABLES_TOPIC,
        SHARE_TOPIC,
    }
)
#: Topics of waiting messages, and of records that the broker writes for itself; see ``is_internal_topic``.
_INTERNAL_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        WHEEL_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        RAFT_TERM_TOPIC,
        RAFT_MEMBERS_TOPIC,
        TABLES_TOPIC,
        SHARE_TOPIC,
    }
)

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
#: Pop's retry topics in their second form have a plus between group and topic.
_POP_RETRY_NAME: Final = re.compile(r"%RETRY%[%|a-zA-Z0-9_-]+\+[%|a-zA-Z0-9_-]+\Z")


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def is_retry_topic(topic: str) -> bool:
    """Of either kind: of a group, or of a group and topic."""
    return topic.startswith(RETRY_PREFIX)


def pop_retry_topic(group: str, topic: str) -> str:
    """The topic of messages that a group popped from a topic and did not ack. In the first form, group "a" and topic
    "b" share it with the retries of a group "a_b"; the second form is unambiguous."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def pop_retry_topic_v2(group: str, topic: str) -> str:
    return f"{RETRY_PREFIX}{group}+{topic}"


def namesake(group: str, topic: str) -> str:
    """The group whose retry topic has the name of ``pop_retry_topic``. If there is such a group, the second form of the
    name is used."""
    return f"{group}_{topic}"


def popped_topic(group: str, topic: str) -> str:
    """The topic from which a group popped, if ``topic`` is one of its retry topics; else ``topic`` itself.

    >>> popped_topic("billing", "%RETRY%billing_orders"), popped_topic("billing", "orders")
    ('orders', 'orders')
    """
    for form in (pop_retry_topic, pop_retry_topic_v2):
        prefix = form(group, "")
        if topic.startswith(prefix) and topic != prefix:
            return topic.removeprefix(prefix)
    return topic


def revive_topic(cluster: str) -> str:
    return REVIVE_PREFIX + cluster


def dead_letter_topic(group: str) -> str:
    return DEAD_LETTER_PREFIX + group


def reply_topic(cluster: str) -> str:
    return f"{cluster}_REPLY_TOPIC"


def is_derived_topic(topic: str) -> bool:
    """Whether a topic belongs to one group: its retries or its dead letters."""
    return topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def is_internal_topic(topic: str) -> bool:
    """Whether a topic holds messages that must not be delivered yet (delayed, or half of a transaction), or records of
    the broker: consuming from it would deliver messages that are not due."""
    return topic in _INTERNAL_TOPICS or topic.startswith(REVIVE_PREFIX)


def may_send(topic: str, producer_group: str = "") -> bool:
    """Whether a client may send to a topic: not to RocketMQ's list, nor to topics that only brokers write.

    Clients write traces. Only the Spark sink writes to its stage and its ledger.
    """
    if topic.startswith(SYSTEM_PREFIX):
        return topic.startswith(TRACE_DATA_PREFIX)
    if topic.startswith(SPARK_PREFIX):
        return producer_group == SPARK_GROUP
    return topic not in UNSENDABLE_TOPICS


def check_topic(topic: str) -> str:
    """Return ``topic``, or raise ``InvalidName`` with the rule that it breaks (E2)."""
    length_max = DERIVED_TOPIC_LENGTH_MAX if is_derived_topic(topic) else TOPIC_LENGTH_MAX
    pattern = _POP_RETRY_NAME if topic.startswith(RETRY_PREFIX) and "+" in topic else _NAME
    return _check("topic", topic, length_max, pattern)


def check_group(group: str, *, length_max: int = GROUP_LENGTH_MAX) -> str:
    """Return ``group``, or raise ``InvalidName`` with the rule that it breaks."""
    return _check("group", group, length_max)


def _check(kind: str, name: str, length_max: int, pattern: re.Pattern[str] = _NAME) -> str:
    if not name:
        raise InvalidName(f"the {kind} name is empty; give it a name of 1 to {length_max} characters", name=name)
    if len(name) > length_max:
        raise InvalidName(
            f"the {kind} name {name[:40]!r}… has {len(name)} characters; use at most {length_max}", name=name
        )
    if not pattern.match(name):
        raise InvalidName(
            f"the {kind} name {name!r} has characters that are not allowed; use letters, digits, '-', '_', '%' and '|'",
            name=name,
        )
    return name
