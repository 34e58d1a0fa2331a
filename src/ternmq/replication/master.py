"""The master's side of replication: a port where slaves fetch the log (O1, O2).

Each connection is a ``SlaveConnection`` (``replication.line``). Until it has said what it wants, it is an entry in a
table and costs nothing else: one of those is closed when there are too many (``net.newcomers``), and each after
``haHousekeepingInterval``. Then it has one task, which sends batches of the log while the connection takes them. What
waits for a slow slave is one batch more than what the transport keeps (64 KiB), and a MiB of the log if it is far
behind.

A slave is refused, with a log line that names the cure, if it asks for what this log does not have: bytes behind its
end (the slave has more than its master) or before its beginning. TernMQ slaves are told so, and their logs are compared
with this one first (``replication.handshake``). Of a RocketMQ slave nothing but its log offset is known.

The master learns of new records by ``wake``, and looks by itself every ``_LOOK_S`` while it has slaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from types import TracebackType
from typing import Final, Self

from ternmq.net.endpoint import Acceptor, Bound, listen
from ternmq.net.newcomers import Newcomers
from ternmq.net.tls import LiveTls
from ternmq.rare_log import RareLog
from ternmq.replication import handshake
from ternmq.replication.admission import Admission
from ternmq.replication.beside import Beside
from ternmq.replication.config import ReplicationConfig
from ternmq.replication.epochs import Epochs
from ternmq.replication.handshake import BrokerNode, MasterHello
from ternmq.replication.line import LineState, SlaveConnection, SlaveStatus
from ternmq.replication.replicas import LINES_MAX, Replicas
from ternmq.store.disk.base import Disk
from ternmq.store.log.protocol import Log
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

#: Connections that have not said what they want.
NEW_LINES_MAX: Final = 64
#: How often a master looks for new records by itself.
_LOOK_S: Final = 0.01
#: For how many seconds it is known how late a slave is.
_TIMES_MAX: Final = 3600


class Master:
    """Serves the log to slaves while its block lasts. Belongs to the loop."""

    def __init__(
        self,
        commit_log: Log,
        disk: Disk,
        config: ReplicationConfig,
        place: BrokerNode,
        replicas: Replicas | None = None,
        *,
        epochs: Epochs | None = None,
        admission: Admission | None = None,
        tls: LiveTls | None = None,
        beside: Beside | None = None,
    ) -> None:
        """``epochs`` are those of the log, with the one that this master is of. ``beside`` is what TernMQ slaves get
        beside the log.

        ``admission`` says who may fetch the log; None: ``haAllowedAddresses`` alone. ``tls`` is for the port.
        """
        self.epochs = epochs or Epochs()
        self.config = config
        self.place = place
        self.log = commit_log
        self.disk = disk
        self.beside = beside or Beside()
        self.replicas = replicas if replicas is not None else Replicas(config, lambda: commit_log.end)
        self._loop = asyncio.get_running_loop()
        self.logs = RareLog(log, self._loop.time, lines_max=10)
        self.tasks = Tasks()
        self.admission = admission or Admission(config.allowed_networks())
        self._tls = tls
        self._acceptor: Acceptor | None = None
        #: Connections that have not said what they want; those that have.
        self._new = Newcomers[SlaveConnection](NEW_LINES_MAX)
        self._lines: dict[SlaveConnection, None] = {}
        #: One comparison of logs at a time: it reads up to 24 MiB.
        self.comparing = asyncio.Lock()
        #: Where the log ended at some times, and the store time of its last record: how late a slave is.
        self._times: deque[tuple[int, int]] = deque(maxlen=_TIMES_MAX)
        self._in_sync: dict[str, bool] = {}
        #: Where the log ended when the lines were last woken.
        self._seen = commit_log.end
        self._wakes = False

    async def __aenter__(self) -> Self:
        # Of a master that has failed and is started again, they are closed.
        self.tasks, self._acceptor = Tasks(), None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        for line in (*self._new, *self._lines):
            line.end("the master stops")
        await self.tasks.close()

    async def serve(self, bound: Bound) -> None:
        """Accept slaves on a port of ``net.endpoint.bind``, which is the master's from now on, and look after them."""
        await self.accept(bound)
        self.tasks.create_task(self.look(), name="replication: look for new records and idle slaves")

    async def accept(self, bound: Bound) -> None:
        """The same for a caller that runs ``look``."""
        self._acceptor = await listen(bound, lambda: SlaveConnection(self), self._tls, tasks=self.tasks)

    def wake(self) -> None:
        """There are new records; cheap to call after each of them."""
        if self._lines and not self._wakes:
            self._wakes = True
            # In the next turn: one batch for all that is appended in this one.
            self._loop.call_soon(self._wake_lines)

    def status(self) -> list[SlaveStatus]:
        """The slaves that are connected."""
        return [line.status() for line in self._lines]

    def lag_ms(self, acked: int) -> int:
        """How much older the last record before ``acked`` is than the last of the log, to a second; a lag of more than
        an hour is not told exactly."""
        if acked >= self.log.end or not self._times:
            return 0
        before = next((time_ms for end, time_ms in reversed(self._times) if end <= acked), self._times[0][1])
        return max(0, self.log.store_time_ms - before)

    def hello(self) -> MasterHello:
        return MasterHello(
            handshake.VERSION,
            self.place,
            self.log.segment_bytes,
            self.log.begin,
            self.log.end,
            list(self.epochs.entries),
            self.config.broker_role.value,
        )

    # --- For the lines ----------------------------------------------------------------------------------------------

    def opened(self, line: SlaveConnection) -> bool:
        """Whether a connection may stay."""
        reason = self.admission.refusal(line.ip)
        if reason:
            self.logs.warning("address", f"refusing to replicate to {line.address}: {reason}")
            self.admission.note_refusal(line, reason)
            return False
        loser = self._new.add(line, line.ip)
        if loser is not None:
            loser.drop(f"{NEW_LINES_MAX} other connections have not said what they want either")
        return True

    def begins(self, line: SlaveConnection) -> bool:
        """Whether a connection that has said what it wants may get it.

        When there are too many, the address that has the most of them loses its oldest: a program that opens
        connections in a loop does not keep slaves on other machines out.
        """
        self._new.discard(line)
        if len(self._lines) >= LINES_MAX:
            counts = Counter(each.ip for each in self._lines)
            busiest, most = counts.most_common(1)[0]
            if counts[line.ip] >= most:
                self.logs.warning(
                    "lines", f"refusing to replicate to {line.address}: {LINES_MAX} connections do already"
                )
                return False
            oldest = next(each for each in self._lines if each.ip == busiest)
            oldest.end(f"{busiest} has {most} of {LINES_MAX} connections, and {line.ip} needs one")
            self._lines.pop(oldest, None)
        self._lines[line] = None
        return True

    def rival(self, line: SlaveConnection) -> SlaveConnection | None:
        """Another broker that is connected under the same id. One that moved has not been heard for a while."""
        silent_s = self.config.ha_send_heartbeat_interval / 1000
        for other in self._same(line):
            if other.own_address != line.own_address and self._loop.time() - other.heard_at <= silent_s:
                return other
        return None

    def replaces(self, line: SlaveConnection) -> None:
        """A replica has connected anew: what is left of its older connections would only take its share."""
        for other in self._same(line):
            other.end("the slave has connected again")

    def _same(self, line: SlaveConnection) -> list[SlaveConnection]:
        """Other connections of the same replica that have got as far as being sent the log."""
        return [
            other
            for other in self._lines
            if other is not line and other.replica == line.replica and other.state is LineState.SENDING
        ]

    def closed(self, line: SlaveConnection) -> None:
        self._new.discard(line)
        self._lines.pop(line, None)
        self.replicas.left(line)

    # ----------------------------------------------------------------------------------------------------------------

    def _wake_lines(self) -> None:
        self._wakes = False
        self._seen = self.log.end
        for line in self._lines:
            line.wake()

    async def look(self) -> None:
        """Look for new records and for slaves that are silent, until cancelled."""
        housekeeping_s = self.config.ha_housekeeping_interval / 1000
        check_s = min(housekeeping_s / 4, 1.0)
        check_at = self._loop.time() + check_s
        while True:
            await asyncio.sleep(_LOOK_S if self._lines else check_s)
            if self.log.end != self._seen:
                self.wake()
            now = self._loop.time()
            if now >= check_at:
                elapsed_s, check_at = now - check_at + check_s, now + check_s
                for line in self._lines:
                    line.measure(elapsed_s)
                self.replicas.go_on_alone(now)
                self._note_times()
                self._tell_changes()
                for line in self._new:
                    # Not since it was heard: a byte now and then would keep it for ever.
                    if now - line.waits_since > housekeeping_s:
                        line.drop(f"it has not said what it wants within {housekeeping_s:g} s (haHousekeepingInterval)")
                for line in list(self._lines):
                    if now - line.heard_at > housekeeping_s:
                        line.end(f"nothing was heard from it for {housekeeping_s:g} s (haHousekeepingInterval)")

    def _note_times(self) -> None:
        end, time_ms = self.log.end, self.log.store_time_ms
        if not self._times or self._times[-1][0] != end:
            self._times.append((end, time_ms))

    def _tell_changes(self) -> None:
        """One line of the log when a slave has caught up, and when it falls behind."""
        now_in_sync = self.replicas.in_sync_by_replica()
        for replica, is_in_sync in now_in_sync.items():
            before = self._in_sync.get(replica)
            if is_in_sync and not before:
                log.info("slave %s is in sync", replica)
            elif before and not is_in_sync:
                log.warning(
                    "slave %s is not in sync any more: it lacks more than %d bytes (haMaxGapNotInSync)",
                    replica,
                    self.config.ha_max_gap_not_in_sync,
                )
        self._in_sync = now_in_sync
