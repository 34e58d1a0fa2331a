"""Tables of a master on its slaves: topics, groups, offsets, delay progress, request modes (O4).

A slave asks its master over the remoting port, every ten seconds, with the requests that RocketMQ's slaves use, and
replaces its own tables by the answers. So it can follow a master of RocketMQ, and the reverse. A request that the
master does not know (402 is of RocketMQ 5) is left out.

A table must not know more than the log: progress beyond the messages that a slave has would send consumers back to the
start of their queues. So a slave asks for the end of the master's log after the tables, and takes them when its own
dispatch has come so far. A slave that does not follow the log keeps the tables that it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ternmq.errors import NetworkError, TernError
from ternmq.net.dial import connect
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer
from ternmq.net.tls import TlsConfig
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
#: How often a slave without the address of a master looks for one.
_NO_ADDRESS_S: Final = 1.0


@dataclass(slots=True, frozen=True)
class Caller:
    """How a slave calls its master: its signature, and TLS; None: without."""

    credentials: Credentials | None = None
    tls: TlsConfig | None = None

    async def connect(self, address: str, lanes: Lanes, tasks: Tasks) -> Peer:
        """Raises ``NetworkError``."""
        tls = self.tls.context() if self.tls is not None else None
        return await connect(address, routes={}, lanes=lanes, tasks=tasks, credentials=self.credentials, tls=tls)


async def log_range(address: str, caller: Caller) -> tuple[int, int] | None:
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
    until the own log is dispatched up to an offset.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        master_address: Callable[[], str | None],
        caller: Caller,
        reached: Callable[[int], Awaitable[object]],
        *,
        period_s: float = PERIOD_S,
    ) -> None:
        self._tables = tables
        self._caller = caller
        self._master_address = master_address
        self._reached = reached
        self._period_s = period_s
        #: Why the last attempt failed; empty if it did not.
        self.trouble = ""
        #: How often all tables were copied.
        self.rounds = 0

    async def run(self) -> None:
        lanes = Lanes([LaneConfig("client")])
        async with Tasks() as tasks:
            while True:
                address = self._master_address()
                if address:
                    try:
                        await self._serve(address, lanes, tasks)
                    except TernError as error:
                        self._failed(address, str(error))
                await asyncio.sleep(self._period_s if address else min(self._period_s, _NO_ADDRESS_S))

    async def _serve(self, address: str, lanes: Lanes, tasks: Tasks) -> None:
        """Copy over one connection until it fails, or the master has another address."""
        peer = await self._caller.connect(address, lanes, tasks)
        try:
            while self._master_address() == address:
                await self._copy(peer)
                if self.trouble:
                    log.info("tables are copied from the master %s again", address)
                self.trouble = ""
                self.rounds += 1
                await asyncio.sleep(self._period_s)
        finally:
            peer.close()

    async def _copy(self, peer: Peer) -> None:
        """Copy all tables. Raises ``TernError``; one that a master refuses does not hold up the others."""
        refused = ""
        answers: list[tuple[Table, bytes]] = []
        for table in self._tables:
            response = await peer.call(table.code, timeout_ms=TIMEOUT_MS)
            if response.code == ResponseCode.SUCCESS:
                answers.append((table, bytes(response.body)))
            elif response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED and not _is_empty(response):
                refused = refused or f"the request for {table.name} got code {response.code}: {response.remark}"
        try:
            _, as_of = await _log_range(peer)
        except (KeyError, ValueError):
            raise NetworkError("it does not tell where its log ends") from None
        await self._reached(as_of)
        for table, body in answers:
            table.take(body)
        if refused:
            raise NetworkError(refused)

    def _failed(self, address: str, reason: str) -> None:
        if self.trouble != reason:
            log.warning("cannot copy tables from the master %s: %s; retry in %g s", address, reason, self._period_s)
        self.trouble = reason


def _is_empty(response: Response) -> bool:
    """RocketMQ's answer for a table that it has no file of: «No delay offset in this broker»."""
    return response.code == ResponseCode.SYSTEM_ERROR and (response.remark or "").startswith("No ")
