"""One connection of a slave to its master: greets, takes in the log, acknowledges it (O1, O2; ``replication.slave``).

All that happens when bytes arrive happens in that turn of the loop. Three things go on beside it: ``run`` watches the
time, samples of the log are read on a thread, and what was appended is folded in short steps.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, cast

from ternmq.errors import NetworkError, RemoteProtocolError, StoreError, TernError
from ternmq.names import DERIVED_TOPIC_LENGTH_MAX
from ternmq.replication import admission, beside, handshake, history
from ternmq.replication.admission import Challenge
from ternmq.replication.beside import Adoption, Ends, FileBegins, FilesEnd, TopicDeleted
from ternmq.replication.config import ReplicationConfig
from ternmq.replication.epochs import Epochs, common_end
from ternmq.replication.handshake import BrokerNode, HandshakeVerdict, MasterHello, Refusal, SlaveHello
from ternmq.replication.memory import Memory
from ternmq.replication.stream import PROBE, FilePart, Text, Transfer, TransferDecoder, pack_report, pack_text
from ternmq.store.config import FlushDiskType
from ternmq.store.disk.base import Disk
from ternmq.store.log.protocol import Log, Piece
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.wire.auth import Credentials

#: How long a TernMQ master may take to answer the probe before it is taken for one of RocketMQ, which never does.
PROBE_S: Final = 2.0
#: A step of the fold, and how many bytes it may be behind before nothing more is read. Bytes in the log come first:
#: they are what the loss of the master could take. They cost no memory, and a second or two of recovery after a kill.
FOLD_S: Final = 0.003
FOLD_BEHIND_MAX: Final = 256 << 20
#: Deletions of topics that may wait until the log has come so far: some 100 MB with the longest names.
DELETIONS_MAX: Final = 250_000


class Refused(TernError):
    """The master does not let this slave follow; the sentence is the master's.

    ``common_end`` is where both logs part, if a promotion explains why; else 0.
    """

    def __init__(self, refusal: Refusal, reason: str, *, common_end: int = 0) -> None:
        self.refusal = refusal
        self.common_end = common_end
        super().__init__(reason)


class MustCut(TernError):
    """The slave may follow when it has cut its log at ``log_offset``."""

    def __init__(self, log_offset: int, epoch: int) -> None:
        self.log_offset = log_offset
        self.epoch = epoch
        super().__init__(f"the log parts from the master's, which is of epoch {epoch}, at {log_offset}")


@dataclass(slots=True, frozen=True)
class SlaveLog:
    """The log that a slave has, and who it is."""

    store: MessageStore
    log: Log
    disk: Disk
    config: ReplicationConfig
    place: BrokerNode
    memory: Memory
    #: What it signs with, if its master wants that.
    credentials: Credentials | None = None

    @property
    def is_sync_flush(self) -> bool:
        """Whether the slave acknowledges only what is on its disk."""
        return self.store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH

    def hello(self, samples: list[history.Sample], *, end: int | None = None) -> SlaveHello:
        """What this slave says of itself; as if its log ended at ``end``, if that is given."""
        return SlaveHello(
            handshake.VERSION,
            self.place,
            self.log.segment_bytes,
            begin=self.log.begin,
            end=self.log.end if end is None else end,
            samples=samples,
            from_last_file=self.config.sync_from_last_file,
            epochs=list(self.memory.epochs.within(self.log.end if end is None else end).entries),
            only_asks=end is not None,
            counts=self.config.counts_as_copy,
        )

    def common_end(self, theirs: Epochs, their_end: int, *, below: int | None) -> int:
        """Where this log parts from that of a later master; 0: no promotion explains a difference. ``below``: there the
        bytes differ already."""
        ours = self.memory.epochs.within(self.log.end)
        if theirs.newest <= ours.newest:
            return 0
        # All before the own end was compared, and differs.
        below = self.log.end if below is None else below
        end = common_end(ours, self.log.end, theirs, their_end, below=below)
        return end if end > self.log.begin else 0


class SessionOwner(Protocol):
    """What a session tells."""

    #: Set when the connection has brought anything.
    has_fetched: bool

    def greets(self) -> None: ...

    def is_ours(self, address: str, master: MasterHello) -> None:
        """The master at ``address`` is of TernMQ, and says who it is."""
        ...

    async def range_of_master(self) -> tuple[int, int] | None:
        """Where the log of a RocketMQ master begins and ends, as its tools see it; None if that is not known."""
        ...

    def follows(self, address: str, log_offset: int, *, is_ours: bool) -> None:
        """The log comes from now on."""
        ...

    def deleted(self, topic: str) -> None:
        """The master has deleted a topic, and the log is dispatched up to where it did."""
        ...


class Session(asyncio.Protocol):
    """One connection to a master."""

    def __init__(
        self, copy: SlaveLog, owner: SessionOwner, address: str, tasks: Tasks, *, ask_from: int | None = None
    ) -> None:
        """``ask_from``: only ask whether the log could flow from there; ``run`` then raises ``MustCut`` if so."""
        self._copy = copy
        self._ask_from = ask_from
        self._master: MasterHello | None = None
        self._owner = owner
        self._address = address
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._decoder = TransferDecoder()
        self._transport: asyncio.Transport | None = None
        #: Why the connection has ended.
        self._over: asyncio.Future[None] = self._loop.create_future()
        #: The master has answered the probe; the log may come.
        self._is_ours = False
        #: The master has asked for a proof, so it is of TernMQ, too.
        self._is_asked = False
        self._was_heard = False
        self._flows = False
        self._folds = False
        self._is_paused = False
        #: By the loop's clock, for tools as well.
        self.heard_at = self.reported_at = self._loop.time()
        #: How fast the log came lately.
        self.bytes_per_second = 0
        self._taken_bytes = 0
        self._reported = -1
        self._ticket: int | None = None
        #: Deletions of topics that wait until the log is dispatched so far.
        self._deletions: dict[tuple[str, int], int] = {}
        #: Takes files of the master, while they come.
        self._adoption: Adoption | None = None

    async def run(self, *, may_be_rocketmq: bool) -> None:
        """Greet, then report until the connection ends; raises why it did."""
        config = self._copy.config
        self._owner.greets()
        self._write(pack_report(PROBE))
        await self._wait(PROBE_S)
        if not self._is_ours and not self._over.done():
            if self._is_asked or not may_be_rocketmq:
                raise NetworkError("the master did not answer in time", address=self._address)
            await self._check_range()
        # It may have answered meanwhile.
        if not self._is_ours and not self._over.done():
            # Nothing is known of this master's epochs; those that were told of another one do not count.
            self._copy.memory.keep_epochs(self._copy.memory.epochs.within(self._copy.store.written))
            self._begin(self._copy.store.written)
            self._report(self._copy.store.written)
        # A quarter: a sign of life must be there before the interval is over.
        turn_s = min(config.ha_send_heartbeat_interval, config.ha_housekeeping_interval) / 4000
        measured_at = self._loop.time()
        while not self._over.done():
            await self._wait(turn_s)
            now = self._loop.time()
            self.bytes_per_second = int(self._taken_bytes / max(now - measured_at, 0.001))
            self._taken_bytes, measured_at = 0, now
            if now - self.heard_at > config.ha_housekeeping_interval / 1000:
                raise NetworkError(
                    f"nothing was heard from the master for {config.ha_housekeeping_interval} ms", address=self._address
                )
            if self._flows and now - self.reported_at >= config.ha_send_heartbeat_interval / 2000:
                self._report(max(self._reported, 0))
        self._over.result()

    async def _wait(self, timeout_s: float) -> None:
        """Until the connection ends, or for so long."""
        await asyncio.wait([self._over], timeout=timeout_s)

    def close(self) -> None:
        self._flows = False
        if self._ticket is not None:
            self._copy.store.flushed.forget(self._ticket)
            self._ticket = None
        if not self._over.cancel() and not self._over.cancelled():
            # It was raised, or is not wanted any more.
            self._over.exception()
        # The next connection tells of them again, if it is still so.
        for ticket in self._deletions.values():
            self._copy.store.forget_dispatched(ticket)
        if self._adoption is not None:
            self._adoption.close()
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: BaseException) -> None:
        self._flows = False
        if not self._over.done():
            self._over.set_exception(error)

    # --- Protocol ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked: uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        reason = f"the connection was lost: {error}" if error is not None else "the master closed the connection"
        if not self._was_heard:
            reason += " before it said anything; check that the port is right, and whether it needs TLS"
        self._end(NetworkError(reason, address=self._address))

    def data_received(self, data: bytes) -> None:
        self._was_heard = True
        self.heard_at = self._loop.time()
        before = self._copy.store.written
        try:
            for event in self._decoder.feed(data):
                if self._over.done():
                    return
                if isinstance(event, Text):
                    self._told(event.data)
                elif isinstance(event, FilePart):
                    self._take_file(event.data)
                else:
                    self._take(event)
        except TernError as error:
            self._end(error)
        if self._copy.store.written > before:
            self._owner.has_fetched = True
            self._acknowledge()
            self._fold_soon()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    # --- Greeting ---------------------------------------------------------------------------------------------------

    def _told(self, data: bytes) -> None:
        if not self._is_ours and (challenge := admission.read_challenge(data)) != Challenge():
            self._prove(challenge)
            return
        if not self._is_ours:
            master = handshake.decode(data, MasterHello)
            self._owner.is_ours(self._address, master)
            if self._flows:
                # It took longer than a master of RocketMQ is given. With the next connection it gets its time.
                raise NetworkError("the master answered too late; connecting again", address=self._address)
            self._is_ours, self._master = True, master
            self._check(master)
            self._tasks.create_task(self._greet(), name="replication: read samples of the log")
            return
        if self._flows:
            self._noticed(beside.decode(data))
            return
        verdict = handshake.decode(data, HandshakeVerdict)
        assert self._master is not None, "the master has greeted"
        epochs = handshake.epochs_of(self._master)
        if verdict.refusal is not None:
            has_parted = verdict.refusal in (Refusal.AHEAD, Refusal.OTHER_HISTORY)
            parted_at = self._copy.common_end(epochs, self._master.end, below=self._ask_from) if has_parted else 0
            raise Refused(verdict.refusal, verdict.reason, common_end=parted_at)
        if self._ask_from is not None:
            if verdict.start != self._ask_from:
                raise RemoteProtocolError(f"the master would send its log from {verdict.start}, not {self._ask_from}")
            raise MustCut(verdict.start, epochs.newest)
        written = self._copy.store.written
        if verdict.start < 0 or (written and verdict.start != written):
            raise RemoteProtocolError(f"the master sends its log from {verdict.start}, but {written} was asked for")
        # Before the first byte of an epoch: else a later comparison would take its records for those of another one.
        # It is written once after each promotion, so it may wait for the disk here.
        self._copy.memory.keep_epochs(epochs)
        self._begin(verdict.start)

    def _prove(self, challenge: Challenge) -> None:
        """The master wants to know who this is, before it says who it is itself."""
        credentials = self._copy.credentials
        if challenge.denied:
            raise Refused(Refusal.NOT_ADMITTED, challenge.denied)
        if credentials is None:
            raise Refused(
                Refusal.NOT_ADMITTED,
                "the master gives its log to slaves with an account only; give this broker the keys of an admin "
                "(TERNMQ_ACCESS_KEY and TERNMQ_SECRET_KEY, or tools.yml)",
            )
        self._is_asked = True
        self._write(pack_text(admission.prove(challenge, credentials, self._copy.place)))

    def _check(self, master: MasterHello) -> None:
        """What a slave can see by itself, in the same words as its master."""
        refused = handshake.first_check(self._copy.hello([], end=self._ask_from), master)
        if refused is not None and refused.refusal is not None:
            raise Refused(refused.refusal, refused.reason)

    async def _check_range(self) -> None:
        """A RocketMQ master sends nothing, and does not say why, if its log does not reach as far (back) as ours."""
        known, written = await self._owner.range_of_master(), self._copy.store.written
        if known is None or not written:
            return
        begin, end = known
        if written > end:
            raise Refused(
                Refusal.AHEAD,
                f"this log ends at {written}, and that of the master at {end}: it does not have these messages. To "
                "keep them, make this broker the master; to drop them, empty its store directory",
            )
        if written < begin:
            raise Refused(
                Refusal.GONE,
                f"this log ends at {written}, and the master has deleted all before {begin}. Empty the store directory "
                "of this broker: it then copies the last file of the master",
            )

    async def _greet(self) -> None:
        commit_log = self._copy.log
        end = commit_log.end if self._ask_from is None else self._ask_from
        wanted = history.ranges(commit_log.begin, end, segment_bytes=commit_log.segment_bytes)
        places = [(at, piece) for at, length in wanted if (piece := commit_log.piece(at, length)) is not None]
        try:
            samples = await asyncio.to_thread(_read_samples, self._copy.disk, places)
        except StoreError as error:
            self._end(error)
            return
        self._write(pack_text(handshake.encode(self._copy.hello(samples, end=self._ask_from))))

    # --- Following --------------------------------------------------------------------------------------------------

    def _begin(self, log_offset: int) -> None:
        self._flows = True
        self._reported = self._copy.store.written
        self._owner.follows(self._address, log_offset, is_ours=self._is_ours)

    def _noticed(self, notice: beside.Notice) -> None:
        """What a master tells while its log flows (``replication.beside``)."""
        store = self._copy.store
        match notice:
            case TopicDeleted(topic, log_offset):
                self._delete_later(topic, log_offset)
            case FileBegins():
                if store.written:
                    raise RemoteProtocolError("the master sent a file to a slave that has a log already")
                if self._adoption is None:
                    self._adoption = Adoption(self._copy.disk, store.config.store_path_root_dir, store.part_directories)
                self._adoption.begin(notice)
            case FilesEnd():
                if self._adoption is not None:
                    self._adoption.finish()
                    self._adoption = None
                    store.load_parts()
            case Ends(refusal, reason):
                raise Refused(refusal, reason)

    def _delete_later(self, topic: str, log_offset: int) -> None:
        if len(topic) > DERIVED_TOPIC_LENGTH_MAX:
            raise RemoteProtocolError(
                f"the master deletes a topic whose name has {len(topic)} characters, more than the longest name has "
                f"({DERIVED_TOPIC_LENGTH_MAX})"
            )
        deletion = topic, log_offset
        if deletion in self._deletions:
            return
        if len(self._deletions) >= DELETIONS_MAX:
            raise RemoteProtocolError(
                f"the master tells of more than {DELETIONS_MAX} deleted topics behind the end of this log; connecting "
                "again"
            )
        store = self._copy.store
        ticket = store.when_dispatched(log_offset, partial(self._delete, topic, log_offset))
        if store.dispatched < log_offset:
            self._deletions[deletion] = ticket

    def _delete(self, topic: str, log_offset: int) -> None:
        store = self._copy.store
        self._deletions.pop((topic, log_offset), None)
        if store.deletions.get(topic) != log_offset:
            store.delete_topics({topic}, as_of=log_offset)
        elif any(name == topic for name, _ in store.queues()):
            # Each connection tells of it again. A topic of the same name has followed, and keeps its offsets.
            return
        self._owner.deleted(topic)

    def _take_file(self, data: memoryview) -> None:
        if self._adoption is None:
            raise RemoteProtocolError("the master sent bytes of a file that it did not name")
        self._adoption.add(data)

    def _take(self, transfer: Transfer) -> None:
        store = self._copy.store
        log_offset, data = transfer
        if not self._flows or self._adoption is not None:
            raise RemoteProtocolError("the master sent its log before it was asked to, or before its files ended")
        if not store.written and data:
            self._begin_log(log_offset)
        if store.written and log_offset != store.written:
            raise RemoteProtocolError(
                f"the master sends its log from {log_offset}, but this one ends at {store.written}; connecting again"
            )
        if data:
            store.append_raw(log_offset, data)
            self._taken_bytes += len(data)

    def _begin_log(self, log_offset: int) -> None:
        segment_bytes = self._copy.log.segment_bytes
        if log_offset % segment_bytes:
            raise Refused(
                Refusal.OTHER_SEGMENTS,
                f"the master's last file begins at log offset {log_offset}, and log files here have {segment_bytes} "
                "bytes; set mappedFileSizeCommitLog to the master's value",
            )
        if log_offset:
            self._copy.store.begin_at(log_offset)

    def _acknowledge(self) -> None:
        store = self._copy.store
        if not self._copy.is_sync_flush or store.flushed.value >= store.written:
            self._report(store.written)
        elif self._ticket is None:
            self._ticket = store.flushed.call_when(store.written, self._flushed)

    def _flushed(self) -> None:
        self._ticket = None
        if self._flows:
            store = self._copy.store
            if store.flushed.value < store.written:
                self._report(store.flushed.value)
            self._acknowledge()

    def _report(self, log_offset: int) -> None:
        self._reported = log_offset
        self.reported_at = self._loop.time()
        self._write(pack_report(log_offset))

    # --- Folding ----------------------------------------------------------------------------------------------------

    def _fold_soon(self) -> None:
        if not self._folds:
            self._folds = True
            self._loop.call_soon(self._fold)

    def _fold(self) -> None:
        self._folds = False
        store = self._copy.store
        try:
            is_done = store.follow(FOLD_S)
        except StoreError as error:
            self._end(error)
            return
        if self._transport is not None:
            behind_bytes = store.written - store.dispatched
            if not is_done and behind_bytes > FOLD_BEHIND_MAX and not self._is_paused:
                self._is_paused = True
                self._transport.pause_reading()
            elif self._is_paused and (is_done or behind_bytes < FOLD_BEHIND_MAX // 2):
                self._is_paused = False
                self._transport.resume_reading()
        if not is_done:
            self._fold_soon()


def _read_samples(disk: Disk, places: list[tuple[int, Piece]]) -> list[history.Sample]:
    """Samples of the log; on a thread."""
    found = (history.sample(log_offset, disk.read_at(*piece)) for log_offset, piece in places)
    return [each for each in found if each is not None]
