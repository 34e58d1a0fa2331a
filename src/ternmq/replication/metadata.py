"""Tables of a master on its slaves: topics, groups, offsets, delay progress, request modes, filters (O4).

A slave asks its master over the remoting port, every ten seconds, with the requests that RocketMQ's slaves use, and
replaces its own tables by the answers. So it can follow a master of RocketMQ, and the reverse. A request that the
master does not know (402 is of RocketMQ 5) is left out.

A table must not know more than the log: progress beyond the messages that a slave has would send consumers back to the
start of their queues. So a slave asks for the end of the master's log after the tables, and takes them when its own
dispatch has come so far. A slave that does not follow the log keeps the tables that it has: its master may have lost
its disk, and the tables with it.

A topic that the tables do not have was deleted before they were asked for, so records before the end of the log at that
time belong to no topic (``on_copied``). TernMQ masters tell more precisely (``replication.beside``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ternmq.errors import BrokerRefused, NetworkError, TernError
from ternmq.net.dial import connect
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer
from ternmq.net.tls import TlsConfig
from ternmq.replication.returning import Returning
from ternmq.tasks import Tasks
from ternmq.wire.auth import Credentials
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.routes import KvTable
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response

log = logging.getLogger(__name__)

#: How often a slave asks (RocketMQ 4.9), and how long an answer may take.
PERIOD_S: Final = 10.0
TIMEOUT_MS: Final = 10_000
#: How often a slave looks for the address of its master, if it has none, and for offsets to return.
_LOOK_S: Final = 1.0


@dataclass(slots=True, frozen=True)
class MasterCaller:
    """How a slave calls its master: its signature, and TLS; None: without."""

    credentials: Credentials | None = None
    tls: TlsConfig | None = None

    async def connect(self, address: str, lanes: Lanes, tasks: Tasks) -> Peer:
        """Raises ``NetworkError``."""
        tls = self.tls.context() if self.tls is not None else None
        return await connect(address, routes={}, lanes=lanes, tasks=tasks, credentials=self.credentials, tls=tls)


async def log_range(address: str, caller: MasterCaller) -> tuple[int, int] | None:
    """Where the log of the broker at ``address`` begins and ends, by the numbers for tools; None if it does not say."""
    async with Tasks() as tasks:
        try:
            peer = await caller.connect(address, Lanes([LaneConfig("client")]), tasks)
            try:
                return await _log_range(peer)
            finally:
                peer.close()
        except (TernError, KeyError, ValueError) as error:
            log.info("the broker at %s does not tell where its log begins and ends: %s", address, error)
            return None


async def _log_range(peer: Peer) -> tuple[int, int]:
    """Raises ``TernError``, ``KeyError`` or ``ValueError`` if the other side does not say."""
    response = await peer.call(RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms=TIMEOUT_MS)
    table = decode(bytes(response.body), KvTable).table if response.code == ResponseCode.SUCCESS else {}
    return int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])


@dataclass(slots=True, frozen=True)
class Table:
    """A table that a slave copies: the request, and what takes its answer (the JSON that RocketMQ has). It raises
    ``TernError`` for an answer that it cannot read."""

    name: str
    code: int
    take: Callable[[bytes], None]


class MetadataSync:
    """Copies tables while ``run`` runs.

    ``master_address`` tells ``host:port`` of the master's remoting port; None if it is not known. ``reached`` waits
    until the own log follows the master's, and is dispatched up to an offset. ``on_copied`` is told where the master's
    log ended before the tables that were just taken.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        master_address: Callable[[], str | None],
        caller: MasterCaller,
        reached: Callable[[int], Awaitable[object]],
        *,
        on_copied: Callable[[int], object] = lambda _log_end: None,
        returning: Returning | None = None,
        period_s: float = PERIOD_S,
    ) -> None:
        self._returning = returning
        self._tables = tables
        self._caller = caller
        self._master_address = master_address
        self._reached = reached
        self._on_copied = on_copied
        self._period_s = period_s
        #: The master did not take the offsets to return. They wait for the next round.
        self._is_return_refused = False
        #: Why the last attempt failed; empty if it did not.
        self.trouble = ""
        #: How often all tables were copied.
        self.rounds = 0
        #: Where the master's log began when it was last asked; None before that.
        self.master_begin: int | None = None
        #: Where it ended before the tables that were taken last were asked for; None before that.
        self.copied_end: int | None = None
        #: Where the master's log ended when it was last asked, and when that was, by the loop's clock.
        self.known: tuple[int, float] | None = None

    async def run(self) -> None:
        lanes = Lanes([LaneConfig("client")])
        async with Tasks() as tasks:
            while True:
                address = self._master_address()
                if not address:
                    await asyncio.sleep(_LOOK_S)
                    continue
                try:
                    await self._serve(address, lanes, tasks)
                except TernError as error:
                    self._failed(address, str(error))
                await self._pause()

    async def copy_now(self, address: str) -> None:
        """Copy all tables from the broker at ``address`` once, now: a master that has stepped down, and has no more of
        the log than this node. Raises ``TernError``."""
        async with Tasks() as tasks:
            peer = await self._caller.connect(address, Lanes([LaneConfig("client")]), tasks)
            try:
                await self._copy(peer, waits=False)
            finally:
                peer.close()

    async def _serve(self, address: str, lanes: Lanes, tasks: Tasks) -> None:
        """Copy over one connection until it fails, or the master has another address."""
        peer = await self._caller.connect(address, lanes, tasks)
        try:
            while self._master_address() == address:
                await self._look(peer)
                # Only now are its tables those of the master: one that is being promoted has old ones.
                await self._reached(0)
                if self._master_address() != address:
                    return
                await self._copy(peer)
                if self.trouble:
                    log.info("tables are copied from the master %s again", address)
                self.trouble = ""
                self.rounds += 1
                await self._pause()
        finally:
            peer.close()

    async def _pause(self) -> None:
        """Wait for the next round: less if the master is not known, or if there are offsets to return, so that
        members who come back to the master find what they have committed."""
        begin = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(min(self._period_s, _LOOK_S))
            is_due = self._returning is not None and self._returning.is_due and not self._is_return_refused
            if is_due or not self._master_address() or asyncio.get_running_loop().time() - begin >= self._period_s:
                return

    async def _copy(self, peer: Peer, *, waits: bool = True) -> None:
        """Copy all tables. Raises ``TernError``; one that a master refuses does not hold up the others."""
        refused = await self._return(peer)
        answers: list[tuple[Table, bytes]] = []
        _, before = await _known_range(peer)
        for table in self._tables:
            response = await peer.call(table.code, timeout_ms=TIMEOUT_MS)
            if response.code == ResponseCode.SUCCESS:
                answers.append((table, bytes(response.body)))
            elif response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED and not _is_empty(response):
                refused = refused or f"the request for {table.name} got code {response.code}: {response.remark}"
        as_of = await self._look(peer)
        if waits:
            await self._reached(as_of)
        for table, body in answers:
            table.take(body)
        self.copied_end = before
        if refused:
            raise NetworkError(refused)
        self._on_copied(before)

    async def _look(self, peer: Peer) -> int:
        """Note where the master's log begins and ends; returns where it ends. Raises ``TernError``."""
        self.master_begin, end = await _known_range(peer)
        self.known = end, asyncio.get_running_loop().time()
        return end

    async def _return(self, peer: Peer) -> str:
        """Return offsets to the master; returns why it does not take them."""
        self._is_return_refused = False
        if self._returning is None:
            return ""
        try:
            await self._returning.run(peer)
        except BrokerRefused as error:
            self._is_return_refused = True
            return str(error)
        return ""

    def _failed(self, address: str, reason: str) -> None:
        if self.trouble != reason:
            log.warning("cannot copy tables from the master %s: %s; retry in %g s", address, reason, self._period_s)
        self.trouble = reason


async def _known_range(peer: Peer) -> tuple[int, int]:
    try:
        return await _log_range(peer)
    except (KeyError, ValueError):
        raise NetworkError("it does not tell where its log ends") from None


def _is_empty(response: Response) -> bool:
    """RocketMQ's answer for a table that it has no file of: «No delay offset in this broker»."""
    return response.code == ResponseCode.SYSTEM_ERROR and (response.remark or "").startswith("No ")
