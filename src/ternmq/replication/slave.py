"""The slave's side of replication: fetches its master's log and appends it as it is (O1, O2).

::

    no address ──▶ connecting ──▶ greeting ──▶ following ──▶ …
                       ▲  back-off    │            │
                       └──────────────┴────────────┘ connection lost, refused, disk full
                                      │            └──▶ broken: what came is no log; only a restart helps
                                      └──▶ cutting: a later master parted from this log; its owner cuts and begins anew

Bytes go to the log where the master has them, or not at all: a transfer that does not begin where this log ends closes
the connection. Half a transfer is kept, as is half a record; the next connection goes on behind it. Folding runs beside
it in short steps. When it is far behind, nothing more is read from the connection.

The slave acknowledges what is in its log, with SYNC_FLUSH what is on its disk.

A TernMQ master compares the logs first and may refuse (``replication.handshake``). Then the slave keeps what it has,
says why, and asks again later; unless a promotion explains the difference, and the log can be cut to the common
history. With a RocketMQ master only log offsets can be compared.
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
from ternmq.replication.handshake import BrokerNode, MasterHello, Refusal
from ternmq.replication.memory import Memory
from ternmq.replication.metadata import MasterCaller
from ternmq.replication.session import FOLD_S, MustCut, Refused, Session, SlaveLog
from ternmq.store.disk.base import Disk
from ternmq.store.log.protocol import Log
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

#: Between two attempts to connect, doubled with each that fails; a refusal counts as many.
_RETRY_MIN_S: Final = 0.5
#: A master that comes back has its own offsets only, until this slave follows it again and returns those that were
#: committed here: members that begin in between read messages again.
_RETRY_MAX_S: Final = 2.0
_REFUSED_S: Final = 10.0
#: How often a slave without an address looks for one, and after how many times it says so: a master that is started
#: together with it has registered by then.
_NO_ADDRESS_S: Final = 1.0
_NO_ADDRESS_TOLD: Final = 15


class SlaveState(Enum):
    """What a slave does at the moment."""

    NO_ADDRESS = "no address of a master"
    CONNECTING = "connecting"
    GREETING = "greeting"
    FOLLOWING = "following"
    REFUSED = "refused by its master"
    BROKEN = "broken"
    CUTTING = "cutting its log"


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
        place: BrokerNode,
        master_address: Callable[[], str | None],
        env: Env,
        *,
        memory: Memory | None = None,
        ask_range: Callable[[], Awaitable[tuple[int, int] | None]] | None = None,
        on_cut: Callable[[MustCut], None] | None = None,
        on_deleted: Callable[[str], object] = lambda _topic: None,
        caller: MasterCaller | None = None,
    ) -> None:
        """``memory`` has the epochs of the log; None: it is loaded from the store's directory.

        ``ask_range`` asks a RocketMQ master by other means where its log begins and ends; None: it does not say.

        ``on_cut`` is told, once, that the log has to be cut before this slave can follow: its owner closes the store,
        cuts the log and begins anew. None: the slave stays refused.

        ``on_deleted`` is told of each topic that a TernMQ master has deleted. ``caller`` is what it connects with.
        """
        memory = memory or Memory(disk, store.config.store_path_root_dir)
        caller = caller or MasterCaller()
        self._copy = SlaveLog(store, commit_log, disk, config, place, memory, caller.credentials)
        self._tls = caller.tls if config.ha_tls_enable else None
        self._on_cut = on_cut
        #: Where the log parts from the master's: the next connection asks whether it could flow from there.
        self._ask_from: int | None = None
        self.state = SlaveState.NO_ADDRESS
        #: Why it does not follow, if it does not.
        self.trouble = ""
        #: The last refusal of a TernMQ master, until one lets it follow.
        self.refusal: Refusal | None = None
        #: Who the master is, and its role, once a TernMQ master has said so.
        self.master: BrokerNode | None = None
        self.master_role = ""
        #: Whether the current connection has brought anything.
        self.has_fetched = False
        #: Set while the log comes.
        self.is_following = asyncio.Event()
        #: The newest connection, which may have ended.
        self.session: Session | None = None
        self._master_address = master_address
        self._ask_range = ask_range
        self._on_deleted = on_deleted
        self._random = env.random
        #: Masters that have answered a probe: their silence does not mean that they are of RocketMQ.
        self._ours: set[str] = set()

    async def run(self) -> None:
        """Connect, follow, and connect again; ends only by being cancelled."""
        retry_s, looked = _RETRY_MIN_S, 0
        async with Tasks() as tasks:
            while self.state not in (SlaveState.BROKEN, SlaveState.CUTTING):
                address = self._master_address()
                if not address:
                    self.state, looked = SlaveState.NO_ADDRESS, looked + 1
                    if looked == _NO_ADDRESS_TOLD:
                        self._knows_no_master()
                    await asyncio.sleep(_NO_ADDRESS_S)
                    continue
                looked = 0
                self.has_fetched = False
                try:
                    await self._follow(address, tasks)
                except MustCut as cut:
                    self._cut(address, cut)
                    break
                except Refused as refused:
                    self._ask_from = None
                    if refused.common_end and self._on_cut is not None:
                        self._ask_from = refused.common_end
                        retry_s = _RETRY_MIN_S
                    else:
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
        tls = self._tls.context() if self._tls is not None else None
        session = await dial(address, lambda: Session(self._copy, self, address, tasks, ask_from=self._ask_from), tls)
        self.session = session
        try:
            await session.run(may_be_rocketmq=address not in self._ours)
        finally:
            self.is_following.clear()
            session.close()

    # --- For the session (``session.SessionOwner``) -------------------------------------------------------------------

    def greets(self) -> None:
        if self.state is not SlaveState.REFUSED:
            self.state = SlaveState.GREETING

    def is_ours(self, address: str, master: MasterHello) -> None:
        if len(self._ours) > 100:
            self._ours.clear()
        self._ours.add(address)
        self.master, self.master_role = master.place, master.role

    async def range_of_master(self) -> tuple[int, int] | None:
        return await self._ask_range() if self._ask_range is not None else None

    def follows(self, address: str, log_offset: int, *, is_ours: bool) -> None:
        if self.trouble or self.state is not SlaveState.FOLLOWING:
            kind = "TernMQ" if is_ours else "RocketMQ, whose log cannot be compared with this one"
            log.info("following the log of %s (%s) from log offset %d", address, kind, log_offset)
        self.state, self.trouble, self.refusal = SlaveState.FOLLOWING, "", None
        self.is_following.set()

    def deleted(self, topic: str) -> None:
        self._on_deleted(topic)

    # ----------------------------------------------------------------------------------------------------------------

    def _knows_no_master(self) -> None:
        self.trouble = (
            f"no master of {self._copy.place.broker} is known; start it with the same brokerName, brokerClusterName "
            "and name servers, or set haMasterAddress"
        )
        log.warning("replication waits: %s", self.trouble)

    def _refused(self, address: str, refused: Refused) -> None:
        if (self.state, self.refusal) != (SlaveState.REFUSED, refused.refusal):
            log.error("the master at %s refuses this slave: %s: %s", address, refused.refusal.value, refused)
        self.state, self.refusal, self.trouble = SlaveState.REFUSED, refused.refusal, str(refused)

    def _cut(self, address: str, cut: MustCut) -> None:
        self.state, self.trouble = SlaveState.CUTTING, str(cut)
        log.warning(
            "the master at %s was promoted (epoch %d) at log offset %d; this log has %d bytes behind that, which the "
            "master does not have: they are cut off, and kept aside",
            address,
            cut.epoch,
            cut.log_offset,
            self._copy.store.written - cut.log_offset,
        )
        assert self._on_cut is not None, "without it the slave does not ask"
        self._on_cut(cut)

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
