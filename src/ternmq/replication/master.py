"""The master's side of replication: a port where slaves fetch the log (O1, O2).

Each connection is a ``Line`` (``replication.line``). Until it has said what it wants, a line is an entry in a table and
costs nothing else: the oldest of those is closed when there are too many, and each after ``haHousekeepingInterval``.
Then it has one task, which sends batches of the log while the connection takes them. What waits for a slow slave is one
batch more than what the transport keeps (64 KiB), and a MiB of the log if it is far behind.

A slave is refused, with a log line that names the cure, if it asks for what this log does not have: bytes behind its
end (the slave has more than its master) or before its beginning. TernMQ slaves are told so, and their logs are compared
with this one first (``replication.handshake``). Of a RocketMQ slave nothing but its log offset is known.

The master learns of new records by ``wake``, and looks by itself every ``_LOOK_S`` while it has slaves.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from types import TracebackType
from typing import Final, Self

from ternmq.net.endpoint import Acceptor, Bound, listen
from ternmq.rare_log import RareLog
from ternmq.replication import handshake
from ternmq.replication.config import ReplicationConfig
from ternmq.replication.handshake import MasterHello, Place
from ternmq.replication.line import Line, SlaveStatus
from ternmq.replication.replicas import LINES_MAX, Replicas
from ternmq.store.disk.base import Disk
from ternmq.store.log.protocol import Log
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

#: Connections that have not said what they want.
NEW_LINES_MAX: Final = 64
#: How often a master looks for new records by itself.
_LOOK_S: Final = 0.01


class Master:
    """Serves the log to slaves while its block lasts. Belongs to the loop."""

    def __init__(
        self,
        commit_log: Log,
        disk: Disk,
        config: ReplicationConfig,
        place: Place,
        replicas: Replicas | None = None,
        *,
        is_guarded: bool = False,
    ) -> None:
        """``is_guarded``: the broker checks who calls it. This port cannot: only addresses that are named may fetch."""
        self.config = config
        self.place = place
        self.log = commit_log
        self.disk = disk
        self.replicas = replicas if replicas is not None else Replicas(config, lambda: commit_log.end)
        self._loop = asyncio.get_running_loop()
        self.logs = RareLog(log, self._loop.time, lines_max=10)
        self.tasks = Tasks()
        self._allowed = config.allowed_networks()
        self._is_guarded = is_guarded
        self._acceptor: Acceptor | None = None
        #: Connections that have not said what they want, the oldest first; those that have.
        self._new: dict[Line, None] = {}
        self._lines: dict[Line, None] = {}
        #: Where the log ended when the lines were last woken.
        self._seen = commit_log.end
        self._wakes = False

    async def __aenter__(self) -> Self:
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
        """Accept slaves on a port of ``net.endpoint.bind``, which is the master's from now on."""
        self._acceptor = await listen(bound, lambda: Line(self), tasks=self.tasks)
        self.tasks.create_task(self._look(), name="replication: look for new records and idle slaves")

    def wake(self) -> None:
        """There are new records; cheap to call after each of them."""
        if self._lines and not self._wakes:
            self._wakes = True
            # In the next turn: one batch for all that is appended in this one.
            self._loop.call_soon(self._wake_lines)

    def status(self) -> list[SlaveStatus]:
        """The slaves that are connected."""
        return [line.status() for line in self._lines]

    def hello(self) -> MasterHello:
        return MasterHello(handshake.VERSION, self.place, self.log.segment_bytes, self.log.begin, self.log.end)

    # --- For the lines ----------------------------------------------------------------------------------------------

    def opened(self, line: Line) -> bool:
        """Whether a connection may stay."""
        if not self._is_allowed(line.ip):
            reason = (
                "not in haAllowedAddresses"
                if self._allowed
                else "with access control only the addresses in haAllowedAddresses may fetch the log, and it is not set"
            )
            self.logs.warning("address", f"refusing to replicate to {line.address}: {reason}")
            return False
        self._new[line] = None
        if len(self._new) > NEW_LINES_MAX:
            oldest = next(iter(self._new))
            del self._new[oldest]
            oldest.end(f"{NEW_LINES_MAX} newer connections have not said what they want either")
        return True

    def begins(self, line: Line) -> bool:
        """Whether a connection that has said what it wants may get it."""
        self._new.pop(line, None)
        if len(self._lines) >= LINES_MAX:
            self.logs.warning("lines", f"refusing to replicate to {line.address}: {LINES_MAX} connections do already")
            return False
        self._lines[line] = None
        return True

    def replaces(self, line: Line, replica: str) -> None:
        """A replica has connected anew: what is left of its older connections would only take its share."""
        for other in [other for other in self._lines if other is not line and other.replica == replica]:
            other.end("the slave has connected again")

    def closed(self, line: Line) -> None:
        self._new.pop(line, None)
        self._lines.pop(line, None)
        self.replicas.left(line)

    # ----------------------------------------------------------------------------------------------------------------

    def _is_allowed(self, ip: str) -> bool:
        if not self._allowed:
            return not self._is_guarded
        try:
            address = ipaddress.ip_address(ip.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._allowed)

    def _wake_lines(self) -> None:
        self._wakes = False
        self._seen = self.log.end
        for line in self._lines:
            line.wake()

    async def _look(self) -> None:
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
                for line in (*self._new, *self._lines):
                    if now - line.heard_at > housekeeping_s:
                        line.end(f"nothing was heard from it for {housekeeping_s:g} s (haHousekeepingInterval)")
