"""From a name server's answer to queues, and when it is asked (A4, D1, E3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ternmq.client.connect.routes import BROKERS_MAX, QUEUES_MAX, Routes, TopicRoute, build_route
from ternmq.errors import BrokerRefused, NetworkError, RemoteProtocolError, RouteMissing
from ternmq.message import MessageQueue
from ternmq.tasks import Tasks
from ternmq.wire.bodies import routes as bodies
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.codes import ResponseCode
from ternmq.wire.header import Response


def data_of(*brokers: str, perm: int = 6, queues: int = 2, order: str | None = None) -> bodies.TopicRouteBody:
    return bodies.TopicRouteBody(
        broker_datas=[bodies.BrokerData(broker_name=name, broker_addrs={0: f"{name}:10911"}) for name in brokers],
        queue_datas=[
            bodies.QueueData(broker_name=name, perm=perm, read_queue_nums=queues + 1, write_queue_nums=queues)
            for name in brokers
        ],
        order_topic_conf=order,
    )


def ids(queues: tuple[MessageQueue, ...]) -> list[str]:
    return [f"{queue.broker_name}{queue.queue_id}" for queue in queues]


# --- The pure part ---------------------------------------------------------------------------------------------


def test_queues_come_by_broker_name_and_number_whatever_the_answers_order() -> None:
    """E5: one key must find one queue from every client."""
    route = build_route("orders", data_of("b", "a"))
    assert ["a0", "a1", "b0", "b1"] == ids(route.to_write)
    assert ["a0", "a1", "a2", "b0", "b1", "b2"] == ids(route.to_read)
    assert {"orders"} == {queue.topic for queue in route.to_read}


@pytest.mark.parametrize(("perm", "writable", "readable"), [(6, 2, 3), (4, 0, 3), (2, 2, 0), (0, 0, 0), (7, 2, 3)])
def test_permissions_decide_who_may_use_a_queue(perm: int, writable: int, readable: int) -> None:
    """D1."""
    route = build_route("orders", data_of("a", perm=perm))
    assert (writable, readable) == (len(route.to_write), len(route.to_read))


def test_a_broker_without_a_master_can_be_read_only() -> None:
    """A3: master down, a slave stays readable."""
    data = bodies.TopicRouteBody(
        broker_datas=[bodies.BrokerData(broker_name="a", broker_addrs={1: "slave:10911"})],
        queue_datas=data_of("a").queue_datas,
    )
    route = build_route("orders", data)
    assert ([], ["a0", "a1", "a2"]) == (ids(route.to_write), ids(route.to_read))
    assert (None, "slave:10911") == (route.address("a"), route.address("a", 1))


def test_queues_of_a_broker_without_addresses_do_not_exist() -> None:
    data = bodies.TopicRouteBody(broker_datas=[], queue_datas=data_of("a").queue_datas)
    assert () == build_route("orders", data).to_read


@pytest.mark.parametrize("queues", [2**31 - 1, 10**30, QUEUES_MAX])
def test_an_absurd_number_of_queues_is_not_expanded(queues: int) -> None:
    """Issue 13, point 7: it takes nothing away from other brokers, and the route says what is missing."""
    data = bodies.TopicRouteBody(
        broker_datas=data_of("a", "b").broker_datas,
        queue_datas=[
            bodies.QueueData(broker_name="a", perm=6, read_queue_nums=queues, write_queue_nums=queues),
            bodies.QueueData(broker_name="b", perm=6, read_queue_nums=3, write_queue_nums=2),
        ],
    )
    route = build_route("orders", data)
    assert (QUEUES_MAX, QUEUES_MAX) == (len(route.to_read), len(route.to_write))
    assert ["b0", "b1", "b2"] == ids(route.to_read[-3:])
    assert {"a": queues} == route.cut


def test_numbers_below_zero_and_names_that_come_twice_make_no_queues() -> None:
    """Issue 13, point 7."""
    data = data_of("a", "a")
    assert ["a0", "a1", "a2"] == ids(build_route("orders", data).to_read)
    route = build_route("orders", data_of("a", queues=-5))
    assert ((), (), {"a": 0}) == (route.to_read, route.to_write, route.write_queues)


@pytest.mark.parametrize("count", ["99999999999", "9" * 5_000])
def test_an_absurd_number_in_an_ordered_topics_list_is_skipped(count: str) -> None:
    """Issue 13, point 7."""
    route = build_route("orders", data_of("a", order=f"a:{count};b:2"))
    assert ["b0", "b1"] == ids(route.to_write)
    route = build_route("orders", data_of("a", order="a:2147483647;b:2"))
    assert (QUEUES_MAX, {"a": 2147483647}) == (len(route.to_write), route.cut)


def test_a_route_of_too_many_brokers_is_refused() -> None:
    """Issue 13, point 7: each of them would get a connection and heartbeats."""
    data = data_of(*(f"broker-{number}" for number in range(BROKERS_MAX + 1)))
    with pytest.raises(RemoteProtocolError, match="'orders' names 4097 brokers, more than 4096"):
        build_route("orders", data)
    addresses = {number: f"10.0.0.1:{number + 1}" for number in range(BROKERS_MAX + 1)}
    one = bodies.TopicRouteBody(broker_datas=[bodies.BrokerData(broker_name="broker-a", broker_addrs=addresses)])
    with pytest.raises(RemoteProtocolError, match="'orders' names 4097 brokers, more than 4096"):
        build_route("orders", one)


def test_an_ordered_topics_list_stands_above_what_brokers_report() -> None:
    """A5: no key moves to another queue while a broker is down."""
    route = build_route("orders", data_of("a", order="a:1;b:2;nonsense;c:x"))
    assert ["a0", "b0", "b1"] == ids(route.to_write)


def test_a_default_route_is_capped_and_marked() -> None:
    """D1: TBW102 has 8 queues, a producer asks for 4."""
    route = build_route("new", data_of("a", queues=8), queues_max=4)
    assert ["a0", "a1", "a2", "a3"] == ids(route.to_write)
    assert route.is_default


def test_an_answer_of_old_name_servers_is_read() -> None:
    """V2: fastjson writes numbers as keys without quotes."""
    answer = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"a","cluster":"c"}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":1,"topicSysFlag":0,'
        b'"writeQueueNums":1}]}'
    )
    route = build_route("orders", decode(answer, bodies.TopicRouteBody))
    assert ("10.0.0.1:10911", "10.0.0.2:10911") == (route.address("a"), route.address("a", 1))


# --- When it is asked ---------------------------------------------------------------------------------------------


class Registry:
    """A name server's answers, and the questions it got."""

    def __init__(self, **topics: bodies.TopicRouteBody) -> None:
        self.topics = topics
        self.questions: list[str] = []
        self.failure: Exception | None = None

    async def ask(self, topic: str) -> Response:
        self.questions.append(topic)
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        data = self.topics.get(topic)
        if data is None:
            return Response(ResponseCode.TOPIC_NOT_EXIST, 1, "no such topic", {}, memoryview(b""))
        return Response(0, 1, None, {}, memoryview(encode(data)))


@asynccontextmanager
async def routes_of(registry: Registry) -> AsyncIterator[Routes]:
    async with Tasks() as tasks:
        yield Routes(registry.ask, tasks)


async def test_a_broker_that_claims_too_many_queues_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Issue 13, point 7: other topics go on."""
    registry = Registry(orders=data_of("a", "b", queues=2**31), others=data_of("a"))
    async with routes_of(registry) as routes:
        await routes.of("orders")
        assert ["a0", "a1"] == ids((await routes.of("others")).to_write)
        await routes.refresh_all()
    assert 1 == caplog.text.count("broker b claims 2147483649 queues of topic orders; a client uses at most 65536")


async def test_a_route_is_asked_for_once_however_many_want_it() -> None:
    """A4."""
    registry = Registry(orders=data_of("a"))
    async with routes_of(registry) as routes:
        assert routes.known("orders") is None
        found = await asyncio.gather(*(routes.of("orders") for _ in range(5)))
        assert [await routes.of("orders")] * 5 == found
        assert routes.known("orders") == found[0]
    assert ["orders"] == registry.questions


async def test_callers_that_wait_for_a_change_share_the_question() -> None:
    """A4, E4: also one that comes while the first waits. Hundreds of sends without a master would ask as often."""
    registry = Registry(orders=data_of("a"))
    async with routes_of(registry) as routes, asyncio.TaskGroup() as callers:
        first = callers.create_task(routes.refresh_in(0.01, "orders"))
        await asyncio.sleep(0)
        later = callers.create_task(routes.refresh_in(3600, "orders"))
        assert await first == await later
    assert ["orders"] == registry.questions


async def test_an_unknown_topic_is_a_clear_error_for_a_consumer() -> None:
    """A4."""
    async with routes_of(Registry(TBW102=data_of("a"))) as routes:
        with pytest.raises(RouteMissing, match="create it with `tern topic create orders`") as caught:
            await routes.of("orders")
    assert caught.value.topic == "orders"


async def test_a_producer_takes_the_route_of_tbw102_for_a_new_topic() -> None:
    """D1."""
    registry = Registry(TBW102=data_of("a", perm=7, queues=8))
    async with routes_of(registry) as routes:
        route = await routes.of("orders", queues_max=4)
        assert (4, True, "orders") == (len(route.to_write), route.is_default, route.to_write[0].topic)
        # Its queues do not exist yet, so a consumer cannot have it.
        with pytest.raises(RouteMissing):
            await routes.of("orders")


async def test_a_broker_that_comes_back_between_two_questions_keeps_its_queues() -> None:
    """E5: a key would go to another queue than before; found by a storm on the outbox (seed 12)."""

    class ComingBack(Registry):
        async def ask(self, topic: str) -> Response:
            response = await super().ask(topic)
            self.topics.update(orders=data_of("a", queues=3), TBW102=data_of("a", perm=7, queues=8))
            return response

    async with routes_of(ComingBack()) as routes:
        route = await routes.of("orders", queues_max=4)
    assert (["a0", "a1", "a2"], False) == (ids(route.to_write), route.is_default)


async def test_the_real_route_replaces_the_default_one() -> None:
    registry = Registry(TBW102=data_of("a", perm=7, queues=8))
    changes: list[TopicRoute] = []
    async with routes_of(registry) as routes:
        routes.on_change.append(changes.append)
        await routes.of("orders", queues_max=4)
        await routes.refresh_all()
        registry.topics["orders"] = data_of("a", "b", queues=1)
        await routes.refresh_all()
        assert ["a0", "b0"] == ids((await routes.of("orders", queues_max=4)).to_write)
    assert [True, False] == [route.is_default for route in changes]


async def test_a_default_route_follows_its_brokers() -> None:
    """P4: the master of TBW102 has moved before the topic was made; found by a storm on a Raft group (seed 152)."""
    registry = Registry(TBW102=data_of("a", perm=7, queues=8))
    async with routes_of(registry) as routes:
        await routes.of("orders", queues_max=4)
        registry.topics["TBW102"] = data_of("b", perm=7, queues=8)
        await routes.refresh_all()
        assert ["b0"] == ids((await routes.of("orders", queues_max=4)).to_write)[:1]


async def test_without_tbw102_a_new_topic_is_an_error_for_a_producer_too() -> None:
    """D1: autoCreateTopicEnable is off on all brokers."""
    async with routes_of(Registry()) as routes:
        with pytest.raises(RouteMissing, match="autoCreateTopicEnable"):
            await routes.of("orders", queues_max=4)


async def test_listeners_hear_of_changes_only() -> None:
    """G1: a change of routes makes consumers rebalance."""
    registry = Registry(orders=data_of("a"))
    changes: list[TopicRoute] = []
    async with routes_of(registry) as routes:
        routes.on_change.append(changes.append)
        await routes.of("orders")
        await routes.refresh_all()
        registry.topics["orders"] = data_of("a", "b")
        await routes.refresh_all()
    assert [1, 2] == [len(route.brokers) for route in changes]


@pytest.mark.parametrize("failure", [NetworkError("no name server answers"), None])
async def test_a_route_that_cannot_be_refreshed_is_kept(failure: Exception | None) -> None:
    """A6: clients live on what they know while name servers are down."""
    registry = Registry(orders=data_of("a"))
    async with routes_of(registry) as routes:
        route = await routes.of("orders")
        registry.failure = failure
        registry.topics.clear()
        await routes.refresh_all()
        assert route == await routes.of("orders")


async def test_another_refusal_comes_as_its_error() -> None:
    async def refuse(_: str) -> Response:
        return Response(ResponseCode.NO_PERMISSION, 1, "not for you", {}, memoryview(b""))

    async with Tasks() as tasks:
        with pytest.raises(BrokerRefused, match="not for you"):
            await Routes(refuse, tasks).of("orders")


async def test_brokers_are_found_by_name_over_all_routes() -> None:
    registry = Registry(orders=data_of("a"), bills=data_of("b"))
    async with routes_of(registry) as routes:
        await routes.of("orders")
        await routes.of("bills")
        assert ("a:10911", "b:10911", None) == tuple(map(routes.address, ("a", "b", "c")))
        assert ["a:10911", "b:10911"] == list(routes.addresses(masters_only=True))
