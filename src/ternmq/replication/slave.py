"""The slave's side of replication: fetches its master's log and appends it as it is (O1, O2).

::

    no address ──▶ connecting ──▶ greeting ──▶ following ──▶ …
                       ▲  back-off    │            │
                       └──────────────┴────────────┘ connection lost, refused, disk full
                                                   └──▶ broken: what came is no log; only a restart helps

Bytes go to the log where the master has them, or not at all: a transfer that does not begin where this log ends closes
the connection. Half a transfer is kept, as is half a record; the next connection goes on behind it. Folding runs beside
it in short steps. When it is far behind, nothing more is read from the connection.

The slave acknowledges what is in its log, with SYNC_FLUSH what is on its disk.

A TernMQ master compares the logs first and may refuse (``replication.handshake``). Then the slave keeps what it has,
says why, and asks again later. With a RocketMQ master only log offsets can be compared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import Final

from ternmq.env import Env
from ternmq.errors import CorruptFile, NetworkError, RemoteProtocolError, StoreError, TernError
from ternmq.net.endpoint import dial
from ternmq.replication import handshake, history
from ternmq.replication.config import ReplicationConfig
from ternmq.replication.handshake import MasterHello, Place, Refusal, SlaveHello, Verdict
from ternmq.replication.stream import PROBE, Text, Transfer, TransferDecoder, pack_report, pack_text
from ternmq.store.config import FlushDiskType
from ternmq.store.disk.base import Disk
from ternmq.store.log.protocol import Log, Piece
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

#: How long a TernMQ master may take to answer the probe before it is taken for one of RocketMQ, which never does.
PROBE_S: Final = 2.0
#: Between two attempts to connect, doubled with each that fails; a refusal counts as many.
_RETRY_MIN_S: Final = 0.5
_RETRY_MAX_S: Final = 10.0
_REFUSED_S: Final = 10.0
#: How often a slave without an address looks for one.
_NO_ADDRESS_S: Final = 1.0
#: A step of the fold, and how many bytes it may be behind before nothing more is read.
_FOLD_S: Final = 0.003
FOLD_BEHIND_MAX: Final = 16 << 20


class SlaveState(Enum):
    """What a slave does at the moment."""

    NO_ADDRESS = "no address of a master"
    CONNECTING = "connecting"
    GREETING = "greeting"
    FOLLOWING = "following"
    REFUSED = "refused by its master"
    BROKEN = "broken"


class Refused(TernError):
    """The master does not let this slave follow; the sentence is the master's."""

    def __init__(self, refusal: Refusal, reason: str) -> None:
        self.refusal = refusal
        super().__init__(reason)


class Slave:
    """Follows a master while ``run`` runs. Belongs to the loop.

    ``master_address`` tells ``host:port`` of the master's log at each attempt to connect; None if it is not known.
    """

    def __init__(
        self,
        store: MessageStore,
        commit_log: Log,
        disk: Disk,
        config: ReplicationConfig,
        place: Place,
        master_address: Callable[[], str | None],
        env: Env,
    ) -> None:
        self.store = store
        self.log = commit_log
        self.disk = disk
        self.config = config
        self.place = place
        self.state = SlaveState.NO_ADDRESS
        #: Why it does not follow, if it does not.
        self.trouble = ""
        #: The last refusal of a TernMQ master, until one lets it follow.
        self.refusal: Refusal | None = None
        #: Whether the current connection has brought anything.
        self.has_fetched = False
        self.is_sync_flush = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._master_address = master_address
        self._random = env.random
        #: Masters that have answered a probe: their silence does not mean that they are of RocketMQ.
        self._ours: set[str] = set()

    async def run(self) -> None:
        """Connect, follow, and connect again; ends only by being cancelled."""
        retry_s = _RETRY_MIN_S
        async with Tasks() as tasks:
            while self.state is not SlaveState.BROKEN:
                address = self._master_address()
                if not address:
                    self.state = SlaveState.NO_ADDRESS
                    await asyncio.sleep(_NO_ADDRESS_S)
                    continue
                self.has_fetched = False
                try:
                    await self._follow(address, tasks)
                except Refused as refused:
                    self._refused(address, refused)
                    retry_s = _REFUSED_S
                except CorruptFile as error:
                    self._break(address, error)
                    break
                except (TernError, OSError) as error:
                    retry_s = _RETRY_MIN_S if self.has_fetched else retry_s
                    self._lost(address, str(error), retry_s)
                await asyncio.sleep(retry_s * self._random.uniform(0.5, 1.0))
                retry_s = min(retry_s * 2, _RETRY_MAX_S)
            await asyncio.get_running_loop().create_future()

    async def _follow(self, address: str, tasks: Tasks) -> None:
        """One connection, to its end. Raises what ended it."""
        if self.state is not SlaveState.REFUSED:
            self.state = SlaveState.CONNECTING
        # What came on the last connection, or half of it.
        while not self.store.follow(_FOLD_S):  # noqa: ASYNC110 - others get their turn, nothing is waited for
            await asyncio.sleep(0)
        if self.is_sync_flush:
            # The first report says where to go on, and counts as an acknowledgement.
            timeout_ms = self.config.ha_housekeeping_interval
            if not await self.store.flushed.reached(self.store.written, timeout_ms):
                raise StoreError(f"the log was not flushed within {timeout_ms} ms; check the disk")
        session = await dial(address, lambda: _Session(self, address, tasks))
        try:
            await session.run(may_be_rocketmq=address not in self._ours)
        finally:
            session.close()

    # --- For the session --------------------------------------------------------------------------------------------

    def is_ours(self, address: str) -> None:
        """The master at ``address`` is of TernMQ."""
        if len(self._ours) > 100:
            self._ours.clear()
        self._ours.add(address)

    def follows(self, address: str, log_offset: int, *, is_ours: bool) -> None:
        if self.trouble or self.state is not SlaveState.FOLLOWING:
            kind = "TernMQ" if is_ours else "RocketMQ, whose log cannot be compared with this one"
            log.info("following the log of %s (%s) from log offset %d", address, kind, log_offset)
        self.state, self.trouble, self.refusal = SlaveState.FOLLOWING, "", None

    def hello(self, samples: list[history.Sample]) -> SlaveHello:
        commit_log = self.log
        return SlaveHello(
            handshake.VERSION,
            self.place,
            commit_log.segment_bytes,
            begin=commit_log.begin,
            end=commit_log.end,
            samples=samples,
            from_last_file=self.config.sync_from_last_file,
        )

    # ----------------------------------------------------------------------------------------------------------------

    def _refused(self, address: str, refused: Refused) -> None:
        if (self.state, self.refusal) != (SlaveState.REFUSED, refused.refusal):
            log.error("the master at %s refuses this slave: %s: %s", address, refused.refusal.value, refused)
        self.state, self.refusal, self.trouble = SlaveState.REFUSED, refused.refusal, str(refused)

    def _lost(self, address: str, reason: str, retry_s: float) -> None:
        if self.trouble != reason:
            log.warning("replication from %s stopped: %s; retrying in %.1f s", address, reason, retry_s)
        if self.state is not SlaveState.REFUSED:
            self.state, self.trouble = SlaveState.CONNECTING, reason

    def _break(self, address: str, error: CorruptFile) -> None:
        self.state, self.trouble = SlaveState.BROKEN, str(error)
        log.error(
            "replication from %s ends: %s. Nothing more is fetched. Restart the broker, which cuts its log before the "
            "damage; if this happens again, empty its store directory: it then copies the log anew",
            address,
            error,
        )


class _Session(asyncio.Protocol):
    """One connection to a master."""

    def __init__(self, slave: Slave, address: str, tasks: Tasks) -> None:
        self._slave = slave
        self._address = address
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._decoder = TransferDecoder()
        self._transport: asyncio.Transport | None = None
        #: Why the connection has ended.
        self._over: asyncio.Future[None] = self._loop.create_future()
        #: The master has answered the probe; the log may come.
        self._is_ours = False
        self._flows = False
        self._folds = False
        self._is_paused = False
        self._heard_at = self._reported_at = self._loop.time()
        self._reported = -1
        self._ticket: int | None = None

    async def run(self, *, may_be_rocketmq: bool) -> None:
        """Greet, then report until the connection ends; raises why it did."""
        config = self._slave.config
        self._slave_state(SlaveState.GREETING)
        self._write(pack_report(PROBE))
        await self._wait(PROBE_S)
        if not self._is_ours and not self._over.done():
            if not may_be_rocketmq:
                raise NetworkError("the master did not answer in time", address=self._address)
            self._begin(self._slave.store.written)
            self._report(self._slave.store.written)
        # A quarter: a sign of life must be there before the interval is over.
        turn_s = min(config.ha_send_heartbeat_interval, config.ha_housekeeping_interval) / 4000
        while not self._over.done():
            await self._wait(turn_s)
            now = self._loop.time()
            if now - self._heard_at > config.ha_housekeeping_interval / 1000:
                raise NetworkError(
                    f"nothing was heard from the master for {config.ha_housekeeping_interval} ms", address=self._address
                )
            if self._flows and now - self._reported_at >= config.ha_send_heartbeat_interval / 2000:
                self._report(max(self._reported, 0))
        self._over.result()

    async def _wait(self, timeout_s: float) -> None:
        """Until the connection ends, or for so long."""
        await asyncio.wait([self._over], timeout=timeout_s)

    def _slave_state(self, state: SlaveState) -> None:
        if self._slave.state is not SlaveState.REFUSED:
            self._slave.state = state

    def close(self) -> None:
        self._flows = False
        if self._ticket is not None:
            self._slave.store.flushed.forget(self._ticket)
            self._ticket = None
        if not self._over.cancel() and not self._over.cancelled():
            # It was raised, or is not wanted any more.
            self._over.exception()
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: BaseException) -> None:
        self._flows = False
        if not self._over.done():
            self._over.set_exception(error)

    # --- Protocol ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        reason = f"the connection was lost: {error}" if error is not None else "the master closed the connection"
        self._end(NetworkError(reason, address=self._address))

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        before = self._slave.store.written
        try:
            for event in self._decoder.feed(data):
                if self._over.done():
                    return
                if isinstance(event, Text):
                    self._told(event.data)
                else:
                    self._take(event)
        except TernError as error:
            self._end(error)
        if self._slave.store.written > before:
            self._slave.has_fetched = True
            self._acknowledge()
            self._fold_soon()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    # --- Greeting ---------------------------------------------------------------------------------------------------

    def _told(self, data: bytes) -> None:
        if not self._is_ours:
            self._slave.is_ours(self._address)
            if self._flows:
                # It took longer than a master of RocketMQ is given. With the next connection it gets its time.
                raise NetworkError("the master answered too late; connecting again", address=self._address)
            self._is_ours = True
            self._check(handshake.decode(data, MasterHello))
            self._tasks.create_task(self._greet(), name="replication: read samples of the log")
            return
        verdict = handshake.decode(data, Verdict)
        if verdict.refusal is not None:
            raise Refused(verdict.refusal, verdict.reason)
        if self._flows:
            raise RemoteProtocolError("the master sent a second verdict")
        written = self._slave.store.written
        if verdict.start < 0 or (written and verdict.start != written):
            raise RemoteProtocolError(f"the master sends its log from {verdict.start}, but {written} was asked for")
        self._begin(verdict.start)

    def _check(self, master: MasterHello) -> None:
        """What a slave can see by itself, in the same words as its master."""
        refused = handshake.first_check(self._slave.hello([]), master)
        if refused is not None and refused.refusal is not None:
            raise Refused(refused.refusal, refused.reason)

    async def _greet(self) -> None:
        commit_log = self._slave.log
        wanted = history.ranges(commit_log.begin, commit_log.end, segment_bytes=commit_log.segment_bytes)
        places = [(at, piece) for at, length in wanted if (piece := commit_log.piece(at, length)) is not None]
        try:
            samples = await asyncio.to_thread(_read_samples, self._slave.disk, places)
        except StoreError as error:
            self._end(error)
            return
        self._write(pack_text(handshake.encode(self._slave.hello(samples))))

    # --- Following --------------------------------------------------------------------------------------------------

    def _begin(self, log_offset: int) -> None:
        self._flows = True
        self._reported = self._slave.store.written
        self._slave.follows(self._address, log_offset, is_ours=self._is_ours)

    def _take(self, transfer: Transfer) -> None:
        store = self._slave.store
        log_offset, data = transfer
        if not self._flows:
            raise RemoteProtocolError("the master sent its log before it was asked to")
        if not store.written and data:
            self._begin_log(log_offset)
        if store.written and log_offset != store.written:
            raise RemoteProtocolError(
                f"the master sends its log from {log_offset}, but this one ends at {store.written}; connecting again"
            )
        if data:
            store.append_raw(log_offset, data)

    def _begin_log(self, log_offset: int) -> None:
        segment_bytes = self._slave.log.segment_bytes
        if log_offset % segment_bytes:
            raise Refused(
                Refusal.OTHER_SEGMENTS,
                f"the master's last file begins at log offset {log_offset}, and log files here have {segment_bytes} "
                "bytes; set mappedFileSizeCommitLog to the master's value",
            )
        if log_offset:
            self._slave.store.begin_at(log_offset)

    def _acknowledge(self) -> None:
        store = self._slave.store
        if not self._slave.is_sync_flush or store.flushed.value >= store.written:
            self._report(store.written)
        elif self._ticket is None:
            self._ticket = store.flushed.call_when(store.written, self._flushed)

    def _flushed(self) -> None:
        self._ticket = None
        if self._flows:
            store = self._slave.store
            if store.flushed.value < store.written:
                self._report(store.flushed.value)
            self._acknowledge()

    def _report(self, log_offset: int) -> None:
        self._reported = log_offset
        self._reported_at = self._loop.time()
        self._write(pack_report(log_offset))

    # --- Folding ----------------------------------------------------------------------------------------------------

    def _fold_soon(self) -> None:
        if not self._folds:
            self._folds = True
            self._loop.call_soon(self._fold)

    def _fold(self) -> None:
        self._folds = False
        store = self._slave.store
        try:
            is_done = store.follow(_FOLD_S)
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
