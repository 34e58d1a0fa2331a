"""The broker: all parts, put together (D1–D5, E, F, H).

``async with Broker(config, store_config) as broker`` binds its port, opens the store (which recovers it), loads its
tables, serves, and is ready when each name server has been tried. Leaving the block goes the other way round: name
servers are told first, so clients look elsewhere; then connections close, tables and log go to disk, and the store's
abort file is removed. A start that fails half-way undoes what it did, and raises one sentence.

Everything but the store's and the chores' threads runs on one loop. ``_mount`` puts them together;
``services.services`` has the rules and ``handlers.handlers`` the requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from types import TracebackType
from typing import Final, Self

from ternmq import kernels
from ternmq.auth.access import AccessControl
from ternmq.broker import flow
from ternmq.broker.changes import FILE_NAME as CHANGES_FILE
from ternmq.broker.changes import LiveSettings, with_changes
from ternmq.broker.config import BrokerConfig
from ternmq.broker.handlers.handlers import Handlers
from ternmq.broker.handlers.promotion import PromotionHandlers
from ternmq.broker.handlers.raft import RaftHandlers
from ternmq.broker.hooks import ConsumptionHook, ConsumptionHooks, make_hooks
from ternmq.broker.lifetime import Lifetime
from ternmq.broker.live_parts import LiveParts
from ternmq.broker.periodic import every, sample
from ternmq.broker.ports import listen_http, listen_vip
from ternmq.broker.promotion import Promotion
from ternmq.broker.raft_group import RaftGroup
from ternmq.broker.raft_reads import RaftReads
from ternmq.broker.raft_sends import RaftSends
from ternmq.broker.registration import Identity, Registration
from ternmq.broker.rejoin import correct_offsets, correct_tables, cut_store, standing
from ternmq.broker.replicating import Deletions, Replicating, bind_port, copied_tables
from ternmq.broker.roles import Role, Roles, Switch, Term
from ternmq.broker.services.polls import SCAN_S as POLLS_SCAN_S
from ternmq.broker.services.polls import PollKind, Polls
from ternmq.broker.services.services import Services
from ternmq.broker.settings import FIXED, own_ip, with_room_for
from ternmq.broker.tables.filters import SAVE_S as FILTERS_SAVE_S
from ternmq.broker.tables.tables import Tables
from ternmq.broker.tables.topics import Topics
from ternmq.config import rocketmq_name
from ternmq.delay.alarm import Alarm
from ternmq.delay.rocketmq_timer import unpack_check_point
from ternmq.delay.schedule_log import DIRECTORY as SCHEDULE_DIRECTORY
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.env import Env
from ternmq.errors import ConfigError, NotMaster, RestartNeeded
from ternmq.files import RETRY_S as FILES_RETRY_S
from ternmq.files import SYSTEM_FILES, Chores, Files, HeldBack, TableFiles, do_now
from ternmq.net.endpoint import bind
from ternmq.net.gate import Gate
from ternmq.net.lanes import Lanes
from ternmq.net.peer import Peer, format_address
from ternmq.net.server import Server
from ternmq.net.settings_text import Changes
from ternmq.raft.config import RaftConfig
from ternmq.replication.config import BrokerRole, ReplicationConfig
from ternmq.replication.handshake import BrokerNode
from ternmq.replication.memory import Memory
from ternmq.replication.metadata import MasterCaller
from ternmq.replication.session import MustCut
from ternmq.store.config import StoreConfig
from ternmq.store.derived.follower import OnProgress
from ternmq.store.disk.base import Disk
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.loading import lock_directory
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks, to_its_end
from ternmq.wire.auth import Credentials
from ternmq.wire.bodies.routes import BrokerData
from ternmq.wire.bodies.topics import TopicConfig
from ternmq.wire.record import pack_host

log = logging.getLogger(__name__)

CLIENT_SCAN_S: Final = 10.0
SAMPLE_S: Final = 1.0


class Broker:
    """One broker; ``address`` is what clients dial, ``port`` the one it listens on, ``roles`` says what it is.

    Entering raises ``NetworkError`` when the port is in use, ``StoreLocked`` when another process holds the directory,
    ``ConfigError`` for settings that cannot work here, and ``StoreError`` for files that cannot be read.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        env: Env | None = None,
        *,
        replication: ReplicationConfig | None = None,
        raft: RaftConfig | None = None,
        gate: Gate | None = None,
        credentials: Credentials | None = None,
        on_progress: OnProgress | None = None,
        origins: Mapping[str, str] | None = None,
        disk: Disk | None = None,
        files: Files = SYSTEM_FILES,
        hooks: Sequence[ConsumptionHook] = (),
    ) -> None:
        """``replication`` says whether this is a master or a slave; without it, a master that waits for no slave.
        ``raft`` makes it a member of a group that elects its master.

        ``gate`` admits requests, instead of the access control that the config asks for. Calls to name servers and to
        the master are signed with ``credentials``.

        ``hooks`` hear what goes out to groups, and those that ``consumeHooks`` names, which raises ``ConfigError`` if
        one cannot be made.

        ``on_progress`` is told, on another thread, how far the recovery of the store is: bytes done, and all.
        ``origins`` says where settings were given, for tools (``Settings.origins``).

        A ``disk`` other than this machine's, and ``files`` for the tables on it, make a broker that starts no threads:
        the loop does their work (``ternmq.testing``).
        """
        self.config = with_room_for(config, store_config)
        self._origins = dict(origins or {})
        self._store_config = store_config
        self._replication = replication or ReplicationConfig()
        self._raft = raft or RaftConfig()
        if self._replication.broker_role is BrokerRole.SLAVE and not config.broker_id:
            raise ConfigError("invalid brokerId 0: a broker with brokerRole=SLAVE needs an id of its own, 1 or more")
        if self._raft.enable_d_leger_commit_log and (self._replication.broker_role is BrokerRole.SLAVE):
            raise ConfigError(
                "invalid brokerRole SLAVE: the members of a Raft group (enableDLegerCommitLog) elect their master; "
                "remove brokerRole"
            )
        self._env = env or Env()
        self._hooks = ConsumptionHooks([*hooks, *make_hooks(config.hook_names)], self._env.clock)
        self._gate = gate
        self._credentials = credentials
        self._on_progress = on_progress
        self._disk = disk
        self._files = files
        self._lifetime = Lifetime(self._mount)
        #: Where the log is to be cut when the broker opens again.
        self._cut_at: int | None = None
        #: What keeps values of the settings; nothing before the broker is put together.
        self._live = LiveParts()
        self.roles = Roles(broker_id=config.broker_id)
        self.port = config.listen_port
        self.address = ""
        self._ha_address = ""
        #: What this broker does for its copies, or as one; it exists when the broker runs.
        self.replicating: Replicating | None = None
        #: Its part in a Raft group, if it is a member of one; it exists when the broker runs.
        self.group: RaftGroup | None = None

    async def __aenter__(self) -> Self:
        await self._lifetime.open()
        return self

    async def failed(self) -> None:
        """Wait until the broker ends by itself; raises why. It does so only if it cannot be opened again after its log
        was cut."""
        await self._lifetime.failed()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lifetime.close(kind, error, trace)
        log.info("broker %s stopped", self.config.broker_name)

    async def _mount(self, stack: AsyncExitStack) -> None:
        config, env = self.config, self._env

        # The port comes first: message ids carry it, and nothing is touched when another broker runs here already.
        bound = bind(config.bind_address, self.port)
        stack.callback(bound.close)
        self.port = bound.getsockname()[1]
        ip = await asyncio.to_thread(own_ip, config)
        self.address = format_address(config.broker_ip1 or ip, self.port)
        store_host = pack_host(ip, self.port)
        disk = self._disk or FileDisk()
        caller = MasterCaller(self._credentials, config.client_tls())
        is_guarded = self._gate is not None or config.checks_callers
        group: RaftGroup | None = None
        log_port = None
        if self._raft.enable_d_leger_commit_log:
            group = self.group = RaftGroup(
                self._raft,
                config,
                self._store_config,
                disk=disk,
                env=env,
                caller=caller,
                is_guarded=is_guarded,
                part_directories=[self._store_config.store_path_root_dir / SCHEDULE_DIRECTORY],
                on_exchange=self._lifetime.reopen,
            )
            raft_port = group.bind()
            stack.callback(raft_port.close)
        else:
            log_port = bind_port(self._replication, config.bind_address, config.listen_port, self.port)
        if log_port is not None:
            stack.callback(log_port.close)
        host = self._replication.broker_ip2 or config.broker_ip1 or ip
        self._ha_address = format_address(host, log_port.getsockname()[1] if log_port is not None else self.port + 1)

        # Files: first the tables, whose rules the store needs. They are written when it is open, and not before: a
        # start on a directory that cannot be used must not change it.
        on_loop = asyncio.get_running_loop().call_soon_threadsafe
        directory = self._store_config.store_path_root_dir / "config"
        held = lock_directory(self._store_config, disk)
        with ExitStack() as undo:
            undo.callback(held.release)
            memory = Memory(disk, self._store_config.store_path_root_dir)
            replication, broker_id = self._replication, config.broker_id
            if group is None:
                replication, broker_id = standing(memory, replication, broker_id)
            cut_at, self._cut_at = self._cut_at, None
            # One that was promoted while it closed keeps its log: the others are cut to it.
            if cut_at is not None and replication.broker_role is BrokerRole.SLAVE:
                await cut_store(disk, self._store_config, cut_at)
            if group is not None:
                await to_its_end(group.exchange_files)
            undo.pop_all()
        alarm = Alarm()
        schedule = ScheduleLog(disk, self._store_config.store_path_root_dir, ring=alarm.ring)
        stack.callback(schedule.close)
        saves = HeldBack()
        table_file = TableFiles(directory, saves, self._files, back=on_loop if self._disk is None else do_now)
        with ExitStack() as undo:
            undo.callback(held.release)
            changes = Changes(table_file(CHANGES_FILE))
            # What was read of the settings until here cannot be changed at run time.
            config, self._store_config = with_changes(changes, config, self._store_config)
            config = self.config = with_room_for(config, self._store_config)
            tables = Tables.load(
                config,
                env.clock,
                table_file,
                delay_levels=len(self._store_config.delay_levels_ms),
                hooks=self._hooks,
            )
            # The lock is the store's from now on.
            undo.pop_all()

        # What waits for messages comes before the store, which tells it of each arrival.
        def max_offset(topic: str, queue_id: int) -> int:
            return store.max_offset(topic, queue_id)

        lanes = Lanes(flow.lanes(config))
        polls = Polls(config, max_offset=max_offset, run_lanes=lanes.run)
        lanes.wake_held = polls.resume_few

        # Opening recovers, which may take long, so it has a thread.
        open_store = partial(
            MessageStore.open,
            self._store_config,
            store_host=store_host,
            clock=env.clock,
            disk=disk,
            held=held,
            log=group.log if group is not None else None,
            derived=(schedule,),
            on_arrival=polls.arrived,
            listened=polls.topics,
            is_batch=tables.topics.is_batch,
            bits=tables.filters.bits if config.enable_calc_filter_bit_map else None,
            notify=on_loop,
            on_progress=self._on_progress,
            threads=self._disk is None,
        )
        store = await to_its_end(open_store, undo=MessageStore.close)
        stack.callback(store.close)
        saves.begin(stack.enter_context(Chores()) if self._disk is None else do_now)
        stack.push_async_callback(table_file.settle)
        if not store.was_closed:
            tables.topics.find_again(store.topics_with_messages())
            if group is None and replication.broker_role is not BrokerRole.SLAVE:
                correct_offsets(store, tables.offsets, tables.topics)
        stack.callback(tables.offsets.save)
        stack.callback(tables.filters.save)

        # Its copies: slaves or a master, or the members of a group.
        control = await stack.enter_async_context(
            AccessControl.running(
                config, env.clock, gate=self._gate, directory=directory, cluster=config.broker_cluster_name
            )
        )
        tasks = Tasks()
        place = BrokerNode(config.broker_cluster_name, config.broker_name, broker_id, self.address)

        def find_topics() -> None:
            # A slave copies the table now and then; messages of a topic may have come in between.
            tables.topics.find_again(store.topics_with_messages())

        def tables_of_leader() -> None:
            find_topics()
            tables.topics.renew()
            # The directory may be that of a slave, before it was one of a member.
            tables.offsets.begin_master(store.max_offset)

        async def folded() -> None:
            assert group is not None, "this is a member"
            await group.folded()
            await services.journal.fold(services.catalog.follow)

        replicating = self.replicating = Replicating(
            replication,
            place=place,
            store=store,
            disk=disk,
            env=env,
            bound=log_port,
            caller=caller,
            memory=memory,
            gate=control.gate,
            is_guarded=is_guarded,
            tls=control.tls,
        )
        promotion: Promotion | None = None

        async def may_register(known: BrokerData | None) -> None:
            if promotion is not None:
                await promotion.check(known)

        registration = self._registration(tables.topics, replicating, may_register)
        if group is None:
            roles = self.roles = Roles(
                broker_id=broker_id,
                folded=lambda: replicating.folded(NotMaster("this broker becomes the master")),
                announce=registration.announce,
            )
            promotion = Promotion(
                roles=roles,
                replicating=replicating,
                memory=memory,
                store=store,
                members=registration.members,
                find_topics=find_topics,
                caller=caller,
                ha_address=self._ha_address,
                settings_id=config.broker_id,
                tasks=tasks,
            )
        else:
            roles = self.roles = Roles(
                broker_id=self._raft.me.broker_id, folded=folded, announce=_at_once(registration.identity_changed)
            )
        # Services: rules, which know no connection.
        services = Services(
            config,
            store=store,
            tables=tables,
            table_file=table_file,
            polls=polls,
            schedule=schedule,
            alarm=alarm,
            roles=roles,
            copies=replicating,
            published=registration.published,
            # RocketMQ members could not read it, and would not write it.
            has_journal=group is not None and not self._raft.is_mixed,
            env=env,
            ip=ip,
            store_host=store_host,
            stack=stack,
        )
        services.add_permissions(roles)
        if group is None:
            roles.add(
                Switch.factory(
                    on=lambda: tables.offsets.begin_master(store.max_offset), off=lambda _: tables.offsets.begin_slave()
                )
            )
        else:
            # Pulls, too: what they wait for comes to the next leader.
            roles.add(Switch.factory(on=tables_of_leader, off=lambda reason: polls.answer_all(reason, tuple(PollKind))))
            if services.journal.is_on:
                roles.add(Switch.factory(on=services.journal.open, off=services.journal.shut))
        services.add_runners(roles)
        if group is None:
            roles.add(replicating.begin)

        # Handlers: from requests to services, and from results to replies.
        handlers = Handlers(
            config,
            services=services,
            tables=tables,
            store=store,
            schedule=schedule,
            polls=polls,
            lanes=lanes,
            roles=roles,
            registration=registration,
            control=control,
            clock=env.clock,
            address=self.address,
            store_host=store_host,
            ha_status=group.ha_status if group is not None else replicating.ha_status,
            runtime=group.runtime if group is not None else dict,
            settings=LiveSettings(
                changes,
                get=lambda: (self.config, self._store_config, self._replication, self._raft),
                apply=partial(self._apply, store),
                origins=self._origins,
            ),
            server=lambda: server,
        )
        routes = handlers.routes
        if promotion is not None:
            routes |= PromotionHandlers(replicating=replicating, promotion=promotion).routes()
        if group is not None:
            reads = RaftReads(
                lambda: group.node,
                is_master=lambda: roles.is_master,
                is_enabled=lambda: self.config.slave_read_enable,
            )
            polls.refusal = reads.refusal
            routes |= reads.routes(routes)
            routes |= RaftSends().routes(routes)
            routes |= RaftHandlers(group, is_master=lambda: roles.is_master, monotonic=env.clock.monotonic).routes(
                routes
            )

        # What tells what.
        def topic_changed(topic: TopicConfig | None) -> None:
            services.topic_changed(topic)
            registration.topic_changed(topic)

        def connection_closed(peer: Peer) -> None:
            polls.drop(peer)
            tables.clients.on_close(peer)

        def forget_silent_clients() -> None:
            for silent in tables.clients.scan():
                silent.close()

        tables.topics.on_change = topic_changed
        tables.clients.on_members = handlers.members.tell_members
        tables.clients.on_empty = tables.filters.unregister

        # The world. Registration is entered last, as it must be left first.
        server: Server = await stack.enter_async_context(
            Server.running(routes, lanes, limits=config, gate=control.gate, tls=control.tls, on_close=connection_closed)
        )
        self._live = LiveParts(
            (*services.parts, *handlers.parts, tables), lanes=lanes, usage=server.usage, registration=registration
        )
        # Before connections close: senders that wait for the disk still get an answer.
        stack.callback(store.flush_now)
        await stack.enter_async_context(tasks)
        await stack.enter_async_context(roles)
        copied = copied_tables(
            tables.topics,
            tables.groups,
            tables.offsets,
            services.delivered,
            services.popping.modes,
            tables.filters,
            keeps_own=group is None,
        )
        replicating.serve(
            tasks,
            copied,
            tables.offsets,
            ask_again=registration.identity_changed,
            find_topics=tables.topics.find_again,
            on_cut=self._must_cut,
            deletions=Deletions(tables.topics.names, services.catalog.deleted_elsewhere),
            on_timer=lambda data: schedule.delivered_elsewhere(*unpack_check_point(data)),
        )
        await correct_tables(disk, store, tables.offsets, services.delivered, table_file)
        if replicating.is_slave:
            await roles.become(Role.SLAVE, Term(0), broker_id=broker_id)
            replicating.begin_following()
        tasks.create_task(every(lambda: self.config.flush_consumer_offset_interval / 1000, tables.offsets.save))
        periodic: tuple[tuple[float, Callable[[], Awaitable[None] | None]], ...] = (
            (FILTERS_SAVE_S, tables.filters.save),
            (self._store_config.flush_delay_offset_interval / 1000, services.delivered.save),
            (FILES_RETRY_S, table_file.retry),
            (CLIENT_SCAN_S, forget_silent_clients),
            (CLIENT_SCAN_S, tables.locks.forget_expired),
            (POLLS_SCAN_S, polls.scan),
            (SAMPLE_S, partial(sample, tables.stats)),
            *self._work_of_threads(store),
        )
        for seconds, work in periodic:
            tasks.create_task(every(seconds, work))
        await server.serve(bound)
        await listen_vip(server, config)
        if group is not None:
            # The numbers of changes that the tables have (``Included``), before there are more.
            await table_file.settle()
            running = group.running(
                raft_port,
                store=store,
                roles=roles,
                tables=copied,
                included=services.numbers,
                forget_topic=services.catalog.deleted_elsewhere,
                registered=registration.members,
                address=self.address,
                store_host=store_host,
                tls=control.tls,
                gate=control.gate,
            )
            await stack.enter_async_context(running)
        if config.http_port:
            http = await listen_http(
                tasks,
                config=lambda: self.config,
                store=store,
                tables=tables,
                services=services,
                server=server,
                roles=roles,
                replicating=replicating,
                group=group,
                control=control,
                clock=env.clock,
            )
            stack.callback(http.close)
        await stack.enter_async_context(registration)
        if group is not None:
            # First of all at the end: clients find another master before this one is gone.
            stack.push_async_callback(group.hand_over)
        known_to = await registration.settled()
        if promotion is not None:
            # A master takes messages when the name servers list no other one.
            await promotion.settle()
        # A broker that is ready has its tables on the disk, those that a first start made, too.
        await table_file.settle()
        log.info(
            "broker %s is ready at %s, registered with %d name servers (%s)",
            config.broker_name,
            self.address,
            known_to,
            kernels.describe(),
        )

    def _work_of_threads(self, store: MessageStore) -> list[tuple[float, Callable[[], None]]]:
        """What a store without threads wants to have done, and how often."""
        if self._disk is None:
            return []
        config = self._store_config
        return [
            (config.flush_interval_commit_log / 1000, store.flush_when_due),
            (config.flush_interval_consume_queue / 1000, store.tick),
        ]

    def apply(self, config: BrokerConfig) -> None:
        """Hand new settings over to all parts; none keeps a value of the old ones.

        Raises ``RestartNeeded`` for a change of names, addresses and what files are made of.
        """
        config = with_room_for(config, self._store_config)
        for name in FIXED:
            if getattr(config, name) != getattr(self.config, name):
                raise RestartNeeded(f"cannot change {rocketmq_name(name)} while the broker runs; restart it")
        self.config = config
        self._live.apply(config)

    def _apply(self, store: MessageStore, config: BrokerConfig, store_config: StoreConfig) -> None:
        self.apply(config)
        self._store_config = store_config
        store.retention.apply(store_config)

    def _identity(self) -> Identity:
        """What name servers know of this broker, in its present role."""
        config = self.config
        return Identity(
            config.broker_cluster_name,
            config.broker_name,
            self.roles.broker_id,
            self.address,
            # Where slaves fetch the log (O1).
            self._ha_address,
            config.broker_permission,
        )

    def _must_cut(self, cut: MustCut) -> None:
        self._cut_at = cut.log_offset
        self._lifetime.reopen()

    def _registration(
        self,
        topics: Topics,
        replicating: Replicating,
        may_register: Callable[[BrokerData | None], Awaitable[None]],
    ) -> Registration:
        config = self.config
        return Registration(
            config.name_servers,
            self._identity,
            topics.body,
            period_ms=config.register_name_server_period,
            timeout_ms=config.register_broker_timeout_mills,
            fetch_ms=config.fetch_namesrv_addr_interval,
            on_master=replicating.registered,
            may_register=may_register,
            credentials=self._credentials,
            tls=config.client_tls(),
        )


def _at_once(call: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    """A call as something to await that does not wait."""

    async def make() -> None:
        call()

    return make
