"""A broker's registration with its name servers (A2, A3, A6), over real sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from ternmq.broker.registration import Identity, Registration
from ternmq.errors import ConfigError
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.net.gate import ANY_CALLER
from ternmq.net.lanes import LaneConfig
from ternmq.net.peer import Peer, Route
from ternmq.net.server import Server
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.routes import RegistrationBody as Said
from ternmq.wire.bodies.topics import DataVersion, TopicConfig, TopicTable
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests_admin import DataVersionReply, RegisterBrokerReply
from tests.net.address_servers import Listing, address_server

IDENTITY = Identity(
    cluster_name="DefaultCluster",
    broker_name="broker-a",
    broker_id=0,
    address="10.0.0.1:10911",
    ha_address="10.0.0.1:10912",
)


def own_identity() -> Identity:
    return IDENTITY


class Topics:
    """A broker's topics, as far as registration cares."""

    def __init__(self) -> None:
        self.table = {topic: TopicConfig(topic_name=topic) for topic in ("TBW102", "broker-a")}
        self.counter = 1

    def __call__(self) -> TopicTable:
        return TopicTable(
            data_version=DataVersion(counter=self.counter, timestamp=self.counter), topic_config_table=self.table
        )

    def create(self, topic: str) -> TopicConfig:
        self.counter += 1
        config = self.table[topic] = TopicConfig(topic_name=topic)
        return config


class Stub:
    """A name server that notes what it is told, and answers as it is set to."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self.tables: list[TopicTable] = []
        self.told = asyncio.Event()
        self.changed = False
        self.code = ResponseCode.SUCCESS

    def register(self, _peer: Peer, request: Request[Any]) -> Reply:
        self.tables.append(decode(request.body, Said).topic_config_serialize_wrapper)
        return self._note(request)

    def query(self, _peer: Peer, request: Request[Any]) -> Reply:
        self._note(request)
        return Reply(header=DataVersionReply(changed=self.changed))

    def unregister(self, _peer: Peer, request: Request[Any]) -> Reply:
        return self._note(request)

    def _note(self, request: Request[Any]) -> Reply:
        self.calls[request.code] += 1
        self.told.set()
        return Reply(self.code, header=RegisterBrokerReply(ha_address="10.0.0.9:10912"), remark="as set")

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            self.told.clear()
            await self.told.wait()

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[str]:
        routes: dict[int, Route] = {
            RequestCode.REGISTER_BROKER: Route(self.register, "broker", ANY_CALLER),
            RequestCode.QUERY_DATA_VERSION: Route(self.query, "broker", ANY_CALLER),
            RequestCode.UNREGISTER_BROKER: Route(self.unregister, "broker", ANY_CALLER),
        }
        async with Server.running(routes, [LaneConfig("broker")]) as server:
            yield f"127.0.0.1:{await server.listen('127.0.0.1', port)}"


@asynccontextmanager
async def name_server(port: int = 0) -> AsyncIterator[tuple[NameServer, str]]:
    async with NameServer(NamesrvConfig(listen_port=port, bind_address="127.0.0.1")) as running:
        yield running, f"127.0.0.1:{running.port}"


async def known(running: NameServer, topic: str) -> None:
    """Return once a name server has a route for a topic."""
    while running.registry.route(topic) is None:
        await asyncio.sleep(0.001)


async def test_a_broker_is_known_to_every_name_server_and_leaves_them_all() -> None:
    """A2, A3, A6."""
    topics = Topics()
    async with name_server() as (one, first), name_server() as (two, second):
        async with Registration([first, second], own_identity, topics) as registration:
            assert await registration.settled() == 2
            for running in (one, two):
                route = running.registry.route("TBW102")
                assert route is not None
                assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}

        assert one.registry.route("TBW102") is None
        assert two.registry.route("TBW102") is None


async def test_a_new_topic_is_published_at_once_and_alone() -> None:
    """A2: not with the next period."""
    topics, stub = Topics(), Stub()
    async with stub.running() as address, Registration([address], own_identity, topics) as registration:
        await registration.settled()

        registration.topic_changed(topics.create("orders"))
        registration.topic_changed(topics.create("%RETRY%g"))
        await registration.published()

        assert [set(table.topic_config_table) for table in stub.tables] == [
            {"TBW102", "broker-a"},
            {"orders", "%RETRY%g"},
        ]
        assert stub.tables[-1].data_version.counter == topics.counter


async def test_many_new_topics_are_few_registrations() -> None:
    """Issue 13, 5: what changes while a call is under way goes with the next one."""
    topics, stub = Topics(), Stub()
    async with stub.running() as address, Registration([address], own_identity, topics) as registration:
        await registration.settled()
        for number in range(1_500):
            registration.topic_changed(topics.create(f"t{number}"))
        await registration.published()

        assert 2 == stub.calls[RequestCode.REGISTER_BROKER]
        assert 1_500 == len(stub.tables[-1].topic_config_table)


async def test_after_a_deletion_the_whole_table_is_sent() -> None:
    """Issue 13, 15: for name servers with deleteTopicWithBrokerRegistration."""
    topics, stub = Topics(), Stub()
    async with stub.running() as address, Registration([address], own_identity, topics) as registration:
        await registration.settled()
        registration.topic_changed(topics.create("orders"))
        await registration.published()
        del topics.table["orders"]
        registration.topic_changed(None)
        await registration.published()

        assert {"TBW102", "broker-a"} == set(stub.tables[-1].topic_config_table)


async def test_the_table_is_sent_again_only_when_the_name_server_has_another_version() -> None:
    """A2: an unchanged version need not resend topics."""
    stub = Stub()
    async with (
        stub.running() as address,
        Registration([address], own_identity, Topics(), period_ms=10) as registration,
    ):
        await registration.settled()
        await stub.until(lambda: stub.calls[RequestCode.QUERY_DATA_VERSION] >= 3)
        assert stub.calls[RequestCode.REGISTER_BROKER] == 1

        stub.changed = True
        await stub.until(lambda: stub.calls[RequestCode.REGISTER_BROKER] >= 2)

        assert set(stub.tables[-1].topic_config_table) == {"TBW102", "broker-a"}


async def test_a_name_server_that_comes_back_is_told_everything(caplog: pytest.LogCaptureFixture) -> None:
    """A2, A6: and the trouble between is one line, not one for each attempt."""
    topics, first = Topics(), AsyncExitStack()
    running, address = await first.enter_async_context(name_server())
    async with Registration([address], own_identity, topics) as registration:
        await registration.settled()
        await first.aclose()
        registration.topic_changed(topics.create("orders"))
        await registration.published()  # no name server is there, so there is nothing to wait for

        async with name_server(running.port) as (again, _):
            await known(again, "orders")

            assert again.registry.route("TBW102") is not None
            (warning,) = [record.message for record in caplog.records if "cannot register" in record.message]
            assert warning.startswith(f"cannot register with the name server {address}: ")


async def test_a_name_server_that_does_not_answer_keeps_no_broker_waiting() -> None:
    """A2, A6: the broker starts, with those that do."""
    unused = "127.0.0.1:1"
    async with (
        name_server() as (running, address),
        Registration([unused, address], own_identity, Topics()) as registration,
    ):
        assert await registration.settled() == 1
        assert running.registry.route("TBW102") is not None


def test_a_name_server_that_is_no_address_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"invalid address 'localhost': expected host:port"):
        Registration(["localhost"], own_identity, Topics())


async def test_a_refused_registration_is_tried_again() -> None:
    """A2."""
    stub = Stub()
    stub.code = ResponseCode.SYSTEM_ERROR
    async with stub.running() as address, Registration([address], own_identity, Topics()) as registration:
        assert await registration.settled() == 0
        stub.code = ResponseCode.SUCCESS
        await stub.until(lambda: stub.calls[RequestCode.REGISTER_BROKER] >= 2)


async def test_a_broker_without_permission_to_write_offers_its_topics_to_read() -> None:
    """D1: brokerPermission=4 drains a broker."""
    identity = Identity("c", "broker-a", 0, "10.0.0.1:10911", "", permission=4)
    stub = Stub()
    async with stub.running() as address, Registration([address], lambda: identity, Topics()) as registration:
        await registration.settled()

    assert {config.perm for config in stub.tables[0].topic_config_table.values()} == {4}


async def test_what_the_name_server_says_of_the_master_is_passed_on() -> None:
    """A2: for slaves."""
    said: list[RegisterBrokerReply] = []
    stub = Stub()
    async with (
        stub.running() as address,
        Registration([address], own_identity, Topics(), on_master=said.append) as registration,
    ):
        await registration.settled()

    assert [reply.ha_address for reply in said] == ["10.0.0.9:10912"]


async def test_a_route_over_all_brokers_is_found_through_a_name_server() -> None:
    """G1: for brokers that divide the queues of a topic."""
    async with name_server() as (_, address), Registration([address], own_identity, Topics()) as registration:
        await registration.settled()

        found = await registration.find_route("TBW102")
        assert found is not None
        assert found.queue_datas[0].broker_name == "broker-a"
        assert await registration.find_route("nowhere") is None

    async with Registration([], own_identity, Topics()) as alone:
        assert await alone.settled() == 0
        assert await alone.find_route("TBW102") is None


async def test_a_broker_follows_the_list_of_an_address_server() -> None:
    """A6: it registers with those that are listed, and leaves the others."""
    topics = Topics()
    async with name_server() as (one, first), name_server() as (two, second), name_server() as (three, third):
        with address_server(Listing(f"{first};{second}")) as listing:
            async with Registration([listing.url], own_identity, topics, fetch_ms=20) as registration:
                assert await registration.settled() == 2
                listing.body = f"{second};{third}"
                await known(three, "TBW102")
                while one.registry.route("TBW102") is not None:
                    await asyncio.sleep(0.001)
                assert two.registry.route("TBW102") is not None
                assert (second, third) == registration.name_servers
                registration.topic_changed(topics.create("orders"))
                await registration.published()
                assert (None, True) == (one.registry.route("orders"), three.registry.route("orders") is not None)
        assert two.registry.route("TBW102") is None


async def test_a_broker_starts_without_its_address_server_and_finds_it_later() -> None:
    """A6."""
    async with name_server() as (one, first):
        with address_server(Listing("", status=503)) as listing:
            async with Registration([listing.url], own_identity, Topics()) as registration:
                assert 0 == await registration.settled()
                listing.body, listing.status = first, 200
                await known(one, "TBW102")
