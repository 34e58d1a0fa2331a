"""Which slaves have how much of the log, and what that means for a send (O2).

A *replica* is a slave, however many connections it has: TernMQ slaves tell their broker id, and those of RocketMQ are
known by their address only. So two RocketMQ slaves on one machine count as one; the other way round, two connections of
one slave would count as two copies.

A replica is *in sync* when it lacks less than ``haMaxGapNotInSync``, and has once had all that the master had when it
connected: an empty slave of a small log is no copy.

Only connected replicas count. One that has acknowledged a record and was lost before the others had it is no copy that
survives the loss of the master.

``replicated`` is the log offset up to which the asked number of replicas have the log. It never goes back. A replica
that comes back with less than it had acknowledged is connected anew, and what it lacks was on its machine when a
sender was told so. A master whose slaves are all gone goes on alone under RocketMQ 4.9's rule. So that what waits for
safe records (delays, pop) does not wait for ever, ``replicated`` then moves on, later than any sender waits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from ternmq.errors import ServiceNotAvailable
from ternmq.replication.config import ReplicationConfig
from ternmq.store.durable.watermark import Watermark
from ternmq.wire.codes import ResponseCode

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
        self._timeout_s = config.slave_timeout / 1000
        self._end = end
        #: Since when no replica keeps up, and where the log ended then.
        self._alone: tuple[float, int] | None = None
        #: Connection → its replica, how far it has acknowledged, and where the log ended when it connected.
        self._lines: dict[Hashable, tuple[str, int, int]] = {}
        #: The largest acknowledgement of all; each send looks.
        self._highest = -1
        #: A replica that is waited for (``has_all``).
        self._awaited: tuple[str, Watermark] | None = None
        self.replicated = Watermark(end())

    def joined(self, line: Hashable, replica: str, log_offset: int) -> None:
        """A replica that has all before ``log_offset`` fetches the rest on this connection."""
        self._lines[line] = replica, log_offset, self._end()
        self._advance()

    def acked(self, line: Hashable, log_offset: int) -> None:
        """A replica has all before ``log_offset``; a smaller one than before changes nothing."""
        replica, before, goal = self._lines[line]
        if log_offset > before:
            self._lines[line] = replica, log_offset, goal
            self._advance()

    def left(self, line: Hashable) -> None:
        """A connection has ended; one that never joined is no error."""
        self._lines.pop(line, None)
        self._highest = max((acked for _, acked, _ in self._lines.values()), default=-1)

    async def has_all(self, replica: str, log_offset: int, timeout_ms: float) -> bool:
        """Wait until a replica has all before ``log_offset``; False if that takes too long."""
        self._awaited = replica, Watermark(self._by_replica().get(replica, 0))
        try:
            return await self._awaited[1].reached(log_offset, timeout_ms)
        finally:
            self._awaited = None

    def status(self) -> list[ReplicaStatus]:
        end = self._end()
        return [ReplicaStatus(replica, acked, end - acked) for replica, acked, _ in self._lines.values()]

    @property
    def in_sync(self) -> int:
        """How many replicas are in sync, the master not counted."""
        return sum(self.in_sync_by_replica().values())

    def in_sync_by_replica(self) -> dict[str, bool]:
        """Which replicas are connected, and whether they are in sync."""
        floor = self._end() - self._gap_bytes
        found: dict[str, bool] = {}
        for replica, acked, goal in self._lines.values():
            found[replica] = found.get(replica, False) or (acked > floor and acked >= goal)
        return found

    @property
    def near(self) -> int:
        """How many replicas lack so little that a sender waits for them: RocketMQ 4.9's rule."""
        floor = self._end() - self._gap_bytes
        return sum(acked > floor for acked in self._by_replica().values())

    def check_write(self) -> None:
        """Raise ``ServiceNotAvailable`` while too few copies keep up (``minInSyncReplicas``)."""
        if self._least > 1 and self.in_sync + 1 < self._least:
            raise ServiceNotAvailable(
                f"only {self.in_sync + 1} of {self._least} copies of the log keep up (minInSyncReplicas); messages are "
                "refused until a slave has caught up"
            )

    def check_wait(self, end_offset: int) -> int:
        """A code to answer a send with at once, or 0: it waits. SLAVE_NOT_AVAILABLE is RocketMQ 4.9's rule.

        Hot: the record ends at ``end_offset``, where the log ends now.
        """
        is_far = self._is_any and (self._highest < 0 or self._highest <= end_offset - self._gap_bytes)
        return ResponseCode.SLAVE_NOT_AVAILABLE if is_far else 0

    def go_on_alone(self, now: float) -> None:
        """To be called about every second: moves ``replicated`` on while no replica keeps up."""
        if not self._is_any or self.near:
            self._alone = None
        elif self._alone is None:
            self._alone = now, self._end()
        elif now - self._alone[0] > self._timeout_s:
            # Senders that waited for less have been told that the slave was late.
            self.replicated.advance(self._alone[1])
            self._alone = now, self._end()

    def _by_replica(self) -> dict[str, int]:
        acks: dict[str, int] = {}
        for replica, acked, _ in self._lines.values():
            acks[replica] = max(acked, acks.get(replica, 0))
        return acks

    def _advance(self) -> None:
        by_replica = self._by_replica()
        self._highest = max(by_replica.values(), default=-1)
        if self._awaited is not None:
            self._awaited[1].advance(by_replica.get(self._awaited[0], 0))
        acks = sorted(by_replica.values(), reverse=True)
        if len(acks) >= self._needed:
            self.replicated.advance(acks[self._needed - 1])
