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
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

from ternmq.broker import flow
from ternmq.broker.clients import Clients
from ternmq.broker.config import BrokerConfig
from ternmq.broker.groups import Groups
from ternmq.broker.handlers.admin_broker import BrokerHandlers
from ternmq.broker.handlers.admin_clients import ConnectionHandlers
from ternmq.broker.handlers.admin_groups import GroupHandlers
from ternmq.broker.handlers.admin_topics import TopicHandlers
from ternmq.broker.handlers.client import ClientHandlers
from ternmq.broker.handlers.offset import OffsetHandlers
from ternmq.broker.handlers.pull import PullHandlers
from ternmq.broker.handlers.query import QueryHandlers
from ternmq.broker.handlers.send import SendHandlers
from ternmq.broker.holds import SCAN_S as HOLDS_SCAN_S
from ternmq.broker.intake import Intake
from ternmq.broker.locks import Locks
from ternmq.broker.offsets import Offsets
from ternmq.broker.registration import Identity, Registration
from ternmq.broker.retry import Retries
from ternmq.broker.stats import Stats
from ternmq.broker.topics import Topics
from ternmq.env import Env
from ternmq.errors import ConfigError, NetworkError
from ternmq.files import Chores, TableFile
from ternmq.net.dial import split_address
from ternmq.net.peer import Peer, format_address
from ternmq.net.server import Server, bind
from ternmq.store.config import FlushDiskType, StoreConfig
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
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


class Broker:
    """One broker; ``address`` is what clients dial, ``port`` the one it listens on.

    Entering raises ``NetworkError`` when the port is in use, ``StoreLocked`` when another process holds the directory,
    ``ConfigError`` for settings that cannot work here, and ``StoreError`` for files that cannot be read.
    """

    def __init__(self, config: BrokerConfig, store_config: StoreConfig, env: Env | None = None) -> None:
        self.config = config
        self._store_config = store_config
        self._env = env or Env()
        self._exit = AsyncExitStack()
        self.port = config.listen_port
        self.address = ""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._mount(stack)
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.__aexit__(kind, error, trace)
        log.info("broker stopped", extra={"broker": self.config.broker_name})

    async def _mount(self, stack: AsyncExitStack) -> None:
        config, env = self.config, self._env
        clock, loop = env.clock, asyncio.get_running_loop()

        # The port comes first: message ids carry it, and nothing is touched when another broker runs here already.
        bound = bind(config.bind_address, config.listen_port)
        stack.callback(bound.close)
        self.port = bound.getsockname()[1]
        ip = await asyncio.to_thread(own_ip, config)
        self.address = format_address(config.broker_ip1 or ip, self.port)
        store_host = pack_host(ip, self.port)

        # Files. Opening recovers, which may take long; nobody else knows the store yet.
        store = MessageStore(self._store_config, store_host=store_host, clock=clock)
        await asyncio.to_thread(store.open, loop.call_soon_threadsafe)
        stack.callback(store.close)
        chores = stack.enter_context(Chores())
        root = self._store_config.store_path_root_dir

        def table(name: str) -> TableFile:
            return TableFile(root / "config" / name, chores)

        topics = Topics(
            table("topics.json"),
            clock,
            broker_name=config.broker_name,
            cluster_name=config.broker_cluster_name,
            auto_create=config.auto_create_topic_enable,
            default_queues=config.default_topic_queue_nums,
            trace_topic=config.msg_trace_topic_name if config.trace_topic_enable else "",
        )
        groups = Groups(
            table("subscriptionGroup.json"),
            clock,
            broker_name=config.broker_name,
            auto_create=config.auto_create_subscription_group,
        )
        offsets = Offsets(table("consumerOffset.json"), clock)
        for loaded in (topics, groups, offsets):
            loaded.load()
        stack.callback(offsets.save)

        # What lives in memory only.
        clients = Clients(clock, silence_max_ms=config.channel_expired_timeout)
        locks, stats = Locks(clock), Stats(clock)
        registration = Registration(
            config.name_servers,
            Identity(
                config.broker_cluster_name,
                config.broker_name,
                config.broker_id,
                self.address,
                format_address(config.broker_ip1 or ip, self.port + 1),
                config.broker_permission,
            ),
            topics.body,
            period_ms=config.register_name_server_period,
            timeout_ms=config.register_broker_timeout_mills,
        )
        intake = Intake(
            store,
            waits_for_disk=self._store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH,
            timeout_ms=self._store_config.sync_flush_timeout,
            waiting_max=config.send_thread_pool_queue_capacity,
        )
        retries = Retries(intake=intake, topics=topics, groups=groups, record_at=store.record_at, choice=env.random)

        # Handlers.
        sends = SendHandlers(
            config=config,
            intake=intake,
            topics=topics,
            retries=retries,
            stats=stats,
            store_host=store_host,
            new_unique_key=UniqueIds(ip, os.getpid(), salt=env.random.getrandbits(32), clock=clock).next,
            choice=env.random,
        )
        pulls = PullHandlers(
            config=config,
            store=store,
            topics=topics,
            groups=groups,
            clients=clients,
            offsets=offsets,
            stats=stats,
        )
        members = ClientHandlers(
            clients=clients,
            groups=groups,
            topics=topics,
            locks=locks,
            broker_name=config.broker_name,
            find_route=registration.find_route,
            notify_members=config.notify_consumer_ids_changed_enable,
        )
        routes = {
            **sends.routes(),
            **pulls.routes(),
            **members.routes(),
            **QueryHandlers(store).routes(),
            **OffsetHandlers(store=store, offsets=offsets, topics=topics, groups=groups).routes(),
            **TopicHandlers(
                topics=topics,
                store=store,
                offsets=offsets,
                clients=clients,
                stats=stats,
                broker_name=config.broker_name,
                published=registration.published,
            ).routes(),
            **GroupHandlers(
                groups=groups,
                topics=topics,
                store=store,
                offsets=offsets,
                clients=clients,
                stats=stats,
                broker_name=config.broker_name,
            ).routes(),
            **ConnectionHandlers(clients=clients, clock=clock).routes(),
            **BrokerHandlers(
                stats=stats,
                store=store,
                topics=topics,
                lanes=lambda: server.lanes,
                settings=(config, self._store_config),
                store_path=root,
                clock=clock,
            ).routes(),
        }

        # Who tells whom.
        def topic_changed(topic: TopicConfig | None) -> None:
            sends.topic_changed(topic)
            registration.topic_changed(topic)

        def forget_silent_clients() -> None:
            for silent in clients.scan():
                silent.close()

        def connection_closed(peer: Peer) -> None:
            pulls.holds.drop(peer)
            clients.on_close(peer)

        topics.on_change = topic_changed
        clients.on_members = members.tell_members
        store.on_arrival = pulls.holds.arrived
        stack.callback(pulls.holds.close)
        stack.callback(intake.close)

        # The world.
        server = await stack.enter_async_context(Server.running(routes, flow.lanes(config), on_close=connection_closed))
        tasks = await stack.enter_async_context(Tasks())
        for seconds, work in (
            (config.flush_consumer_offset_interval / 1000, offsets.save),
            (CLIENT_SCAN_S, forget_silent_clients),
            (CLIENT_SCAN_S, locks.forget_expired),
            (HOLDS_SCAN_S, pulls.holds.scan),
            (SAMPLE_S, stats.sample),
        ):
            tasks.create_task(every(seconds, work))
        await server.serve(bound)
        await self._listen_vip(server)
        await stack.enter_async_context(registration)
        registered = await registration.settled()
        log.info(
            "broker ready",
            extra={"broker": config.broker_name, "address": self.address, "name_servers": registered},
        )

    async def _listen_vip(self, server: Server) -> None:
        port = self.config.listen_port - VIP_PORT_STEP
        if port <= 0:
            return
        try:
            await server.listen(self.config.bind_address, port, without=NOT_ON_VIP)
        except (NetworkError, ConfigError) as error:
            log.warning(
                "no VIP port; only clients with vipChannelEnabled (off by default since 4.9) need it",
                extra={"port": port, "why": str(error)},
            )


def own_ip(config: BrokerConfig) -> str:
    """The numeric address under which clients reach this broker. Blocks while names are looked up.

    Raises ``ConfigError`` when ``brokerIP1`` or a name server's address cannot be.
    """
    if config.broker_ip1:
        try:
            return str(socket.getaddrinfo(config.broker_ip1, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(
                f"brokerIP1 = {config.broker_ip1} is no address: {reason}; give one that clients can reach"
            ) from None
    for address in config.name_servers:
        host, port = split_address(address)
        try:
            family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                # Nothing is sent: connecting a datagram socket only asks the kernel which way it would go.
                probe.connect(target)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


async def every(seconds: float, work: Callable[[], None]) -> None:
    """Do something again and again; one failure is logged and does not end it."""
    while True:
        await asyncio.sleep(seconds)
        try:
            work()
        except Exception:
            log.exception("a chore failed; it will be tried again")
