"""What members of a Raft group answer (P4): the bodies of GET_RAFT_STATUS 15040, GET_DELETED_TOPICS 15042 and
GET_QUEUE_NUMBERS 15043, and what their leader writes to the log for the next one; all of TernMQ."""

from __future__ import annotations

from ternmq.wire.bodies.clients import GroupRequestMode
from ternmq.wire.bodies.codec import Body
from ternmq.wire.bodies.groups import GroupReadable, SubscriptionGroupConfig
from ternmq.wire.bodies.topics import TopicConfig


class RaftMember(Body, frozen=True, kw_only=True):
    """How far a member is. Only the leader and the member itself know; else the numbers are -1."""

    id: str
    #: ``host:port`` of its Raft port.
    address: str
    #: Whether the member that answers is connected to it.
    is_linked: bool
    #: The last entry that it has where it counts, and what it lacks of the leader's log.
    stored_index: int = -1
    lag_entries: int = -1
    lag_bytes: int = -1
    #: A learner gets the log, and votes when it keeps up.
    is_voter: bool = True


class RaftStatus(Body, frozen=True, kw_only=True):
    """Where the member that answers stands."""

    group: str
    id: str
    #: ``leader``, ``follower`` or ``candidate``.
    role: str
    term: int
    #: Empty: not known.
    leader: str
    first_index: int
    last_index: int
    commit_index: int
    #: As leader: whether no other member can lead now. Only then it serves reads.
    has_lease: bool = False
    members: tuple[RaftMember, ...] = ()
    #: Why it takes no part any more; empty while it does.
    trouble: str = ""
    #: What it still waits for, if it lost its disk, or the leader had deleted what it needed: it does not vote.
    filling: str = ""


class QueueNumbers(Body, frozen=True, kw_only=True):
    """Topic → queue → next queue offset, of queues that have no message any more: the log does not tell it."""

    queues: dict[str, dict[int, int]]


class DeletedTopicsBody(Body, frozen=True, kw_only=True):
    """Topic → log offset of its deletion: records before it belong to no topic."""

    topics: dict[str, int]
    #: As in ``TopicTable``.
    changes_included: int | None = None


class MovedGroup(Body, frozen=True, kw_only=True):
    """Where a tool has moved a group: queue → queue offset."""

    group: str
    topic: str
    offsets: dict[int, int]
    #: Members read these queues, and had to be told.
    has_readers: bool = False


class TableChange(Body, frozen=True, kw_only=True):
    """The body of a record of TERNMQ_SYS_TABLES: one change of a topic or a group. One of the members is set."""

    #: Created, or changed.
    topic: TopicConfig | None = None
    #: Deleted together, with their queues and offsets.
    deleted_topics: list[str] | None = None
    #: Created, or changed.
    group: SubscriptionGroupConfig | None = None
    #: Deleted, and whether its offsets were, too.
    deleted_group: str | None = None
    offsets_too: bool = False
    #: Which topic a group may read from now on, or may not.
    readable: GroupReadable | None = None
    #: How a group gets the messages of a topic from now on.
    mode: GroupRequestMode | None = None
    #: A reset, or a copy of the offsets of another group.
    moved: MovedGroup | None = None
