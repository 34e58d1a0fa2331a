"""A connection to the port of a master: what the other side wants, and the log for it (O1; ``replication.master``).

::

    NEW ── probe, if the slave has to sign ──▶ CHALLENGED ── proof ──▶ NEW, and the hello
    NEW ── report of a RocketMQ slave ──────────────────────────▶ SENDING
     └──── probe, hello of a TernMQ slave ──▶ COMPARING ── equal ──▶ SENDING
                                                 └── refused: told why, and closed
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from ternmq.errors import RemoteProtocolError, StoreError, TernError
from ternmq.net.gate import Rights
from ternmq.net.stream import format_address, host_and_port
from ternmq.replication import admission, beside, handshake, history
from ternmq.replication.admission import Challenge
from ternmq.replication.beside import Ends, FileBegins, FilesEnd, TopicDeleted
from ternmq.replication.feed import Feed, LogGone
from ternmq.replication.handshake import HandshakeVerdict, Refusal, SlaveHello
from ternmq.replication.stream import FILE, Probe, Report, ReportDecoder, Text, pack_header, pack_text
from ternmq.store.disk.base import Disk
from ternmq.store.log.protocol import Piece

if TYPE_CHECKING:
    from ternmq.replication.master import Master

log = logging.getLogger(__name__)

#: What a stranger is not told; the log of the master has it.
_UNPROVED: Final = (
    "this broker checks its callers, and the slave is not in haAllowedAddresses, has no certificate, and did not "
    "sign. For slaves of RocketMQ set haAllowedAddresses"
)
#: Characters of a refusal that a slave is told.
_DENIED_MAX: Final = 1_000
#: Characters of the address that a slave tells.
_ADDRESS_MAX: Final = 100
#: What a comparison of logs has in memory.
_COMPARED_BYTES: Final = 1 << 20
#: Batches sent in one turn of the loop.
_BATCHES_AT_ONCE: Final = 8


class LineState(Enum):
    """How far a slave's connection has come."""

    NEW = "new"
    CHALLENGED = "challenged"
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
    lag_ms: int
    #: The broker id; -1: it is not known.
    broker_id: int


class SlaveConnection(asyncio.Protocol):
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
        #: It has nothing, so it gets the files beside the log first.
        self._wants_files = False
        self._counts = True
        #: The deletions of topics that it was told of.
        self._deletions: Mapping[str, int] = {}
        self._start = 0
        self._sent = 0
        self._acked = 0
        self._measured = 0
        self._bytes_per_second = 0
        self.state = LineState.NEW
        self.replica = ""
        self.broker_id = -1
        #: Where a TernMQ slave serves, as it says.
        self.own_address = ""
        self.ip = ""
        self.address = "?"
        #: For validators (``net.gate.CallingPeer``).
        self.access: Rights | None = None
        self.proved = ""
        self.certificate: Mapping[str, object] = {}
        #: It may have the log; what it has to sign before.
        self._is_trusted = False
        self._challenge = Challenge()
        #: Since when it has to say something else than it did; when it was last heard.
        self.waits_since = self.heard_at = self._loop.time()

    def status(self) -> SlaveStatus:
        has = max(self._acked, self._start)
        return SlaveStatus(
            self.replica,
            self.address,
            self.state,
            self._sent,
            self._acked,
            self._master.log.end - has,
            self._bytes_per_second,
            self._master.lag_ms(has),
            self.broker_id,
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

    def drop(self, reason: str) -> None:
        """Close a connection that does not say what it wants."""
        if not self._is_trusted and self._transport is not None and not self._transport.is_closing():
            self._master.admission.note_refusal(self, reason)
        self.end(reason)

    @property
    def _name(self) -> str:
        return f"slave {self.replica} at {self.address}" if self._is_ours else f"slave {self.address}"

    # --- Protocol ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked: uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        if peer := transport.get_extra_info("peername"):
            self.ip, port = host_and_port(peer)
            self.address = format_address(self.ip, port)
        self.replica = self.ip
        self._takes.set()
        self.certificate = transport.get_extra_info("peercert") or {}
        self._is_trusted = self._master.admission.is_trusted(self.ip, has_certificate=bool(self.certificate))
        if not self._master.opened(self):
            self._transport.abort()

    @property
    def remote_ip(self) -> str:
        return self.ip

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
            case Probe() if self._is_trusted:
                self._greet()
            case Probe():
                self._ask_for_proof()
            case Text(data) if self.state is LineState.CHALLENGED:
                self._check_proof(data)
            case Text(data) if self.state is LineState.NEW and self._is_trusted:
                self._greeted(handshake.decode(data, SlaveHello))
            case Report(log_offset) if self.state is LineState.SENDING:
                if log_offset > self._sent:
                    self._refuse(f"it acknowledged log offset {log_offset}, but was sent only up to {self._sent}")
                    return
                self._acked = max(self._acked, log_offset)
                if self._counts:
                    self._master.replicas.acked(self, log_offset)
            case Report(log_offset) if self.state is LineState.NEW:
                if self._is_trusted:
                    self._asked(log_offset)
                else:
                    self._refuse(_UNPROVED)
            case _:
                raise RemoteProtocolError("a slave sent a report before the handshake ended")

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _refuse(self, reason: str, *, is_noted: bool = False) -> None:
        """``is_noted``: the audit log has it."""
        if not self._is_trusted and not is_noted:
            self._master.admission.note_refusal(self, reason)
        self._master.logs.warning("refused", f"closing the replication connection of {self._name}: {reason}")
        if self._transport is not None:
            # What was written before, such as a verdict, still leaves.
            self._transport.close()

    # --- Who it is ----------------------------------------------------------------------------------------------------

    def _greet(self) -> None:
        self.state = LineState.NEW
        self.waits_since = self._loop.time()
        self._write(pack_text(handshake.encode(self._master.hello())))

    def _ask_for_proof(self) -> None:
        challenge = self._master.admission.challenge()
        if challenge is None:
            self._refuse(_UNPROVED)
            return
        self._challenge, self.state = challenge, LineState.CHALLENGED
        self._write(pack_text(admission.encode(challenge)))

    def _check_proof(self, data: bytes) -> None:
        try:
            self._master.admission.check(self, self._challenge, data)
        except RemoteProtocolError:
            raise
        except TernError as error:
            # A validator of the user's own may say more than a text of the handshake can have.
            self._write(pack_text(admission.encode(Challenge(denied=str(error)[:_DENIED_MAX]))))
            self._refuse(str(error), is_noted=True)
            return
        self._is_trusted = True
        self._greet()

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
        self.broker_id = slave.place.broker_id
        self.replica = f"{slave.place.broker}:{self.broker_id}"
        self.own_address = slave.place.address[:_ADDRESS_MAX]
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
            async with master.comparing:
                comparison = await asyncio.to_thread(_compare, master.disk, slave.samples, places)
        except StoreError as error:
            self._refuse(f"the logs could not be compared: {error}")
            return
        if self._transport is None or self._transport.is_closing():
            return
        # The log may have grown, or lost its first segment.
        verdict = handshake.judge(slave, master.hello(), comparison)
        rival = master.rival(self)
        if verdict.refusal is None and rival is not None:
            verdict = handshake.same_id(slave, rival.own_address)
        self._tell(verdict)
        if verdict.refusal is None and slave.only_asks:
            self._refuse(f"it cuts its log at {slave.end} first")
        elif verdict.refusal is None:
            master.replaces(self)
            self._wants_files = not slave.end
            self._counts = slave.counts
            self._begin(verdict.start, acked=slave.end)

    def _tell(self, verdict: HandshakeVerdict) -> None:
        self._write(pack_text(handshake.encode(verdict)))
        if verdict.refusal is not None:
            self._refuse(f"{verdict.refusal.value}: {verdict.reason}")

    # --- Sending ------------------------------------------------------------------------------------------------------

    def _begin(self, start: int, *, acked: int) -> None:
        self.state = LineState.SENDING
        self._start = self._sent = self._measured = start
        self._acked = acked
        if self._counts:
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
            if self._wants_files:
                await self._send_files()
            while self._transport is not None and not self._transport.is_closing():
                await self._takes.wait()
                self._news.clear()
                await self._tell_deletions()
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
                self._notify(Ends(Refusal.GONE, reason))
            self._refuse(reason)
        except StoreError as error:
            self._refuse(f"the log cannot be read: {error}")

    async def _send_files(self) -> None:
        """An empty slave cannot fold what the log has forgotten (``replication.beside``). Raises ``StoreError``."""
        async for parcel in self._master.beside.parcels(self._master.disk):
            await self._takes.wait()
            if self._transport is None or self._transport.is_closing():
                return
            if isinstance(parcel, FileBegins):
                self._notify(parcel)
            else:
                self._transport.writelines((pack_header(FILE, len(parcel)), parcel))
        self._notify(FilesEnd())

    async def _tell_deletions(self) -> None:
        """Before any byte behind the log offset of a deletion is sent."""
        while self._is_ours and (known := self._master.beside.deletions()) is not self._deletions:
            for topic, log_offset in known.items():
                if self._deletions.get(topic) != log_offset:
                    await self._takes.wait()
                    self._notify(TopicDeleted(topic, log_offset))
            self._deletions = known

    def _notify(self, notice: beside.Notice) -> None:
        self._write(pack_text(beside.encode(notice)))

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
        (each.log_offset, each.length_bytes): history.digest_of(_read(disk, place))
        for each, place in zip(samples, places, strict=True)
        if place is not None
    }
    return history.compare(samples, lambda each: ours.get((each.log_offset, each.length_bytes)))


def _read(disk: Disk, place: Piece) -> Iterator[bytes]:
    """The bytes of a piece, a part at a time: another node says how many they are."""
    for done in range(0, place.length_bytes, _COMPARED_BYTES):
        yield disk.read_at(place.path, place.at + done, min(_COMPARED_BYTES, place.length_bytes - done))
