"""The broker: all parts, put together (D1–D5, E, F, H).

``async with Broker(config, store_config) as broker`` binds its port, opens the store (which recovers it), loads its
tables, serves, and is ready when each name server has been tried. Leaving the block goes the other way round: name
servers are told first, so clients look elsewhere; then connections close, tables and log go to disk, and the store's
abort file is removed. A start that fails half-way undoes what it did, and raises one sentence.

Everything but the store's and the chores' threads runs on one loop. ``_mount`` is the whole broker on one screen.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self

from ternmq.auth.access import AccessControl
from ternmq.auth.handlers import AclHandlers
from ternmq.broker import flow
from ternmq.broker.config import BrokerConfig
from ternmq.broker.handlers.ack import AckHandlers
from ternmq.broker.handlers.admin_broker import BrokerHandlers
from ternmq.broker.handlers.admin_clients import ConnectionHandlers
from ternmq.broker.handlers.admin_groups import GroupHandlers
from ternmq.broker.handlers.admin_offsets import GroupOffsetHandlers
from ternmq.broker.handlers.admin_topics import TopicHandlers
from ternmq.broker.handlers.assignment import AssignmentHandlers
from ternmq.broker.handlers.client import ClientHandlers
from ternmq.broker.handlers.delays import DelayHandlers
from ternmq.broker.handlers.offset import OffsetHandlers
from ternmq.broker.handlers.pop import PopHandlers
from ternmq.broker.handlers.pull import PullHandlers
from ternmq.broker.handlers.query import QueryHandlers
from ternmq.broker.handlers.relay import RelayHandlers
from ternmq.broker.handlers.reply import ReplyHandlers
from ternmq.broker.handlers.send import SendHandlers, SendReplies
from ternmq.broker.handlers.slaves import SlaveHandlers
from ternmq.broker.handlers.transaction import TransactionHandlers
from ternmq.broker.registration import Identity, Registration
from ternmq.broker.replicating import Replicating, bind_port, copied_tables
from ternmq.broker.roles import Role, Roles, Switch, Term
from ternmq.broker.services.access import Access
from ternmq.broker.services.catalog import Catalog
from ternmq.broker.services.delaying import Delaying
from ternmq.broker.services.intake import Intake
from ternmq.broker.services.polls import SCAN_S as POLLS_SCAN_S
from ternmq.broker.services.polls import Polls
from ternmq.broker.services.popping import Popping
from ternmq.broker.services.positions import Positions
from ternmq.broker.services.reading import Reading
from ternmq.broker.services.retry import Retries
from ternmq.broker.services.sending import Sending
from ternmq.broker.services.transactions import TransactionService
from ternmq.broker.settings import FIXED, own_ip, with_room_for
from ternmq.broker.tables.filters import SAVE_S as FILTERS_SAVE_S
from ternmq.broker.tables.tables import Tables
from ternmq.broker.tables.topics import Topics
from ternmq.config import rocketmq_name
from ternmq.delay.alarm import Alarm
from ternmq.delay.delivery import Delivery
from ternmq.delay.levels import MARK as DELAY_MARK
from ternmq.delay.overview import Overview
from ternmq.delay.progress import DelayProgress
from ternmq.delay.recalls import Recalls
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.delay.timer import MARKS as TIMER_MARKS
from ternmq.delay.timer import Timer
from ternmq.env import Env
from ternmq.errors import ConfigError, NetworkError, NotMaster
from ternmq.files import RETRY_S as FILES_RETRY_S
from ternmq.files import SYSTEM_FILES, Chores, Files, HeldBack, TableFiles, do_now
from ternmq.net.endpoint import bind
from ternmq.net.gate import Gate
from ternmq.net.lanes import Lanes
from ternmq.net.peer import Peer, Route, format_address
from ternmq.net.server import Server
from ternmq.replication.config import BrokerRole, ReplicationConfig
from ternmq.replication.handshake import Place
from ternmq.replication.metadata import Caller
from ternmq.store.config import StoreConfig
from ternmq.store.derived.follower import OnProgress
from ternmq.store.disk.base import Disk
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.loading import lock_directory
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.transaction.half import MARK as TRANSACTION_MARK
from ternmq.wire.auth import Credentials
from ternmq.wire.bodies.topics import TopicConfig
from ternmq.wire.codes import RequestCode
from ternmq.wire.ids import UniqueIds
from ternmq.wire.record import pack_host

log = logging.getLogger(__name__)

#: The «VIP» port, for clients that do not want to wait behind pulls, is that many below the main one.
VIP_PORT_STEP: Final = 2
#: What it does not serve: calls that may wait long.
NOT_ON_VIP: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    }
)
CLIENT_SCAN_S: Final = 10.0
SAMPLE_S: Final = 1.0


class _Part(Protocol):
    """What keeps values of the settings."""

    def apply(self, config: BrokerConfig, /) -> None: ...


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
        gate: Gate | None = None,
        credentials: Credentials | None = None,
        on_progress: OnProgress | None = None,
        disk: Disk | None = None,
        files: Files = SYSTEM_FILES,
    ) -> None:
        """``replication`` says whether this is a master or a slave; without it, a master that waits for no slave.

        ``gate`` admits requests, instead of the access control that the config asks for. Calls to name servers and to
        the master are signed with ``credentials``.

        ``on_progress`` is told, on another thread, how far the recovery of the store is: bytes done, and all.

        A ``disk`` other than this machine's, and ``files`` for the tables on it, make a broker that starts no threads:
        the loop does their work (``ternmq.testing``).
        """
        self.config = with_room_for(config, store_config)
        self._store_config = store_config
        self._replication = replication or ReplicationConfig()
        if self._replication.broker_role is BrokerRole.SLAVE and not config.broker_id:
            raise ConfigError("invalid brokerId 0: a broker with brokerRole=SLAVE needs an id of its own, 1 or more")
        self._env = env or Env()
        self._gate = gate
        self._credentials = credentials
        self._on_progress = on_progress
        self._disk = disk
        self._files = files
        self._exit = AsyncExitStack()
        self._parts: Sequence[_Part] = ()
        self._apply_others: Callable[[BrokerConfig], None] = _nothing
        self.roles = Roles(broker_id=config.broker_id)
        self.port = config.listen_port
        self.address = ""
        self._ha_address = ""
        #: What this broker does for its copies, or as one; it exists when the broker runs.
        self.replicating: Replicating | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._mount(stack)
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.__aexit__(kind, error, trace)
        log.info("broker %s stopped", self.config.broker_name)

    async def _mount(self, stack: AsyncExitStack) -> None:
        config, env = self.config, self._env

        # The port comes first: message ids carry it, and nothing is touched when another broker runs here already.
        bound = bind(config.bind_address, config.listen_port)
        stack.callback(bound.close)
        self.port = bound.getsockname()[1]
        ip = await asyncio.to_thread(own_ip, config)
        self.address = format_address(config.broker_ip1 or ip, self.port)
        store_host = pack_host(ip, self.port)
        log_port = bind_port(self._replication, config.bind_address, config.listen_port, self.port)
        if log_port is not None:
            stack.callback(log_port.close)
        host = self._replication.broker_ip2 or config.broker_ip1 or ip
        self._ha_address = format_address(host, log_port.getsockname()[1] if log_port is not None else self.port + 1)

        # Files: first the tables, whose rules the store needs. They are written when it is open, and not before: a
        # start on a directory that cannot be used must not change it.
        on_loop = asyncio.get_running_loop().call_soon_threadsafe
        directory = self._store_config.store_path_root_dir / "config"
        disk = self._disk or FileDisk()
        held = lock_directory(self._store_config, disk)
        alarm = Alarm()
        schedule = ScheduleLog(disk, self._store_config.store_path_root_dir, ring=alarm.ring)
        stack.callback(schedule.close)
        saves = HeldBack()
        table_file = TableFiles(directory, saves, self._files, back=on_loop if self._disk is None else do_now)
        with ExitStack() as undo:
            undo.callback(held.release)
            tables = Tables.load(config, env.clock, table_file, delay_levels=len(self._store_config.delay_levels_ms))
            # The lock is the store's from now on.
            undo.pop_all()

        # What waits for messages comes before the store, which tells it of each arrival.
        def max_offset(topic: str, queue_id: int) -> int:
            return store.max_offset(topic, queue_id)

        lanes = Lanes(flow.lanes(config))
        polls = Polls(config, max_offset=max_offset, run_lanes=lanes.run)

        # Opening recovers, which may take long, so it has a thread.
        open_store = partial(
            MessageStore.open,
            self._store_config,
            store_host=store_host,
            clock=env.clock,
            disk=disk,
            held=held,
            derived=(schedule,),
            on_arrival=polls.arrived,
            is_batch=tables.topics.is_batch,
            bits=tables.filters.bits if config.enable_calc_filter_bit_map else None,
            notify=on_loop,
            on_progress=self._on_progress,
            threads=self._disk is None,
        )
        store = await asyncio.to_thread(open_store)
        stack.callback(store.close)
        saves.begin(stack.enter_context(Chores()) if self._disk is None else do_now)
        stack.push_async_callback(table_file.settle)
        if not store.was_closed:
            tables.topics.find_again(store.topics_with_messages())
        stack.callback(tables.offsets.save)
        stack.callback(tables.filters.save)

        # Services: rules, which know no connection. What runs on a master only is added to the roles, in the order in
        # which it stops: the permission to write goes first.
        def moved(group: str, topic: str, queue_id: int) -> None:
            popping.moved(group, topic, queue_id)
            polls.moved(group, topic, queue_id)

        place = Place(config.broker_cluster_name, config.broker_name, config.broker_id, self.address)
        replicating = self.replicating = Replicating(
            self._replication,
            place=place,
            store=store,
            disk=disk,
            env=env,
            bound=log_port,
            caller=Caller(self._credentials, config.client_tls()),
            is_guarded=self._gate is not None or config.checks_callers,
        )
        registration = self._registration(tables.topics, replicating)
        roles = self.roles = Roles(broker_id=config.broker_id, announce=self._announce(registration))
        stack.callback(polls.close)
        access = Access(config, topics=tables.topics, groups=tables.groups)
        delivered = DelayProgress(table_file("delayOffset.json"), store, env.clock)
        delivered.load()
        stack.callback(delivered.save)
        delaying = Delaying(store, delivered, clock=env.clock)
        timer = Timer(
            clock=env.clock,
            broker_name=config.broker_name,
            is_enabled=self._store_config.timer_wheel_enable,
            max_delay_sec=self._store_config.timer_max_delay_sec,
        )
        transactions = TransactionService(
            config,
            store=store,
            take_in=lambda draft: intake.store(draft),
            offsets=tables.offsets,
            topics=tables.topics,
            clients=tables.clients,
            clock=env.clock,
            host=store_host,
        )
        # In this order: delays leave halves alone, and see a message when it is committed.
        intake = Intake(
            store,
            waiting_max=config.send_thread_pool_queue_capacity,
            redirects={
                TRANSACTION_MARK: transactions.redirect,
                **dict.fromkeys(TIMER_MARKS, timer.redirect),
                DELAY_MARK: delaying.redirect,
            },
        )
        stack.callback(intake.close)
        retries = Retries(
            intake=intake,
            topics=tables.topics,
            groups=tables.groups,
            record_at=store.record_at,
            cold_record=store.cold.record,
            choice=env.random,
        )
        sending = Sending(
            config,
            intake=intake,
            topics=tables.topics,
            retries=retries,
            transactions=transactions,
            stats=tables.stats,
            timer=timer,
            new_unique_key=UniqueIds(ip, os.getpid(), salt=env.random.getrandbits(32), clock=env.clock).next,
            choice=env.random,
        )
        reading = Reading(
            config,
            access=access,
            store=store,
            groups=tables.groups,
            clients=tables.clients,
            offsets=tables.offsets,
            stats=tables.stats,
            filters=tables.filters,
        )
        popping = Popping(
            config,
            access=access,
            polls=polls,
            table_file=table_file,
            store=store,
            store_host=store_host,
            topics=tables.topics,
            groups=tables.groups,
            offsets=tables.offsets,
            stats=tables.stats,
            filters=tables.filters,
            clock=env.clock,
            choice=env.random,
        )
        stack.callback(popping.close)
        positions = Positions(
            config,
            store=store,
            offsets=tables.offsets,
            topics=tables.topics,
            groups=tables.groups,
            clients=tables.clients,
            moved=moved,
        )
        catalog = Catalog(
            topics=tables.topics,
            groups=tables.groups,
            store=store,
            offsets=tables.offsets,
            stats=tables.stats,
            published=registration.published,
            on_delete_topic=lambda topic: popping.forget(topic=topic),
            on_delete_group=lambda group: popping.forget(group=group),
        )
        store.refuse_writes(NotMaster("this broker is not the master yet"))
        tables.locks.shut(NotMaster("this broker is not the master: ask the master for locks"))
        roles.add(Switch.factory(on=lambda: store.refuse_writes(None), off=store.refuse_writes))
        roles.add(Switch.factory(on=sending.open, off=sending.shut))
        roles.add(Switch.factory(on=tables.locks.open, off=tables.locks.shut))
        roles.add(delaying.begin)
        roles.add(transactions.begin)
        roles.add(lambda _term: Delivery(store, schedule, alarm, clock=env.clock))
        roles.add(popping.begin)
        roles.add(replicating.begin)

        # Handlers: from requests to services, and from results to replies.
        replies = SendReplies(config, store_host=store_host)
        sends = SendHandlers(sending=sending, replies=replies)
        pulls = PullHandlers(reading=reading, polls=polls, lanes=lanes, roles=roles)
        pops = PopHandlers(popping=popping, polls=polls, lanes=lanes)
        members = ClientHandlers(
            clients=tables.clients,
            groups=tables.groups,
            topics=tables.topics,
            locks=tables.locks,
            filters=tables.filters,
            config=config,
        )
        assignments = AssignmentHandlers(
            modes=popping.modes,
            clients=tables.clients,
            topics=tables.topics,
            groups=tables.groups,
            broker_name=config.broker_name,
            find_route=registration.find_route,
            tell_members=members.tell_members,
        )
        answers = ReplyHandlers(
            config,
            sending=sending,
            replies=replies,
            clients=tables.clients,
            clock=env.clock,
            address=self.address,
        )
        relay = RelayHandlers(clients=tables.clients, find_record=reading.record, broker_name=config.broker_name)

        # What tells what.
        def topic_changed(topic: TopicConfig | None) -> None:
            sending.topic_changed(topic)
            registration.topic_changed(topic)

        def connection_closed(peer: Peer) -> None:
            polls.drop(peer)
            tables.clients.on_close(peer)

        def forget_silent_clients() -> None:
            for silent in tables.clients.scan():
                silent.close()

        tables.topics.on_change = topic_changed
        tables.clients.on_members = members.tell_members
        tables.clients.on_empty = tables.filters.unregister

        # The world. Registration is entered last, as it must be left first.
        routes = {**sends.routes(), **pulls.routes(), **members.routes(), **QueryHandlers(reading).routes()}
        routes |= pops.routes() | AckHandlers(popping).routes()
        routes |= answers.routes() | relay.routes() | assignments.routes()
        routes |= self._routes_of_tools(tables, store, catalog, positions, delaying, lambda: server)
        routes |= DelayHandlers(
            recalls=Recalls(schedule, clock=env.clock, broker_name=config.broker_name),
            overview=Overview(schedule),
            intake=intake,
            may_recall=config.recall_message_enable,
            clock=env.clock,
        ).routes()
        routes |= TransactionHandlers(transactions=transactions, intake=intake).routes()
        routes |= SlaveHandlers(offsets=tables.offsets, delays=delivered.body, ha_status=replicating.status).routes()
        control = await stack.enter_async_context(AccessControl.running(config, env.clock, gate=self._gate))
        if control.plain is not None:
            routes |= AclHandlers(
                control.plain,
                lane=flow.ADMIN,
                broker_name=config.broker_name,
                address=self.address,
                cluster_name=config.broker_cluster_name,
            ).routes()
        server = await stack.enter_async_context(
            Server.running(routes, lanes, limits=config, gate=control.gate, tls=control.tls, on_close=connection_closed)
        )
        self._parts = (
            access,
            polls,
            intake,
            sending,
            transactions,
            reading,
            popping,
            positions,
            replies,
            answers,
            members,
            tables,
        )
        self._apply_others = partial(self._hand_over, lanes, server, registration)
        # Before connections close: senders that wait for the disk still get an answer.
        stack.callback(store.flush_now)
        tasks = await stack.enter_async_context(Tasks())
        await stack.enter_async_context(roles)
        role = Role.SLAVE if replicating.is_slave else Role.MASTER
        await roles.become(role, Term(1), broker_id=config.broker_id)
        if replicating.is_slave:
            copied = copied_tables(tables.topics, tables.groups, tables.offsets, delivered, popping.modes)
            tasks.create_task(replicating.follow(copied, registration.identity_changed))
        tasks.create_task(every(lambda: self.config.flush_consumer_offset_interval / 1000, tables.offsets.save))
        for seconds, work in (
            (FILTERS_SAVE_S, tables.filters.save),
            (self._store_config.flush_delay_offset_interval / 1000, delivered.save),
            (FILES_RETRY_S, table_file.retry),
            (CLIENT_SCAN_S, forget_silent_clients),
            (CLIENT_SCAN_S, tables.locks.forget_expired),
            (POLLS_SCAN_S, polls.scan),
            (SAMPLE_S, tables.stats.sample),
            *self._work_of_threads(store),
        ):
            tasks.create_task(every(seconds, work))
        await server.serve(bound)
        await self._listen_vip(server)
        await stack.enter_async_context(registration)
        known_to = await registration.settled()
        # A broker that is ready has its tables on the disk, those that a first start made, too.
        await table_file.settle()
        log.info(
            "broker %s is ready at %s, registered with %d name servers", config.broker_name, self.address, known_to
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

        Raises ``ConfigError`` for a change that needs a restart: of names, addresses and what files are made of.
        """
        config = with_room_for(config, self._store_config)
        for name in FIXED:
            if getattr(config, name) != getattr(self.config, name):
                raise ConfigError(f"cannot change {rocketmq_name(name)} while the broker runs; restart it")
        self.config = config
        for part in self._parts:
            part.apply(config)
        self._apply_others(config)

    def _hand_over(self, lanes: Lanes, server: Server, registration: Registration, config: BrokerConfig) -> None:
        """To parts that know nothing of a broker's settings."""
        lanes.apply(flow.lanes(config))
        server.usage.apply(config)
        registration.apply(
            period_ms=config.register_name_server_period, timeout_ms=config.register_broker_timeout_mills
        )
        registration.identity_changed()

    def _announce(self, registration: Registration) -> Callable[[], Awaitable[None]]:
        async def announce() -> None:
            registration.identity_changed()
            await registration.published()

        return announce

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

    def _registration(self, topics: Topics, replicating: Replicating) -> Registration:
        config = self.config
        return Registration(
            config.name_servers,
            self._identity,
            topics.body,
            period_ms=config.register_name_server_period,
            timeout_ms=config.register_broker_timeout_mills,
            on_master=replicating.registered if replicating.is_slave else None,
            credentials=self._credentials,
            tls=config.client_tls(),
        )

    def _routes_of_tools(
        self,
        tables: Tables,
        store: MessageStore,
        catalog: Catalog,
        positions: Positions,
        delaying: Delaying,
        server: Callable[[], Server],
    ) -> dict[int, Route]:
        """What consumers ask now and then, and ``mqadmin`` and ``tern`` all the time."""
        name, clock = self.config.broker_name, self._env.clock
        topics, groups, offsets = tables.topics, tables.groups, tables.offsets
        clients, stats = tables.clients, tables.stats
        return {
            **OffsetHandlers(positions=positions, store=store).routes(),
            **TopicHandlers(
                catalog=catalog,
                topics=topics,
                store=store,
                offsets=offsets,
                clients=clients,
                stats=stats,
                broker_name=name,
            ).routes(),
            **GroupHandlers(
                catalog=catalog,
                groups=groups,
                topics=topics,
                store=store,
                offsets=offsets,
                clients=clients,
                stats=stats,
                broker_name=name,
            ).routes(),
            **GroupOffsetHandlers(
                positions=positions,
                offsets=offsets,
                store=store,
                topics=topics,
                clients=clients,
                broker_name=name,
                clock=clock,
            ).routes(),
            **ConnectionHandlers(clients=clients, clock=clock).routes(),
            **BrokerHandlers(
                stats=stats,
                store=store,
                topics=topics,
                server=server,
                settings=lambda: (self.config, self._store_config, self._replication),
                store_path=self._store_config.store_path_root_dir,
                delays=delaying.state,
                clock=clock,
            ).routes(),
        }

    async def _listen_vip(self, server: Server) -> None:
        port = self.config.listen_port - VIP_PORT_STEP
        if port <= 0:
            return
        try:
            await server.listen(self.config.bind_address, port, without=NOT_ON_VIP)
        except (NetworkError, ConfigError) as error:
            log.warning(
                "cannot open the VIP port %d: %s; only clients with vipChannelEnabled (off since 4.9) need it",
                port,
                error,
            )


async def every(seconds: float | Callable[[], float], work: Callable[[], None]) -> None:
    """Do something again and again; one failure is logged and does not end it."""
    while True:
        await asyncio.sleep(seconds() if callable(seconds) else seconds)
        try:
            work()
        except Exception:
            log.exception("a background task failed; retrying")


def _nothing(_config: BrokerConfig) -> None:
    """Before the broker is put together, nothing keeps its settings."""
