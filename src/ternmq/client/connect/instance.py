"""The client instance: connections, routes and heartbeats that the clients of one loop share (A4, A6, D3).

``ClientInstance.shared(config)`` gives every producer and consumer with an equal config on the same loop the same
instance, and ends it when the last one has left. It owns all of its tasks and connections; after its block nothing of
it runs.

Heartbeats tell brokers which groups we belong to: producers to masters, consumers to slaves too. They go out every
30 s, at once when a group joins or leaves or a broker appears, and as the first call on every new connection to a
broker, as a broker forgets a client with its connection. One that broke is made anew after a moment, whether there is
something to ask or not: members divide their queues by what any broker knows of them, so all must know. Being first on
the wire is enough for TernMQ; RocketMQ handles calls of one connection in several threads, so a client that must
be known before its next call awaits ``heartbeat()``.

Brokers call back on the same connections. ``_requests`` is the table of what we answer, most of it for the consumers
(``answers``); a code that is not in it gets REQUEST_CODE_NOT_SUPPORTED from ``net.peer``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import cached_property
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from weakref import WeakKeyDictionary

from ternmq.client.config import DEFAULT_INSTANCE, ClientConfig
from ternmq.client.connect.connections import Connections
from ternmq.client.connect.name_servers import NameServers
from ternmq.client.connect.routes import MASTER_ID, Copy, Routes, TopicRoute
from ternmq.client.consume.answers import Answers, LocalMember
from ternmq.client.consume.decode import Inflater
from ternmq.client.send.checks import CheckDesk
from ternmq.client.send.lines import SendLines
from ternmq.client.send.replies import Requests
from ternmq.client.send.time_limits import TimeLimits
from ternmq.env import Env
from ternmq.errors import BrokerRefused, CallTimeout, ConfigError, NetworkError, NotRunning, TernError, refused
from ternmq.net.endpoint import dial_blocking, outward_ip, split_address
from ternmq.net.gate import ANY_CALLER
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer, Route, format_address
from ternmq.tasks import Tasks
from ternmq.types import Buffer
from ternmq.wire.bodies.clients import Heartbeat, ProducerData
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import JSON, RequestCode, ResponseCode
from ternmq.wire.header import Fields, Header, Response
from ternmq.wire.ids import ThreadsIds, UniqueIds
from ternmq.wire.requests import UnregisterClient
from ternmq.wire.requests_admin import RouteQuery

log = logging.getLogger(__name__)

T = TypeVar("T")
IdsT = TypeVar("IdsT", bound=UniqueIds)

_LANE: Final = "requests"
#: Requests that every name server knows, and no broker.
_OF_NAME_SERVERS: Final = frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO})
_BINARY_CODE_MAX: Final = 0x7FFF
_REFRESH_PAUSE_S: Final = 1.0
#: Until a connection that broke is made anew, if no call needed it before.
_REOPEN_PAUSE_S: Final = 1.0
#: Texts of brokers about our heartbeats that were logged; beyond this many, all may be logged anew.
_REMARKS_MAX: Final = 256
_REMARK_CHARACTERS_MAX: Final = 1_000


class ClientInstance:
    """Connections, routes and heartbeats of the clients on one loop. All methods belong to the loop's thread.

    Applications meet it through ``Producer`` and the consumers; on its own it serves tools::

        async with ClientInstance(ClientConfig("127.0.0.1:9876")) as instance:
            route = await instance.routes.of("orders")
            address = route.address("broker-a")
            response = await instance.ask(address, RequestCode.GET_MAX_OFFSET, QueueBounds(topic="orders", queue_id=0))
    """

    def __init__(self, config: ClientConfig, *, env: Env | None = None) -> None:
        self.config = config
        self.env = env if env is not None else _env()
        self.client_ip = config.client_ip or _outward_ip()
        self.client_id = _client_id(config, self.client_ip, self.env)
        #: Makes the unique ids of all messages sent from here (C10).
        self.unique_ids = self._ids(UniqueIds)
        self._tasks = Tasks()
        self._consumers: dict[str, LocalMember] = {}
        #: Decompresses what consumers and requests of this client receive.
        self.inflater = Inflater(config.decompressed_bytes_max)
        #: Requests that wait for a reply here (E7).
        self.requests = Requests(self.env.clock, self.inflater)
        #: What answers for transactions here (J2).
        self.checks = CheckDesk(self.inflater)
        self._requests: dict[int, Route] = {
            **Answers(self._consumers, self.inflater).routes(_LANE),
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: Route(self.requests.replied, _LANE, ANY_CALLER),
            RequestCode.CHECK_TRANSACTION_STATE: Route(self.checks.asked, _LANE, ANY_CALLER),
        }
        #: Producer group → how many producers of it are open.
        self._producers: dict[str, int] = {}
        self._remarks: set[str] = set()
        self._beat = asyncio.Event()
        self._routes_old = asyncio.Event()
        self._running = False
        #: How many users ``shared`` has given this instance to, and the consumer groups that they came for.
        self._users = 0
        self.claimed: set[str] = set()
        self.connections = Connections(
            self._requests,
            Lanes([LaneConfig(_LANE)]),
            self._tasks,
            timeout_ms=config.connect_timeout_ms,
            credentials=config.credentials(),
            tls_context=config.tls_context,
            on_open=self._introduce,
            on_lost=self._lost,
            is_wanted=self._is_named,
        )
        self.name_servers = NameServers(config.addresses, random=self.env.random)
        self.routes = Routes(self._ask_route, self._tasks)
        self.routes.on_change.append(self._route_changed)
        #: Of all sends.
        self.time_limits = TimeLimits()
        #: Connections of threads that send by themselves.
        self.lines = SendLines(self._dial_line, self.env.clock.monotonic)

    def __repr__(self) -> str:
        return f"<ClientInstance {self.client_id}>"

    @cached_property
    def threads_ids(self) -> ThreadsIds:
        """The same for messages that threads send by themselves. If two make it at once, either is good."""
        return self._ids(ThreadsIds)

    def _ids(self, kind: type[IdsT]) -> IdsT:
        return kind(self.client_ip, os.getpid(), salt=self.env.random.getrandbits(32), clock=self.env.clock)

    @classmethod
    @asynccontextmanager
    async def shared(
        cls, config: ClientConfig, *, env: Env | None = None, consumer_group: str = ""
    ) -> AsyncIterator[ClientInstance]:
        """The instance of this loop for ``config``, started if there is none, ended when its last user leaves.

        Two consumers of one group need two client ids, or the group would take them for one: give ``consumer_group``
        and the instance is one that has no consumer of that group yet. Raises ``ConfigError`` when a fixed
        ``instance_name`` leaves no second id.
        """
        env = env if env is not None else _env()
        instances = _instances.setdefault(asyncio.get_running_loop(), {}).setdefault((config, env), [])
        instance = next((one for one in instances if not consumer_group or consumer_group not in one.claimed), None)
        if instance is None:
            if instances and config.instance_name != DEFAULT_INSTANCE:
                raise ConfigError(
                    f"two consumers of group {consumer_group!r} have the instance_name {config.instance_name!r}; "
                    "give them different names, or none"
                )
            instance = cls(config, env=env)
            instance._start()
            instances.append(instance)
        instance._users += 1
        if consumer_group:
            instance.claimed.add(consumer_group)
        try:
            yield instance
        finally:
            instance._users -= 1
            instance.claimed.discard(consumer_group)
            if not instance._users:
                instances.remove(instance)
                await instance._stop()

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    def _start(self) -> None:
        self._running = True
        self._tasks.create_task(self._beat_forever(), name="heartbeats")
        self._tasks.create_task(self._refresh_routes_forever(), name="routes")
        self._tasks.create_task(self.connections.watch(), name="connections")
        if self.name_servers.address_server is not None:
            self._tasks.create_task(self.name_servers.address_server.keep(), name="address server")

    async def _stop(self) -> None:
        self._running = False
        self.lines.close()
        await self._tasks.close()
        await self.connections.close()
        self.time_limits.close()

    # --- Calls of ours ---------------------------------------------------------------------------------------

    async def call(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: Buffer = b"",
        *,
        timeout_ms: int | None = None,
        more_fields: Fields | None = None,
    ) -> Response:
        """Call the program at ``address`` and return its response, whatever its code.

        ``timeout_ms`` (default: ``call_timeout_ms``) covers the connecting too. Raises ``NetworkError``,
        ``CallTimeout``, ``TooManyCalls``, ``NotRunning``.
        """
        peer, time_left_ms = await self._peer(address, timeout_ms)
        return await peer.call(
            code, header, body, timeout_ms=time_left_ms, form=self.form_of(code), more_fields=more_fields
        )

    async def call_held(
        self, read: Callable[[Response], T], address: str, code: int, header: Header, *, timeout_ms: int
    ) -> T:
        """As ``call``, for a request that the program may hold until it has something to say: ``read`` gets the
        response as soon as it comes, and the caller what it returns (``net.callers.AwaitedResult``)."""
        peer, time_left_ms = await self._peer(address, timeout_ms)
        return await peer.call_held(read, code, header, timeout_ms=time_left_ms, form=self.form_of(code))

    async def _peer(self, address: str, timeout_ms: int | None) -> tuple[Peer, int]:
        """The connection to a program, and how many of ``timeout_ms`` are left once it is open."""
        self._check_running()
        time_left_ms = timeout_ms if timeout_ms is not None else self.config.call_timeout_ms
        peer = self.connections.get(address)
        if peer is not None:
            return peer, time_left_ms
        started = self.env.clock.monotonic()
        try:
            async with asyncio.timeout(time_left_ms / 1000):
                peer = await self.connections.to(address)
        except TimeoutError as error:
            if isinstance(error, NetworkError):
                raise
            raise CallTimeout(f"cannot connect to {address} within {time_left_ms} ms", address=address) from None
        return peer, max(1, time_left_ms - int((self.env.clock.monotonic() - started) * 1000))

    async def ask(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: Buffer = b"",
        *,
        timeout_ms: int | None = None,
        more_fields: Fields | None = None,
    ) -> Response:
        """As ``call``; any code but SUCCESS becomes the ``BrokerRefused`` of that code."""
        response = await self.call(address, code, header, body, timeout_ms=timeout_ms, more_fields=more_fields)
        if response.code != ResponseCode.SUCCESS:
            raise refused(response.code, f"{address} refused: {response.remark}", broker=address)
        return response

    async def call_oneway(self, address: str, code: int, header: Header | None = None, body: Buffer = b"") -> None:
        """Send a request without an answer; waits only for the connection."""
        self._check_running()
        peer = await self.connections.to(address)
        peer.call_oneway(code, header, body, form=self.form_of(code))

    async def call_broker(
        self,
        broker_name: str,
        code: int,
        header: Header | None = None,
        body: Buffer = b"",
        *,
        broker_id: int = MASTER_ID,
        timeout_ms: int | None = None,
    ) -> Response:
        """As ``call``, to a broker by its name; ``NetworkError`` when no route in use names it."""
        return await self.call(
            self.broker_address(broker_name, broker_id=broker_id), code, header, body, timeout_ms=timeout_ms
        )

    async def call_name_server(
        self, code: int, header: Header | None = None, body: Buffer = b"", *, timeout_ms: int | None = None
    ) -> Response:
        """Call the name server in use, or the next one that answers (A6). Raises ``NameServersUnreachable``, and
        ``RequestNotSupported`` for what is no name server."""
        asked = ""

        async def call(address: str) -> Response:
            nonlocal asked
            asked = address
            return await self.call(address, code, header, body, timeout_ms=timeout_ms)

        response = await self.name_servers.ask(call)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and code in _OF_NAME_SERVERS:
            raise refused(
                response.code,
                f"{asked} is no name server, it may be a broker ({(response.remark or '').strip()}); give the address "
                "of a name server: its port is 9876 if it was not changed",
                broker=asked,
            )
        return response

    def broker_address(self, broker_name: str, *, broker_id: int = MASTER_ID) -> str:
        """The address of a broker as the routes in use know it; raises ``NetworkError`` if they do not."""
        address = self.routes.address(broker_name, broker_id)
        if address is None:
            raise NetworkError(
                f"no route contains broker {broker_name!r} with id {broker_id}; it is down or not registered, "
                "see `tern topic route`",
                address=broker_name,
            )
        return address

    def copy_of(self, broker_name: str, *, broker_id: int = MASTER_ID) -> Copy:
        """Where to read from a broker: the copy with this id if there is one, else the master, else a slave. One whose
        machine is silent comes last: name servers name it for two minutes more.

        Raises ``NetworkError`` if no route in use has a copy of it.
        """
        copy = self.routes.copy(broker_name, broker_id, silent=self.connections.silent)
        if copy is None:
            raise NetworkError(
                f"no route contains broker {broker_name!r}; it is down or not registered, see `tern topic route`",
                address=broker_name,
            )
        return copy

    def fast_address(self, address: str) -> str:
        """The address for sends: with ``vip_channel`` the broker's second port, which serves no pulls."""
        if not self.config.vip_channel:
            return address
        host, port = split_address(address)
        return format_address(host, port - 2)

    def _is_named(self, address: str) -> bool:
        """Whether a route names this address, or the broker whose second port it is; no more when the client ends."""
        named = self.routes.addresses(masters_only=False) if self._running else ()
        if address in named or not self.config.vip_channel:
            return address in named
        host, port = split_address(address)
        return format_address(host, port + 2) in named

    def form_of(self, code: int) -> int:
        """The header form for a call: as configured, but JSON for codes that the binary form cannot carry."""
        return self.config.form if code <= _BINARY_CODE_MAX else JSON

    def refresh_routes_soon(self) -> None:
        """A broker does not answer, so the routes may be old: ask for them before their time."""
        self._routes_old.set()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run ``work`` in a task that ends with this client at the latest. Raises ``NotRunning``."""
        self._check_running()
        return self._tasks.create_task(work())

    def _check_running(self) -> None:
        if not self._running:
            raise NotRunning("this client is closed; use it inside its `async with` block")

    async def _ask_route(self, topic: str) -> Response:
        return await self.call_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteQuery(topic=topic))

    # --- Members and heartbeats ------------------------------------------------------------------------------

    def register_producer(self, group: str) -> None:
        """A producer of ``group`` is open from now on; brokers hear of it at once."""
        self._producers[group] = self._producers.get(group, 0) + 1
        self._beat.set()

    async def unregister_producer(self, group: str) -> None:
        """It is closed; when it was the last of its group here, brokers are told."""
        self._producers[group] -= 1
        if not self._producers[group]:
            del self._producers[group]
            await self._unregister(UnregisterClient(client_id=self.client_id, producer_group=group), masters_only=True)

    def register_consumer(self, group: str, member: LocalMember) -> None:
        """``member`` is in heartbeats from now on; ``await heartbeat()`` before its first pull."""
        if group in self._consumers:
            raise ConfigError(
                f"client {self.client_id} already has a consumer of group {group!r}; give each consumer a "
                "different instance_name"
            )
        self._consumers[group] = member
        self._beat.set()

    async def unregister_consumer(self, group: str) -> None:
        """The member has left: brokers are told, and tell the others of its group to rebalance."""
        if self._consumers.pop(group, None) is not None:
            await self._unregister(UnregisterClient(client_id=self.client_id, consumer_group=group), masters_only=False)

    def heartbeat_soon(self) -> None:
        """Something that heartbeats carry has changed; the heartbeat loop sends one at once."""
        self._beat.set()

    async def heartbeat(self) -> None:
        """Send a heartbeat to every broker of the routes in use and wait for the answers; failures are logged."""
        if self._consumers or self._producers:
            addresses = list(self.routes.addresses(masters_only=not self._consumers))
            body = self._heartbeat_body()
            await asyncio.gather(*(self._heartbeat_to(address, body) for address in addresses))

    async def _heartbeat_to(self, address: str, body: bytes) -> None:
        try:
            response = await self.ask(address, RequestCode.HEART_BEAT, None, body)
            self._remarked(address, response)
        except BrokerRefused as error:
            log.warning("broker %s refused the heartbeat: %s", address, error)
        except TernError as error:
            # A broker that is down leaves the routes within two minutes; until then this is no news.
            log.info("cannot send a heartbeat to broker %s: %s", address, error)

    def _heartbeat_body(self) -> bytes:
        return encode(
            Heartbeat(
                client_id=self.client_id,
                producer_data_set=[ProducerData(group_name=group) for group in self._producers],
                consumer_data_set=[member.heartbeat_data() for member in self._consumers.values()],
            )
        )

    def _introduce(self, address: str, peer: Peer) -> None:
        """First on a new connection: a heartbeat. Its answer is not awaited."""
        if self._is_known_to(address):
            code = RequestCode.HEART_BEAT
            answer = peer.start_call(code, None, self._heartbeat_body(), form=self.form_of(code))
            answer.add_done_callback(asyncio.Future.exception)

    def _remarked(self, address: str, response: Response) -> None:
        """Log what a broker says of a heartbeat that it took: its members do not agree, say. Once for each text."""
        remark = (response.remark or "")[:_REMARK_CHARACTERS_MAX]
        if remark and remark not in self._remarks:
            if len(self._remarks) >= _REMARKS_MAX:
                self._remarks.clear()
            self._remarks.add(remark)
            log.warning("broker %s accepted the heartbeat of %s with a warning: %s", address, self.client_id, remark)

    def _is_known_to(self, address: str) -> bool:
        """Whether a broker there hears our heartbeats."""
        is_member = bool(self._consumers or self._producers)
        return is_member and address in self.routes.addresses(masters_only=not self._consumers)

    def _dial_line(self, address: str) -> socket.socket:
        return dial_blocking(
            address, self.config.tls_context(), timeout_ms=self.config.connect_timeout_ms, is_watched=True
        )

    def _lost(self, address: str) -> None:
        self.lines.drop(address)
        if self._running and self._is_known_to(address):
            self._tasks.create_task(self._reopen(address), name=f"connect to {address}")

    async def _reopen(self, address: str) -> None:
        await asyncio.sleep(_REOPEN_PAUSE_S)
        # One that is down is found again by the heartbeats, or leaves the routes.
        if self._is_known_to(address):
            with contextlib.suppress(TernError):
                await self.connections.to(address)

    async def _unregister(self, header: UnregisterClient, *, masters_only: bool) -> None:
        # Only where a connection is open: a broker without one has forgotten us already.
        peers = filter(None, map(self.connections.get, self.routes.addresses(masters_only=masters_only)))
        code = RequestCode.UNREGISTER_CLIENT
        calls = [
            peer.call(code, header, timeout_ms=self.config.call_timeout_ms, form=self.form_of(code)) for peer in peers
        ]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException):
                log.info("cannot unregister this client from a broker: %s", result)

    def _route_changed(self, _: TopicRoute) -> None:
        # There may be a broker in it that has not heard of us.
        self._beat.set()

    async def _beat_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.heartbeat_interval_ms / 1000):
                    await self._beat.wait()
            self._beat.clear()
            await self.heartbeat()
            self.lines.tidy()

    async def _refresh_routes_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.poll_name_server_interval_ms / 1000):
                    await self._routes_old.wait()
            # Failures come in crowds; the name server is asked once a second at most.
            await asyncio.sleep(_REFRESH_PAUSE_S if self._routes_old.is_set() else 0)
            self._routes_old.clear()
            await self.routes.refresh_all()


#: Shared instances, by loop, then by config and seams.
_instances: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[ClientConfig, Env], list[ClientInstance]]] = (
    WeakKeyDictionary()
)

_envs: list[Env] = []


def _env() -> Env:
    """The one ``Env`` of clients that were given none; made when first needed."""
    if not _envs:
        _envs.append(Env())
    return _envs[0]


def _client_id(config: ClientConfig, client_ip: str, env: Env) -> str:
    """``ip@instance[@unit]``; ids sort as text, and their order decides which member gets which queue (G1)."""
    name = config.instance_name
    if name == DEFAULT_INSTANCE:
        # Java's pid#nanoTime. Several instances of one process start within a millisecond, so chance fills the rest.
        nanos = env.clock.now_ms() * 1_000_000 + env.random.randrange(1_000_000)
        name = f"{os.getpid()}#{nanos}"
    return "@".join(filter(None, (client_ip, name, config.unit_name)))


def _outward_ip() -> str:
    """The address of the interface that leads outside."""
    try:
        return outward_ip("192.0.2.1", 9)  # TEST-NET-1 of RFC 5737: routed like any address, and not in use
    except OSError:
        return "127.0.0.1"
