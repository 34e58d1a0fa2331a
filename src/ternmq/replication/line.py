"""A connection to the port of a master: what the other side wants, and the log for it (O1; ``replication.master``).

::

    NEW ── report of a RocketMQ slave ──────────────────────────▶ SENDING
     └──── probe, hello of a TernMQ slave ──▶ COMPARING ── equal ──▶ SENDING
                                                 └── refused: told why, and closed
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from ternmq.errors import RemoteProtocolError, StoreError
from ternmq.replication import handshake, history
from ternmq.replication.feed import Feed, LogGone
from ternmq.replication.handshake import Refusal, SlaveHello, Verdict
from ternmq.replication.stream import Probe, Report, ReportDecoder, Text, pack_header, pack_text
from ternmq.store.disk.base import Disk
from ternmq.store.log.protocol import Piece

if TYPE_CHECKING:
    from ternmq.replication.master import Master

log = logging.getLogger(__name__)

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
    bytes_per_second: int


class Line(asyncio.Protocol):
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
        self._measured = 0
        self._bytes_per_second = 0
        self.state = LineState.NEW
        self.replica = ""
        self.ip = ""
        self.address = "?"
        self.heard_at = self._loop.time()

    def status(self) -> SlaveStatus:
        lag_bytes = self._master.log.end - max(self._acked, self._start)
        return SlaveStatus(
            self.replica, self.address, self.state, self._sent, self._acked, lag_bytes, self._bytes_per_second
        )

    def measure(self, elapsed_s: float) -> None:
        """Note how fast the log was sent since the last call."""
        self._bytes_per_second = int((self._sent - self._measured) / elapsed_s)
        self._measured = self._sent

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
        # Not checked: uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.ip, self.address = str(peer[0]), f"{peer[0]}:{peer[1]}"
        self.replica = self.ip
        self._takes.set()
        if not self._master.opened(self):
            self._transport.abort()

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
        self._master.logs.warning("refused", f"closing the replication connection of {self._name}: {reason}")
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
        self._start = self._sent = self._measured = start
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
