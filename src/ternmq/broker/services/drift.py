"""Read drift: which copy of this broker a reader should pull from next (O3).

A reader that is far behind makes the master read from disk what no other reader needs, and its pages push out those of
the newest messages. With ``slaveReadEnable`` the master therefore suggests a slave, in the answer to a pull, and the
slave suggests the master when the reader has caught up. Clients follow with their next pull.

    far     more than 40 % of the memory behind the end of the log (``accessMessageInMemoryMaxRatio``): leave the master
    near    within a quarter of that, 10 % of the memory: leave the slave

Between the two a reader stays where it is. So one that is faster than the writers goes and comes back once, and one
that is slower goes once, if both brokers measure the same. They do not: a slave lags, may have more memory, and one of
RocketMQ sends readers back by another rule. So the master also remembers which readers it has sent away. One that
comes back while it is still far is served here, until it was near.

At the end of its queue a reader is always sent to the master: only the master has what is written next, and a slave
that was cut off from it would let the reader wait for ever. A master suggests only a slave that is connected and keeps
up (``haMaxGapNotInSync``).

A group may prefer a slave for all of its reads (``brokerId`` of the group, 0 is the master); then it stays there while
the slave follows its master.
"""

from __future__ import annotations

from typing import Final, Protocol

from ternmq.broker.config import BrokerConfig
from ternmq.broker.roles import MASTER_ID
from ternmq.store.read.query import GetResult
from ternmq.wire.bodies.groups import SubscriptionGroupConfig

#: Readers that were sent away and are remembered; the oldest is forgotten first, and may be sent away again.
SENT_MAX: Final = 10_000
#: Near is this part of far.
NEAR_PART: Final = 4

#: Group, topic, queue id.
Reader = tuple[str, str, int]


class OwnRole(Protocol):
    """Which copy this broker is."""

    @property
    def is_master(self) -> bool: ...

    @property
    def broker_id(self) -> int: ...


class Copies(Protocol):
    """What replication knows of the copies of this broker."""

    def keeps_up(self, broker_id: int) -> bool:
        """As master: whether that slave is connected and has nearly everything."""
        ...

    @property
    def is_following(self) -> bool:
        """As slave: whether the master's log is being copied now."""
        ...

    @property
    def has_beginning(self) -> bool:
        """As slave: whether it is known that the master has no older messages than this broker."""
        ...


class ReadDrift:
    """Belongs to the broker's loop. ``memory_bytes``: readers further behind than this are far."""

    def __init__(self, config: BrokerConfig, *, role: OwnRole, copies: Copies, memory_bytes: int) -> None:
        self._role = role
        self._copies = copies
        self._near_bytes = memory_bytes // NEAR_PART
        #: Far readers that were sent to a slave, and have not been near since.
        self._sent: dict[Reader, None] = {}
        self.apply(config)

    def apply(self, config: BrokerConfig) -> None:
        self._is_enabled = config.slave_read_enable

    def next_broker(self, reader: Reader, group: SubscriptionGroupConfig, found: GetResult) -> int:
        """The id of the broker that this reader should ask next."""
        if not self._is_enabled:
            return MASTER_ID
        has_more = found.next_offset < found.max_offset
        is_near = not has_more or found.behind_bytes <= self._near_bytes
        if self._role.is_master:
            return self._of_master(reader, group, is_near=is_near, is_far=found.is_behind and has_more)
        own_id = self._role.broker_id
        if not is_near or (group.broker_id == own_id and self._copies.is_following):
            return own_id
        return MASTER_ID

    def _of_master(self, reader: Reader, group: SubscriptionGroupConfig, *, is_near: bool, is_far: bool) -> int:
        if is_near:
            self._sent.pop(reader, None)
        elif reader in self._sent:
            return MASTER_ID
        wanted = group.which_broker_when_consume_slowly if is_far else group.broker_id
        if wanted == MASTER_ID or not self._copies.keeps_up(wanted):
            return MASTER_ID
        if is_far:
            self._sent[reader] = None
            if len(self._sent) > SENT_MAX:
                del self._sent[next(iter(self._sent))]
        return wanted
