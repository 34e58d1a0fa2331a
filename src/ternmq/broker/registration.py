"""Registration with the name servers (A2): each of them, at the start, periodically, and at once on a topic change.

Name servers share nothing, so each gets a task of its own that holds one connection:

- After connecting it registers with the whole topic table. A name server forgets a broker whose connection closes, so
  a new connection always begins with everything.
- Topics created or changed are sent at once, without the others (*incrementally*; name servers merge): a consumer's
  retry topic or the topic of a first send must be found without waiting for the next period. What changes while a call
  is under way goes with the next one. After a deletion the whole table is sent, for name servers that take topics back
  then (``deleteTopicWithBrokerRegistration``).
- Every period it asks QUERY_DATA_VERSION, which counts as a sign of life, and sends the table again only if the name
  server has another version of it.
- Any failure drops the connection, so that what a name server knows is never guessed. It comes back with short
  pauses: a name server that returns has this broker within a second. Trouble is logged when it begins and when it ends.
- If the name servers come from an HTTP address server (``net.address_server``), those that it lists no more are told
  that this broker leaves them.

On leaving the block every name server is told (UNREGISTER_BROKER), so clients do not run into a closed port.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import msgspec

from ternmq.broker.config import READ, WRITE
from ternmq.errors import ConfigError, NetworkError, TernError, refused
from ternmq.net.address_server import INTERVAL_MS, AddressServer, is_url
from ternmq.net.dial import connect
from ternmq.net.endpoint import split_address
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer
from ternmq.net.tls import TlsConfig
from ternmq.tasks import Tasks
from ternmq.wire.auth import Credentials
from ternmq.wire.bodies import routes
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.routes import BrokerData, ClusterInfo, TopicRouteBody
from ternmq.wire.bodies.topics import TopicConfig, TopicTable
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.requests_admin import (
    BrokerIdentity,
    DataVersionReply,
    RegisterBroker,
    RegisterBrokerReply,
    RouteQuery,
)

log = logging.getLogger(__name__)

#: Pauses between attempts: the first short, as most trouble is a restart; the others so that a name server that comes
#: back is seen within a second.
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 0.8
CONNECT_TIMEOUT_MS: Final = 3_000
#: A broker that stops does not wait longer than this for a name server that does not answer.
UNREGISTER_TIMEOUT_MS: Final = 1_000
#: An administrator's call waits this long for name servers to know a new topic.
PUBLISH_WAIT_S: Final = 3.0


@dataclass(slots=True, frozen=True)
class Identity:
    """What clients see of this broker in routes."""

    cluster_name: str
    broker_name: str
    broker_id: int
    #: ``ip:port`` that clients dial, and that of the log stream for slaves.
    address: str
    ha_address: str
    #: What the whole broker allows; narrows the permissions of each topic.
    permission: int = READ | WRITE


class Registration:
    """``async with Registration(…) as registration``; ``await registration.settled()`` for the first attempts.

    ``topics`` gives the whole table of the moment; call ``topic_changed`` with each change of it. ``identity`` gives
    the identity of the moment; call ``identity_changed`` when it has changed. ``may_register`` is told, before each
    registration and in each period, which brokers of this name a name server knows; it raises ``TernError`` if this
    broker is not to be registered now. ``name_servers`` may be the URL of an address server, which is asked every
    ``fetch_ms``. Raises ``ConfigError`` for a name server that is no ``host:port``.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        identity: Callable[[], Identity],
        topics: Callable[[], TopicTable],
        *,
        period_ms: int = 30_000,
        timeout_ms: int = 24_000,
        fetch_ms: int = INTERVAL_MS,
        on_master: Callable[[RegisterBrokerReply], None] | None = None,
        may_register: Callable[[BrokerData | None], Awaitable[None]] | None = None,
        credentials: Credentials | None = None,
        tls: TlsConfig | None = None,
    ) -> None:
        self._address_server: AddressServer | None = None
        if any(map(is_url, name_servers)):
            if len(name_servers) > 1:
                raise ConfigError("invalid namesrvAddr: the URL of an address server must stand alone")
            self._address_server = AddressServer(name_servers[0], self._listed)
            name_servers = ()
        for address in name_servers:
            split_address(address)
        self._fetch_ms = fetch_ms
        self._identity = identity
        self._topics = topics
        self.apply(period_ms=period_ms, timeout_ms=timeout_ms)
        self._on_master = on_master
        self._may_register = may_register
        self._credentials = credentials
        self._tls = tls
        self._links = [_Link(address) for address in dict.fromkeys(name_servers)]
        self._tasks = Tasks()
        self._lanes = Lanes([LaneConfig("client")])

    def apply(self, *, period_ms: int, timeout_ms: int) -> None:
        """Set how often the name servers are asked, and how long they may take; from the next call on."""
        self._period_s = period_ms / 1000
        self._timeout_ms = timeout_ms

    async def __aenter__(self) -> Self:
        for link in self._links:
            self._start(link)
        if self._address_server is not None:
            self._tasks.create_task(self._address_server.keep(self._fetch_ms), name="address server")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*map(self._unregister, self._links))
        await self._tasks.close()

    async def settled(self) -> int:
        """Wait until each name server has been tried once; returns how many know this broker now."""
        if self._address_server is not None:
            await self._address_server.tried.wait()
        for link in self._links:
            await link.tried.wait()
        return self.registered

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The name servers of the moment."""
        return tuple(link.address for link in self._links)

    async def announce(self) -> None:
        """Tell all name servers what this broker is now; returns as ``published``."""
        self.identity_changed()
        await self.published()

    async def published(self) -> None:
        """Wait until the name servers that answer know all topics of this moment; not for long, if one is slow."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PUBLISH_WAIT_S):
                for link in self._links:
                    if link.peer is not None:
                        await link.told.wait()

    async def find_route(self, topic: str) -> TopicRouteBody | None:
        """The route of a topic over all brokers, from a name server that answers; None if none does or knows it."""
        for link in self._links:
            if link.peer is not None:
                with contextlib.suppress(TernError):
                    response = await link.peer.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteQuery(topic=topic))
                    return decode(response.body, TopicRouteBody) if response.code == ResponseCode.SUCCESS else None
        return None

    async def members(self) -> dict[int, list[str]] | None:
        """By id, the addresses of the brokers of this name; None if no name server answers."""
        found: dict[int, list[str]] = {}
        answers = 0
        for link in self._links:
            if link.peer is not None:
                with contextlib.suppress(TernError):
                    known = await self._known(link.peer)
                    answers += 1
                    for broker_id, address in known.broker_addrs.items() if known is not None else ():
                        found.setdefault(broker_id, []).append(address)
        return found if answers else None

    @property
    def registered(self) -> int:
        """How many name servers know this broker."""
        return sum(link.peer is not None for link in self._links)

    def topic_changed(self, config: TopicConfig | None) -> None:
        """Send a topic to all name servers at once; None: a topic was deleted, and the whole table is sent.

        Most name servers merge what brokers send and never take a topic away because a broker stops naming it;
        deleting there is a call of its own, which tools make.
        """
        for link in self._links:
            if config is not None:
                link.changed[config.topic_name] = config
            else:
                link.is_outdated = True
            link.told.clear()
            link.wake.set()

    def identity_changed(self) -> None:
        """Register again with all topics: the broker has another id, or other permissions."""
        for link in self._links:
            link.is_outdated = True
            link.told.clear()
            link.wake.set()

    # --- One name server ---------------------------------------------------------------------------------------

    def _listed(self, addresses: tuple[str, ...]) -> None:
        """The address server has another list."""
        gone = [link for link in self._links if link.address not in addresses]
        known = {link.address: link for link in self._links}
        self._links = [known.get(address) or _Link(address) for address in addresses]
        for link in gone:
            self._tasks.create_task(self._leave(link), name=f"leaving {link.address}")
        for link in self._links:
            if link.address not in known:
                self._start(link)

    def _start(self, link: _Link) -> None:
        link.task = self._tasks.create_task(self._keep(link), name=f"registration with {link.address}")

    async def _leave(self, link: _Link) -> None:
        await self._unregister(link)
        if link.task is not None:
            link.task.cancel()
        link.tried.set()
        link.told.set()

    async def _keep(self, link: _Link) -> None:
        pause_s = RETRY_FIRST_S
        while True:
            try:
                peer = await connect(
                    link.address,
                    routes={},
                    lanes=self._lanes,
                    tasks=self._tasks,
                    on_close=lambda _: link.wake.set(),
                    credentials=self._credentials,
                    # Made anew each time: certificates may have changed.
                    tls=self._tls.context() if self._tls is not None else None,
                    timeout_ms=CONNECT_TIMEOUT_MS,
                )
                try:
                    await self._register_all(link, peer)
                    pause_s = RETRY_FIRST_S
                    await self._stay_registered(link, peer)
                finally:
                    link.peer = None
                    peer.close()
            except TernError as error:
                if not link.trouble:
                    log.warning(
                        "cannot register with the name server %s: %s; retrying until it answers", link.address, error
                    )
                link.trouble = True
            link.tried.set()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    async def _stay_registered(self, link: _Link, peer: Peer) -> None:
        """Serve one connection; returns when the other side closed it, raises when a call fails."""
        while True:
            try:
                async with asyncio.timeout(self._period_s):
                    await link.wake.wait()
            except TimeoutError:
                pass
            if peer.closed.is_set():
                raise NetworkError(f"{link.address} closed the connection", address=link.address)
            if link.is_outdated:
                await self._register_all(link, peer)
            elif changed := link.take_changed():
                await self._register(peer, changed, only_changes=True)
                link.is_told()
            else:
                await self._check_may_register(peer)
                if await self._is_outdated(peer):
                    await self._register_all(link, peer)

    async def _check_may_register(self, peer: Peer) -> None:
        if self._may_register is not None:
            await self._may_register(await self._known(peer))

    async def _known(self, peer: Peer) -> BrokerData | None:
        """The brokers of this name that a name server knows."""
        response = await peer.call(RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms=self._timeout_ms)
        if response.code != ResponseCode.SUCCESS:
            return None
        return decode(response.body, ClusterInfo).broker_addr_table.get(self._identity().broker_name)

    async def _register_all(self, link: _Link, peer: Peer) -> None:
        await self._check_may_register(peer)
        link.take_changed()
        await self._register(peer, self._topics().topic_config_table.values())
        if link.peer is None:
            log.info("registered with the name server %s", link.address)
        link.peer = peer
        link.trouble = False
        link.is_told()
        link.tried.set()

    async def _register(self, peer: Peer, topics: Iterable[TopicConfig], *, only_changes: bool = False) -> None:
        identity = self._identity()
        table = TopicTable(
            data_version=self._topics().data_version,
            topic_config_table={config.topic_name: self._narrowed(config) for config in topics},
        )
        body = encode(routes.RegistrationBody(topic_config_serialize_wrapper=table))
        header = RegisterBroker(
            broker_name=identity.broker_name,
            broker_address=identity.address,
            cluster_name=identity.cluster_name,
            ha_address=identity.ha_address,
            broker_id=identity.broker_id,
            body_crc32=routes.crc_of(body),
            only_changes=only_changes or None,
        )
        response = await peer.call(RequestCode.REGISTER_BROKER, header, body, timeout_ms=self._timeout_ms)
        _check(response, peer)
        if self._on_master is not None:
            self._on_master(response.read(RegisterBrokerReply))

    async def _is_outdated(self, peer: Peer) -> bool:
        """Tell the name server that we live; True if it has another version of our topics."""
        response = await peer.call(
            RequestCode.QUERY_DATA_VERSION,
            self._who(),
            encode(self._topics().data_version),
            timeout_ms=self._timeout_ms,
        )
        _check(response, peer)
        return response.read(DataVersionReply).changed

    async def _unregister(self, link: _Link) -> None:
        if link.peer is not None:
            try:
                await link.peer.call(RequestCode.UNREGISTER_BROKER, self._who(), timeout_ms=UNREGISTER_TIMEOUT_MS)
            except TernError as error:
                # It drops us anyway, with the connection.
                log.info("cannot unregister from the name server %s: %s", link.address, error)

    def _who(self) -> BrokerIdentity:
        identity = self._identity()
        return BrokerIdentity(
            broker_name=identity.broker_name,
            broker_address=identity.address,
            cluster_name=identity.cluster_name,
            broker_id=identity.broker_id,
        )

    def _narrowed(self, config: TopicConfig) -> TopicConfig:
        """The topic as clients may use it on this broker: one without permission to write takes no sends at all."""
        permission = self._identity().permission
        if permission & (READ | WRITE) == READ | WRITE:
            return config
        return msgspec.structs.replace(config, perm=config.perm & permission)


class _Link:
    """What one name server knows, and what it must be told."""

    def __init__(self, address: str) -> None:
        self.address = address
        #: The connection over which this broker is registered.
        self.peer: Peer | None = None
        self.task: asyncio.Task[None] | None = None
        self.trouble = False
        self.tried = asyncio.Event()
        #: Set when a topic changed or the connection closed.
        self.wake = asyncio.Event()
        self.changed: dict[str, TopicConfig] = {}
        #: The whole table must be sent: a topic is gone, or the identity has changed.
        self.is_outdated = False
        #: Set while the name server knows all that ``changed`` ever had.
        self.told = asyncio.Event()

    def is_told(self) -> None:
        """What was taken has arrived; more may have changed since."""
        if not self.changed and not self.is_outdated:
            self.told.set()

    def take_changed(self) -> list[TopicConfig]:
        self.wake.clear()
        self.is_outdated = False
        changed = list(self.changed.values())
        self.changed.clear()
        return changed


def _check(response: Response, peer: Peer) -> None:
    if response.code != ResponseCode.SUCCESS:
        raise refused(response.code, f"{peer.address} refused: {response.remark}", broker=peer.address)
