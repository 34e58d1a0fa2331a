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
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

from ternmq.env import Env
from ternmq.errors import CorruptFile, StoreError, TernError
from ternmq.net.endpoint import dial
from ternmq.replication.config import ReplicationConfig
from ternmq.replication.handshake import Place, Refusal
from ternmq.replication.session import FOLD_S, Copy, Refused, Session
from ternmq.store.disk.base import Disk
from ternmq.store.log.protocol import Log
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

#: Between two attempts to connect, doubled with each that fails; a refusal counts as many.
_RETRY_MIN_S: Final = 0.5
_RETRY_MAX_S: Final = 10.0
_REFUSED_S: Final = 10.0
#: How often a slave without an address looks for one.
_NO_ADDRESS_S: Final = 1.0


class SlaveState(Enum):
    """What a slave does at the moment."""

    NO_ADDRESS = "no address of a master"
    CONNECTING = "connecting"
    GREETING = "greeting"
    FOLLOWING = "following"
    REFUSED = "refused by its master"
    BROKEN = "broken"


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
        *,
        ask_range: Callable[[], Awaitable[tuple[int, int] | None]] | None = None,
    ) -> None:
        """``ask_range`` asks a RocketMQ master by other means where its log begins and ends; None: it does not say."""
        self._copy = Copy(store, commit_log, disk, config, place)
        self.state = SlaveState.NO_ADDRESS
        #: Why it does not follow, if it does not.
        self.trouble = ""
        #: The last refusal of a TernMQ master, until one lets it follow.
        self.refusal: Refusal | None = None
        #: Who the master is, once a TernMQ master has said so.
        self.master: Place | None = None
        #: Whether the current connection has brought anything.
        self.has_fetched = False
        self._master_address = master_address
        self._ask_range = ask_range
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
        store = self._copy.store
        if self.state is not SlaveState.REFUSED:
            self.state = SlaveState.CONNECTING
        # What came on the last connection, or half of it.
        while not store.follow(FOLD_S):  # noqa: ASYNC110 - others get their turn, nothing is waited for
            await asyncio.sleep(0)
        if self._copy.is_sync_flush:
            # The first report says where to go on, and counts as an acknowledgement.
            timeout_ms = self._copy.config.ha_housekeeping_interval
            if not await store.flushed.reached(store.written, timeout_ms):
                raise StoreError(f"the log was not flushed within {timeout_ms} ms; check the disk")
        session = await dial(address, lambda: Session(self._copy, self, address, tasks))
        try:
            await session.run(may_be_rocketmq=address not in self._ours)
        finally:
            session.close()

    # --- For the session (``session.Owner``) --------------------------------------------------------------------------

    def greets(self) -> None:
        if self.state is not SlaveState.REFUSED:
            self.state = SlaveState.GREETING

    def is_ours(self, address: str, place: Place) -> None:
        if len(self._ours) > 100:
            self._ours.clear()
        self._ours.add(address)
        self.master = place

    async def range_of_master(self) -> tuple[int, int] | None:
        return await self._ask_range() if self._ask_range is not None else None

    def follows(self, address: str, log_offset: int, *, is_ours: bool) -> None:
        if self.trouble or self.state is not SlaveState.FOLLOWING:
            kind = "TernMQ" if is_ours else "RocketMQ, whose log cannot be compared with this one"
            log.info("following the log of %s (%s) from log offset %d", address, kind, log_offset)
        self.state, self.trouble, self.refusal = SlaveState.FOLLOWING, "", None

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
