"""Which slaves have how much of the log, and what that means for a send (O2).

A *replica* is a slave, however many connections it has: TernMQ slaves tell their broker id, and those of RocketMQ are
known by their address only. So two RocketMQ slaves on one machine count as one; the other way round, two connections of
one slave would count as two copies.

Only connected replicas count. One that has acknowledged a record and was lost before the others had it is no copy that
survives the loss of the master.

``replicated`` is the log offset up to which the asked number of replicas have the log. It never goes back. A replica
that comes back with less than it had acknowledged is connected anew, and what it lacks was on its machine when a
sender was told so.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from ternmq.errors import ServiceNotAvailable
from ternmq.replication.config import ReplicationConfig
from ternmq.store.durable.watermark import Watermark

#: Connections that fetch the log at once.
LINES_MAX: Final = 64


class ReplicaStatus(NamedTuple):
    """One connection of a replica."""

    replica: str
    acked: int
    lag_bytes: int


class Replicas:
    """The slaves of one master. Belongs to the loop; ``end`` tells where the master's log ends."""

    def __init__(self, config: ReplicationConfig, end: Callable[[], int]) -> None:
        self._needed = max(config.waited_slaves, 1)
        self._is_any = config.in_sync_replicas is None
        self._gap_bytes = config.ha_max_gap_not_in_sync
        self._least = config.min_in_sync_replicas
        self._end = end
        #: Connection → its replica, and how far it has acknowledged.
        self._lines: dict[Hashable, tuple[str, int]] = {}
        self.replicated = Watermark(end())

    def joined(self, line: Hashable, replica: str, log_offset: int) -> None:
        """A replica that has all before ``log_offset`` fetches the rest on this connection."""
        self._lines[line] = replica, log_offset
        self._advance()

    def acked(self, line: Hashable, log_offset: int) -> None:
        """A replica has all before ``log_offset``; a smaller one than before changes nothing."""
        replica, before = self._lines[line]
        if log_offset > before:
            self._lines[line] = replica, log_offset
            self._advance()

    def left(self, line: Hashable) -> None:
        """A connection has ended; one that never joined is no error."""
        self._lines.pop(line, None)

    def status(self) -> list[ReplicaStatus]:
        end = self._end()
        return [ReplicaStatus(replica, acked, end - acked) for replica, acked in self._lines.values()]

    @property
    def in_sync(self) -> int:
        """How many replicas keep up, the master not counted."""
        floor = self._end() - self._gap_bytes
        return sum(acked > floor for acked in self._by_replica().values())

    def why_not_write(self) -> ServiceNotAvailable | None:
        """Why nothing may be written now: too few copies keep up (``minInSyncReplicas``)."""
        if self._least <= 1 or self.in_sync + 1 >= self._least:
            return None
        return ServiceNotAvailable(
            f"only {self.in_sync + 1} of {self._least} copies of the log keep up (minInSyncReplicas); messages are "
            "refused until a slave has caught up"
        )

    @property
    def is_available(self) -> bool:
        """Whether a send may wait at all: else it is answered with SLAVE_NOT_AVAILABLE (RocketMQ 4.9)."""
        return not self._is_any or self.in_sync > 0

    def _by_replica(self) -> dict[str, int]:
        acks: dict[str, int] = {}
        for replica, acked in self._lines.values():
            acks[replica] = max(acked, acks.get(replica, 0))
        return acks

    def _advance(self) -> None:
        acks = sorted(self._by_replica().values(), reverse=True)
        if len(acks) >= self._needed:
            self.replicated.advance(acks[self._needed - 1])
