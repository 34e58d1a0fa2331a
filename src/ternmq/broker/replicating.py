"""A broker's part in replication: as master a port for slaves, as slave the master that it follows (O1, O2, O4).

A master's port belongs to its term (``broker.roles``). Under SYNC_MASTER the slaves are a level of the store's safety
(``store.durable.safety``), so a send waits for disk and slaves by one mechanism. A slave runs two tasks: one follows
the log (``replication.slave``), one copies the tables (``replication.metadata``).

A slave learns where its master is from ``haMasterAddress``, or from the reply of a name server to its registration. It
registers again now and then while it has no master that answers, because the address may have changed.

A broker changes its role while it runs (``broker.promotion``): ``take_role`` sets the new one, ``begin_following`` and
``end_following`` start and stop what a slave does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import msgspec

from ternmq.broker.master_term import MasterTerm
from ternmq.broker.roles import Term
from ternmq.broker.tables.filters import Filters
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.topics import Topics
from ternmq.delay.progress import DelayProgress
from ternmq.env import Env
from ternmq.errors import ConfigError, NetworkError, ServiceNotAvailable, TernError
from ternmq.net.endpoint import Bound, bind
from ternmq.net.gate import Gate
from ternmq.net.tls import LiveTls
from ternmq.pop.assign import RequestModeTable
from ternmq.replication.admission import Admission
from ternmq.replication.beside import Beside
from ternmq.replication.config import BrokerRole, ReplicationConfig
from ternmq.replication.handshake import BrokerNode
from ternmq.replication.master import Master
from ternmq.replication.memory import Memory
from ternmq.replication.metadata import MasterCaller, MetadataSync, Table, log_range
from ternmq.replication.replicas import Replicas
from ternmq.replication.returning import Returning
from ternmq.replication.session import FOLD_S, MustCut
from ternmq.replication.slave import Slave, SlaveState
from ternmq.store.disk.base import Disk
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import RequestModes as RequestModesBody
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.filters import FilterTable
from ternmq.wire.bodies.groups import GroupTable
from ternmq.wire.bodies.replication import BrokerStatus, EpochCache, EpochEntry, FollowedMaster, SlaveLine
from ternmq.wire.bodies.stats import ConsumerOffsets, DelayOffsets, HaClient, HaConnection, HaStatus
from ternmq.wire.bodies.topics import TopicTable
from ternmq.wire.codes import RequestCode
from ternmq.wire.requests_admin import RegisterBrokerReply

log = logging.getLogger(__name__)

#: Takes topics that have messages, with numbers of queues.
FindTopics = Callable[[dict[str, int]], None]

#: How often a slave that does not follow asks name servers for its master.
_ASK_S: Final = 5.0


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
    topics: Topics,
    groups: Groups,
    offsets: Offsets,
    delays: DelayProgress,
    modes: RequestModeTable,
    filters: Filters,
    *,
    keeps_own: bool,
) -> list[Table]:
    """The tables that a slave copies, in RocketMQ's order; filters are known to TernMQ masters only.

    It ``keeps_own`` offsets if it returns them to its master.
    """
    return [
        Table("topics", RequestCode.GET_ALL_TOPIC_CONFIG, lambda data: topics.copy(decode(data, TopicTable))),
        Table(
            "consumer offsets",
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            lambda data: offsets.copy(decode(data, ConsumerOffsets), keeps_own=keeps_own),
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
        Table("filters", RequestCode.GET_ALL_CONSUMER_FILTER, lambda data: filters.copy(decode(data, FilterTable))),
    ]


class Deletions(NamedTuple):
    """For a slave: the topics of its tables, and what is told of each that its master has deleted."""

    known: Callable[[], Collection[str]]
    tell: Callable[[str], object]


class Replicating:
    """All methods belong to the broker's loop. Give ``begin`` to ``Roles.add``; a slave calls ``begin_following``."""

    def __init__(
        self,
        config: ReplicationConfig,
        *,
        place: BrokerNode,
        store: MessageStore,
        disk: Disk,
        env: Env,
        bound: Bound | None,
        caller: MasterCaller,
        memory: Memory,
        gate: Gate | None = None,
        is_guarded: bool = False,
        tls: LiveTls | None = None,
    ) -> None:
        """``is_guarded``: the broker checks who calls it, by a ``gate`` or by certificates."""
        self.config = config
        self.memory = memory
        self.place = place
        self._admission = Admission(config.allowed_networks(), gate, is_guarded)
        self._tls = tls
        self._store = store
        self._disk = disk
        self._env = env
        self._bound = bound
        self._caller = caller
        self._host, self.port = bound.getsockname()[:2] if bound is not None else ("", 0)
        if self.is_slave:
            self._let_go_of_port()
        #: What name servers said last.
        self._told = RegisterBrokerReply()
        #: What makes the task that follows the master, and the task while it runs.
        self._follow: Callable[[], asyncio.Task[None]] | None = None
        self._following: asyncio.Task[None] | None = None
        #: The current term's, or the slave's.
        self.master: Master | None = None
        self.slave: Slave | None = None
        self.metadata: MetadataSync | None = None
        #: Where the own log ended when this slave began to follow.
        self._began_at = 0
        #: Set while the role of this broker changes (``broker.promotion``).
        self.is_changing = False

    @property
    def is_slave(self) -> bool:
        return self.config.broker_role is BrokerRole.SLAVE

    @property
    def log_end(self) -> int:
        """Where the log of this broker ends: a slave that has all has that of its master."""
        return self._store.written

    def take_role(self, role: BrokerRole, broker_id: int) -> None:
        """Be this from now on, for slaves, masters and tools."""
        self.config = dataclasses.replace(self.config, broker_role=role)
        self.place = msgspec.structs.replace(self.place, broker_id=broker_id)
        # It may be this broker's own address.
        self._told = RegisterBrokerReply()

    # --- For tools --------------------------------------------------------------------------------------------------

    def ha_status(self) -> HaStatus:
        """How far slaves are, or how far this slave is, for tools of RocketMQ."""
        if self.is_slave:
            return HaStatus(master=False, ha_client_runtime_info=self._ha_client())
        if self.master is None:
            return HaStatus(master=True, master_commit_log_max_offset=self.log_end, ha_client_runtime_info=HaClient())
        in_sync = self.master.replicas.in_sync_by_replica()
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
                    in_sync=in_sync.get(each.replica, False),
                    transferred_byte_in_second=each.bytes_per_second,
                    transfer_from_where=each.sent,
                )
                for each in self.master.status()
            ],
        )

    def _ha_client(self) -> HaClient:
        session = self.slave.session if self.slave is not None else None
        now, now_ms = asyncio.get_running_loop().time(), self._env.clock.now_ms()
        return HaClient(
            master_addr=self._log_address() or "",
            transferred_byte_in_second=session.bytes_per_second if session is not None and self.is_following else 0,
            max_offset=self.log_end,
            last_read_timestamp=now_ms - int((now - session.heard_at) * 1000) if session is not None else 0,
            last_write_timestamp=now_ms - int((now - session.reported_at) * 1000) if session is not None else 0,
            is_activated=self.is_following,
        )

    def status(self) -> BrokerStatus:
        """Role, log and slaves, for ``tern broker status`` and other brokers of this name."""
        store, place, given = self._store, self.place, self.memory.given
        return BrokerStatus(
            cluster=place.cluster,
            broker=place.broker,
            broker_id=place.broker_id,
            address=place.address,
            log_port=self.port if self.master is not None else 0,
            role=self.config.broker_role.value if self.is_slave or self.master is not None else "NONE",
            epoch=self.memory.epochs.newest,
            log_epoch=self.memory.epochs.within(store.written).newest,
            log_begin=store.min_log_offset,
            log_end=store.written,
            messages=sum(store.max_offset(*queue) for queue in store.queues()),
            stored_ms=store.log.store_time_ms,
            former_id=given.former_id if given is not None else 0,
            is_by_promotion=given is not None,
            is_changing=self.is_changing,
            slaves=self._slave_lines(),
            master=self._followed_master() if self.is_slave else None,
        )

    def _slave_lines(self) -> list[SlaveLine]:
        if self.master is None:
            return []
        in_sync = self.master.replicas.in_sync_by_replica()
        return [
            SlaveLine(
                address=each.address,
                broker_id=each.broker_id,
                state=each.state.value,
                acked=each.acked,
                lag_bytes=each.lag_bytes,
                lag_ms=each.lag_ms,
                in_sync=in_sync.get(each.replica, False),
                bytes_per_second=each.bytes_per_second,
            )
            for each in self.master.status()
        ]

    def _followed_master(self) -> FollowedMaster:
        slave, known = self.slave, self.metadata.known if self.metadata is not None else None
        return FollowedMaster(
            address=self._log_address() or "",
            state=slave.state.value if slave is not None else SlaveState.NO_ADDRESS.value,
            trouble=slave.trouble if slave is not None else "",
            known_end=known[0] if known is not None else -1,
            known_ms_ago=int((asyncio.get_running_loop().time() - known[1]) * 1000) if known is not None else -1,
        )

    def epochs(self) -> EpochCache:
        """Which master wrote which part of the log, for ``mqadmin getBrokerEpoch``."""
        end = self.log_end
        known = self.memory.epochs if not self.is_slave else self.memory.epochs.within(end)
        *ended, last = known.ends(end)
        return EpochCache(
            cluster_name=self.place.cluster,
            broker_name=self.place.broker,
            broker_id=self.place.broker_id,
            epoch_list=[
                *(EpochEntry(epoch=each.number, start_offset=each.start, end_offset=stop) for each, stop in ended),
                EpochEntry(epoch=last[0].number, start_offset=last[0].start),
            ],
            max_offset=end,
        )

    # --- For readers ------------------------------------------------------------------------------------------------

    def keeps_up(self, broker_id: int) -> bool:
        """As master: whether that slave is connected and has nearly everything. RocketMQ's slaves do not tell their
        ids, so any of them may be meant."""
        if self.master is None:
            return False
        floor, name = self.log_end - self.config.ha_max_gap_not_in_sync, self.place.broker
        return any(
            each.acked > floor and (each.replica == f"{name}:{broker_id}" or not each.replica.startswith(f"{name}:"))
            for each in self.master.replicas.status()
        )

    @property
    def is_following(self) -> bool:
        """As slave: whether the master's log is being copied now."""
        return self.slave is not None and self.slave.state is SlaveState.FOLLOWING

    @property
    def has_beginning(self) -> bool:
        """As slave: whether it is known that the master has no older messages than this broker."""
        begin = self.metadata.master_begin if self.metadata is not None else None
        own_begin = self._store.log.begin
        return own_begin == 0 or (begin is not None and own_begin <= begin)

    # --- Master -----------------------------------------------------------------------------------------------------

    def begin(self, _term: Term) -> MasterTerm:
        """What serves slaves in this term (``roles.RunnerFactory``)."""
        self.master = self._new_master()
        return MasterTerm(self, self.master, self._store)

    def _new_master(self) -> Master:
        store = self._store
        return Master(
            store.log,
            self._disk,
            self.config,
            self.place,
            Replicas(self.config, lambda: store.written),
            epochs=self.memory.epochs,
            admission=self._admission,
            tls=self._tls,
            beside=Beside(store.config.store_path_root_dir, store.part_files, lambda: store.deletions),
        )

    @asynccontextmanager
    async def serving_the_rest(self) -> AsyncIterator[Master]:
        """Let slaves fetch the rest of the log after the term's end. Raises ``ServiceNotAvailable`` without a port."""
        bound = self.take_port()
        if bound is None:
            raise ServiceNotAvailable("this broker has no port for slaves; set haListenPort")
        async with self._new_master() as master:
            await master.serve(bound)
            yield master

    def _let_go_of_port(self) -> None:
        """A slave that follows the wrong broker must not be accepted by a port that nothing answers on."""
        if self._bound is not None:
            self._bound.close()
            self._bound = None

    def take_port(self) -> Bound | None:
        """The port of the log, held for the caller, who closes it."""
        bound, self._bound = self._bound, None
        if bound is None and self.port:
            bound = bind(self._host, self.port)
        return bound

    # --- Slave ------------------------------------------------------------------------------------------------------

    def registered(self, reply: RegisterBrokerReply) -> None:
        """A name server has answered, and may know the master."""
        if reply.master_address == self.place.address:
            return
        if reply.ha_address or reply.master_address:
            self._told = reply

    def serve(
        self,
        tasks: Tasks,
        tables: Sequence[Table],
        owner: Offsets,
        *,
        ask_again: Callable[[], None],
        find_topics: FindTopics,
        on_cut: Callable[[MustCut], None],
        deletions: Deletions,
        on_timer: Callable[[bytes], None],
    ) -> None:
        """Be ready to follow a master.

        ``owner`` has the offsets to return to it. ``ask_again`` registers with all name servers anew, ``find_topics``
        takes in topics that have messages and are in no table. ``on_cut`` is told that the log has to be cut first
        (``replication.slave``). ``on_timer`` gets the timer's check point of a RocketMQ master.
        """

        def take_timer(data: bytes) -> None:
            # A TernMQ master says in its log what it has delivered.
            if self.slave is not None and self.slave.master is None:
                on_timer(data)

        tables = [*tables, Table("timer check point", RequestCode.GET_TIMER_CHECK_POINT, take_timer)]

        def follow() -> asyncio.Task[None]:
            owner.begin_slave()
            return tasks.create_task(self._follow_master(tables, owner, ask_again, find_topics, on_cut, deletions))

        self._follow = follow

    def begin_following(self) -> None:
        """Follow the master from now on."""
        assert self._follow is not None, "the broker is put together"
        if self._following is None or self._following.done():
            self._following = self._follow()

    async def end_following(self) -> None:
        """Follow no master any more; the log stays as it is."""
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        self.slave = self.metadata = None

    async def folded(self, reason: TernError) -> None:
        """Bring the log into a state in which this broker can write: all records dispatched, none half."""
        while not self._store.follow(FOLD_S):  # noqa: ASYNC110 - others get their turn, nothing is waited for
            await asyncio.sleep(0)
        self._store.take_over(reason)

    async def _follow_master(
        self,
        tables: Sequence[Table],
        owner: Offsets,
        ask_again: Callable[[], None],
        find_topics: FindTopics,
        on_cut: Callable[[MustCut], None],
        deletions: Deletions,
    ) -> None:
        """Ends only by being cancelled."""
        self._began_at = self._store.written
        slave = self.slave = Slave(
            self._store,
            self._store.log,
            self._disk,
            self.config,
            self.place,
            self._log_address,
            self._env,
            memory=self.memory,
            ask_range=self._range_of_master,
            on_cut=on_cut,
            on_deleted=deletions.tell,
            caller=self._caller,
        )

        def copied(log_end: int) -> None:
            # TernMQ masters say by themselves what they deleted, and where.
            if slave.master is None:
                self._delete_unknown(deletions, log_end)

        returning = Returning(owner, self._env.clock, may=lambda: self.is_following)
        self.metadata = MetadataSync(
            tables, self.master_address, self._caller, self._follows_up_to, on_copied=copied, returning=returning
        )
        async with Tasks() as tasks:
            tasks.create_task(slave.run(), name="replication: follow the master's log")
            tasks.create_task(self.metadata.run(), name="replication: copy the master's tables")
            while True:
                await asyncio.sleep(_ASK_S)
                if slave.state is not SlaveState.FOLLOWING:
                    ask_again()
                    find_topics(self._new_topics())

    def _delete_unknown(self, deletions: Deletions, log_end: int) -> None:
        """Delete the queues of topics that the tables do not have, up to a log offset."""
        store = self._store
        unknown = {topic for topic, _ in store.queues()} - set(deletions.known())
        store.delete_topics(unknown, as_of=log_end)
        for topic in unknown - {topic for topic, _ in store.queues()}:
            deletions.tell(topic)

    def _new_topics(self) -> dict[str, int]:
        """Topics whose messages are all newer than the tables that were copied last, or than the start of this slave,
        with numbers of queues: the master was lost before it could tell of them. Topics with older messages may have
        been deleted."""
        copied_end = self.metadata.copied_end if self.metadata is not None else None
        since = copied_end if copied_end is not None else self._began_at
        store = self._store
        if store.dispatched <= since:
            return {}
        firsts = (
            (topic, store.entries(topic, queue_id, store.min_offset(topic, queue_id), 1))
            for topic, queue_id in store.queues()
        )
        old = {topic for topic, entries in firsts if entries and entries[0].log_offset < since}
        return {topic: queues for topic, queues in store.topics_with_messages().items() if topic not in old}

    async def _follows_up_to(self, log_offset: int) -> None:
        """Return when the own log follows the master's, and is dispatched up to an offset."""
        assert self.slave is not None
        await self.slave.is_following.wait()
        reached = asyncio.Event()
        self._store.when_dispatched(log_offset, reached.set)
        await reached.wait()

    def _log_address(self) -> str | None:
        return self.config.ha_master_address or self._told.ha_address

    async def _range_of_master(self) -> tuple[int, int] | None:
        address = self.master_address()
        return await log_range(address, self._caller) if address else None

    def master_address(self) -> str | None:
        """The remoting port of the master; without a name server only a TernMQ master tells it."""
        if self._told.master_address:
            return self._told.master_address
        master = self.slave.master if self.slave is not None else None
        return master.address if master is not None else None
