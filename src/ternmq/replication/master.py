"""The master's side of replication: a port where slaves fetch the log (O1, O2).

Each connection is a ``_Line``. Until it has said what it wants, a line is an entry in a table and costs nothing else:
the oldest of those is closed when there are too many, and each after ``haHousekeepingInterval``. Then it has one task,
which sends batches of the log while the connection takes them. What waits for a slow slave is one batch more than what
the transport keeps (64 KiB), and a MiB of the log if it is far behind.

A slave is refused, with a log line that names the cure, if it asks for what this log does not have: bytes behind its
end (the slave has more than its master) or before its beginning. TernMQ slaves are told so, and their logs are compared
with this one first (``replication.handshake``). Of a RocketMQ slave nothing but its log offset is known.

The master learns of new records by ``wake``, and looks by itself every ``_LOOK_S`` while it has slaves.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Sequence
from enum import Enum
from types import TracebackType
from typing import Final, NamedTuple, Self

from ternmq.errors import RemoteProtocolError, StoreError
from ternmq.net.endpoint import Acceptor, Bound, listen
from ternmq.net.limits import RareLog
from ternmq.replication import handshake, history
from ternmq.replication.config import ReplicationConfig
from ternmq.replication.feed import Feed, LogGone
from ternmq.replication.handshake import MasterHello, Place, Refusal, SlaveHello, Verdict
from ternmq.replication.replicas import LINES_MAX, Replicas
from ternmq.replication.stream import Probe, Report, ReportDecoder, Text, pack_header, pack_text
from ternmq.store.disk.base import Disk
from ternmq.store.log.protocol import Log, Piece
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

#: Connections that have not said what they want.
NEW_LINES_MAX: Final = 64
#: How often a master looks for new records by itself.
_LOOK_S: Final = 0.01
#: Batches sent in one turn of the loop.
_BATCHES_AT_ONCE: Final = 8


class LineState(Enum):
    """How far a slave's connection has come."""

    NEW = "new"
    COMPARING = "comparing"
    SENDING = "sending"


class SlaveStatus(NamedTuple):
    """One connection of a slave, for tools."""

    replica: str
    address: str
    state: LineState
    sent: int
    acked: int
    lag_bytes: int


class Master:
    """Serves the log to slaves while its block lasts. Belongs to the loop."""

    def __init__(
        self, commit_log: Log, disk: Disk, config: ReplicationConfig, place: Place, replicas: Replicas | None = None
    ) -> None:
        self.config = config
        self.place = place
        self.log = commit_log
        self.disk = disk
        self.replicas = replicas if replicas is not None else Replicas(config, lambda: commit_log.end)
        self.logs = RareLog()
        self.tasks = Tasks()
        self._allowed = config.allowed_networks()
        self._acceptor: Acceptor | None = None
        self._loop = asyncio.get_running_loop()
        #: Connections that have not said what they want, the oldest first; those that have.
        self._new: dict[_Line, None] = {}
        self._lines: dict[_Line, None] = {}
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
        self._acceptor = await listen(bound, lambda: _Line(self), tasks=self.tasks)
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

    def opened(self, line: _Line) -> bool:
        """Whether a connection may stay."""
        if not self._is_allowed(line.ip):
            self.logs.warning("address", f"refusing to replicate to {line.address}: not in haAllowedAddresses")
            return False
        self._new[line] = None
        if len(self._new) > NEW_LINES_MAX:
            oldest = next(iter(self._new))
            del self._new[oldest]
            oldest.end(f"{NEW_LINES_MAX} newer connections have not said what they want either")
        return True

    def begins(self, line: _Line) -> bool:
        """Whether a connection that has said what it wants may get it."""
        self._new.pop(line, None)
        if len(self._lines) >= LINES_MAX:
            self.logs.warning("lines", f"refusing to replicate to {line.address}: {LINES_MAX} connections do already")
            return False
        self._lines[line] = None
        return True

    def replaces(self, line: _Line, replica: str) -> None:
        """A replica has connected anew: what is left of its older connections would only take its share."""
        for other in [other for other in self._lines if other is not line and other.replica == replica]:
            other.end("the slave has connected again")

    def closed(self, line: _Line) -> None:
        self._new.pop(line, None)
        self._lines.pop(line, None)
        self.replicas.left(line)

    # ----------------------------------------------------------------------------------------------------------------

    def _is_allowed(self, ip: str) -> bool:
        if not self._allowed:
            return True
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
                check_at = now + check_s
                self.replicas.go_on_alone(now)
                for line in (*self._new, *self._lines):
                    if now - line.heard_at > housekeeping_s:
                        line.end(f"nothing was heard from it for {housekeeping_s:g} s (haHousekeepingInterval)")


class _Line(asyncio.Protocol):
    """A connection of a slave, or of any program that found the port."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._decoder = ReportDecoder()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        #: Set while the connection takes bytes; set when there may be new records.
        self._takes = asyncio.Event()
        self._news = asyncio.Event()
        #: A TernMQ slave, which understands verdicts.
        self._is_ours = False
        self._start = 0
        self._sent = 0
        self._acked = 0
        self.state = LineState.NEW
        self.replica = ""
        self.ip = ""
        self.address = "?"
        self.heard_at = self._loop.time()

    def status(self) -> SlaveStatus:
        lag_bytes = self._master.log.end - max(self._acked, self._start)
        return SlaveStatus(self.replica, self.address, self.state, self._sent, self._acked, lag_bytes)

    def wake(self) -> None:
        self._news.set()

    def end(self, reason: str) -> None:
        """Close the connection."""
        if self._transport is not None:
            if self.state is not LineState.NEW and not self._transport.is_closing():
                log.info("replication to %s ends: %s", self._name, reason)
            # Also one that is closing: what waits may be for a slave that never reads.
            self._transport.abort()

    @property
    def _name(self) -> str:
        return f"slave {self.replica} at {self.address}" if self._is_ours else f"slave {self.address}"

    # --- Protocol ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        if peer:
            self.ip, self.address = str(peer[0]), f"{peer[0]}:{peer[1]}"
        self.replica = self.ip
        self._takes.set()
        if not self._master.opened(self):
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self.state is LineState.SENDING:
            log.info("%s has disconnected%s", self._name, f": {error}" if error is not None else "")
        self._master.closed(self)
        self._transport = None
        # The task ends by itself.
        self._takes.set()
        self._news.set()

    def pause_writing(self) -> None:
        self._takes.clear()

    def resume_writing(self) -> None:
        self._takes.set()

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        try:
            for event in self._decoder.feed(data):
                self._heard(event)
        except RemoteProtocolError as error:
            self._refuse(str(error))

    def _heard(self, event: Probe | Text | Report) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        match event:
            case Probe():
                self._write(pack_text(handshake.encode(self._master.hello())))
            case Text(data):
                self._greeted(handshake.decode(data, SlaveHello))
            case Report(log_offset) if self.state is LineState.SENDING:
                if log_offset > self._sent:
                    self._refuse(f"it acknowledged log offset {log_offset}, but was sent only up to {self._sent}")
                    return
                self._acked = max(self._acked, log_offset)
                self._master.replicas.acked(self, log_offset)
            case Report(log_offset) if self.state is LineState.NEW:
                self._asked(log_offset)
            case _:
                raise RemoteProtocolError("a slave sent a report before the handshake ended")

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _refuse(self, reason: str) -> None:
        self._master.logs.warning(f"refused {self.ip}", f"closing the replication connection of {self._name}: {reason}")
        if self._transport is not None:
            # What was written before, such as a verdict, still leaves.
            self._transport.close()

    # --- What a slave wants -------------------------------------------------------------------------------------------

    def _asked(self, log_offset: int) -> None:
        """The first report of a slave of RocketMQ."""
        commit_log = self._master.log
        if log_offset > commit_log.end:
            self._refuse(
                f"it asks for log offset {log_offset}, but this log ends at {commit_log.end}. The slave has messages "
                "that its master does not have: start the slave as master, or empty its store directory"
            )
        elif 0 < log_offset < commit_log.begin:
            self._refuse(
                f"it asks for log offset {log_offset}, but this log begins at {commit_log.begin} now. Empty the store "
                "directory of the slave: it then copies the last file"
            )
        elif self._master.begins(self):
            if not log_offset:
                # RocketMQ's rule for an empty slave: the beginning of the last file.
                last = (commit_log.end - 1) // commit_log.segment_bytes * commit_log.segment_bytes
                self._begin(max(commit_log.begin, last), acked=0)
            else:
                self._begin(log_offset, acked=log_offset)
        else:
            self._refuse("too many slaves are connected")

    def _greeted(self, slave: SlaveHello) -> None:
        """What a slave of TernMQ says of itself."""
        master = self._master
        if not master.begins(self):
            self._refuse("too many slaves are connected")
            return
        self.state = LineState.COMPARING
        verdict = handshake.first_check(slave, master.hello())
        if verdict is not None:
            self._tell(verdict)
            return
        self._is_ours = True
        self.replica = f"{slave.place.broker}:{slave.place.broker_id}"
        reason = history.check_bounds(slave.samples, segment_bytes=master.log.segment_bytes)
        if reason:
            self._refuse(reason)
            return
        master.tasks.create_task(self._compare(slave), name=f"replication: compare logs with {self.address}")

    async def _compare(self, slave: SlaveHello) -> None:
        master = self._master
        commit_log = master.log
        places = [
            commit_log.piece(each.log_offset, each.length_bytes) if each.log_offset >= commit_log.begin else None
            for each in slave.samples
        ]
        try:
            comparison = await asyncio.to_thread(_compare, master.disk, slave.samples, places)
        except StoreError as error:
            self._refuse(f"the logs could not be compared: {error}")
            return
        if self._transport is None or self._transport.is_closing():
            return
        # The log may have grown, or lost its first segment.
        verdict = handshake.judge(slave, master.hello(), comparison)
        self._tell(verdict)
        if verdict.refusal is None:
            master.replaces(self, self.replica)
            self._begin(verdict.start, acked=slave.end)

    def _tell(self, verdict: Verdict) -> None:
        self._write(pack_text(handshake.encode(verdict)))
        if verdict.refusal is not None:
            self._refuse(f"{verdict.refusal.value}: {verdict.reason}")

    # --- Sending ------------------------------------------------------------------------------------------------------

    def _begin(self, start: int, *, acked: int) -> None:
        self.state = LineState.SENDING
        self._start = self._sent = start
        self._acked = acked
        self._master.replicas.joined(self, self.replica, acked)
        log.info(
            "replication to %s begins at log offset %d, %d bytes behind",
            self._name,
            start,
            self._master.log.end - start,
        )
        self._master.tasks.create_task(self._send(), name=f"replication: send to {self.address}")

    async def _send(self) -> None:
        config = self._master.config
        feed = Feed(self._master.log, self._master.disk, batch_bytes=config.ha_transfer_batch_size)
        heartbeat_s = config.ha_send_heartbeat_interval / 1000
        try:
            while self._transport is not None and not self._transport.is_closing():
                await self._takes.wait()
                self._news.clear()
                batch = feed.at_hand(self._sent)
                if batch is None:
                    await feed.read(self._sent)
                elif batch:
                    await self._send_batches(feed, batch)
                elif not await _happens(self._news, heartbeat_s):
                    self._write(pack_header(self._sent, 0))
        except LogGone as gone:
            reason = (
                f"it needs the log from {gone.log_offset} on, and this one begins at {gone.begin} now: files were "
                "deleted faster than it fetched them. Empty the store directory of the slave, and keep files for "
                "longer (fileReservedTime)"
            )
            if self._is_ours:
                self._tell(Verdict(refusal=Refusal.GONE, reason=reason))
            else:
                self._refuse(reason)
        except StoreError as error:
            self._refuse(f"the log cannot be read: {error}")

    async def _send_batches(self, feed: Feed, batch: memoryview | None) -> None:
        """Send what is at hand while the connection takes it, then give others their turn."""
        for _ in range(_BATCHES_AT_ONCE):
            if not batch or self._transport is None or not self._takes.is_set():
                break
            self._transport.writelines((pack_header(self._sent, len(batch)), batch))
            self._sent += len(batch)
            batch = feed.at_hand(self._sent)
        await asyncio.sleep(0)


async def _happens(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _compare(disk: Disk, samples: Sequence[history.Sample], places: Sequence[Piece | None]) -> history.Comparison:
    """Read the master's side of the samples; on a thread."""
    ours = {
        (each.log_offset, each.length_bytes): history.digest(disk.read_at(*place))
        for each, place in zip(samples, places, strict=True)
        if place is not None
    }
    return history.compare(samples, lambda each: ours.get((each.log_offset, each.length_bytes)))
