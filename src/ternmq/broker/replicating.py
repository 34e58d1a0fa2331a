"""A broker's part in replication: as master a port for slaves, as slave the master that it follows (O1, O2, O4).

A master's port belongs to its term (``broker.roles``). Under SYNC_MASTER the slaves are a level of the store's safety
(``store.durable.safety``), so a send waits for disk and slaves by one mechanism. A slave runs two tasks: one follows
the log (``replication.slave``), one copies the tables (``replication.metadata``).

A slave learns where its master is from ``haMasterAddress``, or from the reply of a name server to its registration. It
registers again now and then while it has no master that answers, because the address may have changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from ternmq.broker.roles import Term
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.topics import Topics
from ternmq.delay.progress import DelayProgress
from ternmq.env import Env
from ternmq.errors import ConfigError, NetworkError, TernError
from ternmq.net.endpoint import Bound, bind
from ternmq.pop.assign import RequestModes
from ternmq.replication.config import BrokerRole, ReplicationConfig
from ternmq.replication.handshake import Place
from ternmq.replication.master import Master
from ternmq.replication.metadata import Caller, MetadataSync, Table, log_range
from ternmq.replication.replicas import Replicas
from ternmq.replication.slave import Slave, SlaveState
from ternmq.store.disk.base import Disk
from ternmq.store.durable.safety import Level
from ternmq.store.durable.watermark import Watermark
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import RequestModes as RequestModesBody
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.groups import GroupTable
from ternmq.wire.bodies.stats import ConsumerOffsets, DelayOffsets, HaClient, HaConnection, HaStatus
from ternmq.wire.bodies.topics import TopicTable
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests_admin import RegisterBrokerReply

log = logging.getLogger(__name__)

#: How often a slave that does not follow asks name servers for its master.
_ASK_S: Final = 5.0
#: A watermark that is behind nothing: the level only checks.
_EVERYWHERE: Final = 1 << 62


def bind_port(config: ReplicationConfig, host: str, listen_port: int, own_port: int) -> Bound | None:
    """Hold the port where slaves fetch the log: ``haListenPort``, or the one after ``listenPort``.

    None if the latter is in use: a broker without slaves does not need it. Raises ``NetworkError`` or ``ConfigError``
    for a port that was asked for.
    """
    port = config.ha_listen_port or (own_port + 1 if listen_port else 0)
    try:
        return bind(host, port)
    except (NetworkError, ConfigError) as error:
        if config.ha_listen_port or config.broker_role is not BrokerRole.ASYNC_MASTER:
            raise
        log.warning("cannot open port %d for slaves: %s; set haListenPort if this broker has slaves", port, error)
        return None


def copied_tables(
    topics: Topics, groups: Groups, offsets: Offsets, delays: DelayProgress, modes: RequestModes
) -> list[Table]:
    """The tables that a slave copies, in RocketMQ's order."""
    return [
        Table("topics", RequestCode.GET_ALL_TOPIC_CONFIG, lambda data: topics.copy(decode(data, TopicTable))),
        Table(
            "consumer offsets",
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            lambda data: offsets.copy(decode(data, ConsumerOffsets)),
        ),
        Table("delay progress", RequestCode.GET_ALL_DELAY_OFFSET, lambda data: delays.copy(decode(data, DelayOffsets))),
        Table(
            "groups",
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            lambda data: groups.copy(decode(data, GroupTable)),
        ),
        Table(
            "request modes",
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
            lambda data: modes.copy(decode(data, RequestModesBody)),
        ),
    ]


class Replicating:
    """All methods belong to the broker's loop. Give ``begin`` to ``Roles.add``; a slave runs ``follow`` instead."""

    def __init__(
        self,
        config: ReplicationConfig,
        *,
        place: Place,
        store: MessageStore,
        disk: Disk,
        env: Env,
        bound: Bound | None,
        caller: Caller,
        is_guarded: bool = False,
    ) -> None:
        """``is_guarded``: the broker checks who calls it."""
        self.config = config
        self._is_guarded = is_guarded
        self._place = place
        self._store = store
        self._disk = disk
        self._env = env
        self._bound = bound
        self._caller = caller
        self._host, self.port = bound.getsockname()[:2] if bound is not None else ("", 0)
        #: What name servers said last.
        self._told = RegisterBrokerReply()
        #: The current term's, or the slave's.
        self.master: Master | None = None
        self.slave: Slave | None = None
        self.metadata: MetadataSync | None = None

    @property
    def is_slave(self) -> bool:
        return self.config.broker_role is BrokerRole.SLAVE

    @property
    def log_end(self) -> int:
        """Where the log of this broker ends: a slave that has all has that of its master."""
        return self._store.written

    def status(self) -> HaStatus:
        """How far slaves are, or how far this slave is, for tools."""
        if self.is_slave:
            is_active = self.slave is not None and self.slave.state is SlaveState.FOLLOWING
            client = HaClient(master_addr=self._log_address() or "", max_offset=self.log_end, is_activated=is_active)
            return HaStatus(master=False, ha_client_runtime_info=client)
        if self.master is None:
            return HaStatus(master=True, master_commit_log_max_offset=self.log_end, ha_client_runtime_info=HaClient())
        gap_bytes = self.config.ha_max_gap_not_in_sync
        return HaStatus(
            master=True,
            master_commit_log_max_offset=self.log_end,
            in_sync_slave_nums=self.master.replicas.in_sync,
            ha_client_runtime_info=HaClient(),
            ha_connection_info=[
                HaConnection(
                    addr=each.address,
                    slave_ack_offset=each.acked,
                    diff=self.log_end - each.acked,
                    in_sync=self.log_end - each.acked < gap_bytes,
                    transferred_byte_in_second=each.bytes_per_second,
                    transfer_from_where=each.sent,
                )
                for each in self.master.status()
            ],
        )

    # --- Master -----------------------------------------------------------------------------------------------------

    def begin(self, _term: Term) -> _MasterTerm:
        """What serves slaves in this term (``roles.RunnerFactory``)."""
        replicas = Replicas(self.config, lambda: self._store.written)
        self.master = Master(
            self._store.log, self._disk, self.config, self._place, replicas, is_guarded=self._is_guarded
        )
        return _MasterTerm(self, self.master, self._store)

    def take_port(self) -> Bound | None:
        """The port of the log, held for the caller, who closes it."""
        bound, self._bound = self._bound, None
        if bound is None and self.port:
            bound = bind(self._host, self.port)
        return bound

    # --- Slave ------------------------------------------------------------------------------------------------------

    def registered(self, reply: RegisterBrokerReply) -> None:
        """A name server has answered, and may know the master."""
        if reply.ha_address or reply.master_address:
            self._told = reply

    async def follow(self, tables: Sequence[Table], ask_again: Callable[[], None]) -> None:
        """Follow the master; ends only by being cancelled. ``ask_again`` registers with all name servers anew."""
        slave = self.slave = Slave(
            self._store,
            self._store.log,
            self._disk,
            self.config,
            self._place,
            self._log_address,
            self._env,
            ask_range=self._range_of_master,
        )
        self.metadata = MetadataSync(tables, self._master_address, self._caller, self._dispatched)
        async with Tasks() as tasks:
            tasks.create_task(slave.run(), name="replication: follow the master's log")
            tasks.create_task(self.metadata.run(), name="replication: copy the master's tables")
            while True:
                await asyncio.sleep(_ASK_S)
                if slave.state is not SlaveState.FOLLOWING:
                    ask_again()

    async def _dispatched(self, log_offset: int) -> None:
        """Return when the own log is dispatched up to an offset."""
        reached = asyncio.Event()
        self._store.when_dispatched(log_offset, reached.set)
        await reached.wait()

    def _log_address(self) -> str | None:
        return self.config.ha_master_address or self._told.ha_address

    async def _range_of_master(self) -> tuple[int, int] | None:
        address = self._master_address()
        return await log_range(address, self._caller) if address else None

    def _master_address(self) -> str | None:
        """The remoting port of the master; without a name server only a TernMQ master tells it."""
        if self._told.master_address:
            return self._told.master_address
        master = self.slave.master if self.slave is not None else None
        return master.address if master is not None else None


class _MasterTerm:
    """One time as master: slaves fetch the log, and sends wait for them if they are to (``roles.Runner``)."""

    def __init__(self, replicating: Replicating, master: Master, store: MessageStore) -> None:
        self._replicating = replicating
        self._master = master
        self._safety = store.safety
        self._level = self._make_level()
        if self._level is not None:
            self._safety.add(self._level)

    def _make_level(self) -> Level | None:
        """The slaves as a level of safety; None if nothing depends on them."""
        config, replicas = self._master.config, self._master.replicas
        check_write = replicas.check_write if config.min_in_sync_replicas > 1 else None
        if config.broker_role is BrokerRole.SYNC_MASTER and config.waited_slaves:
            return Level(
                replicas.replicated,
                config.slave_timeout,
                ResponseCode.FLUSH_SLAVE_TIMEOUT,
                check_write=check_write,
                check_wait=self._check_wait,
            )
        if check_write is not None:
            return Level(
                Watermark(_EVERYWHERE), 0, ResponseCode.FLUSH_SLAVE_TIMEOUT, is_awaited=False, check_write=check_write
            )
        return None

    def _check_wait(self, end_offset: int) -> int:
        # A sender waits: its record is sent in this turn.
        self._master.wake()
        return self._master.replicas.check_wait(end_offset)

    async def run(self) -> None:
        bound = self._replicating.take_port()
        if bound is None:
            return
        async with self._master:
            await self._master.serve(bound)
            await asyncio.get_running_loop().create_future()

    def stop(self, _reason: TernError) -> None:
        if self._level is not None:
            self._safety.remove(self._level)
            self._level = None
        self._replicating.master = None
