"""Acks of popped messages on their way (F9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.acks import SPAN_MAX, Acks, PopAck, batched, single
from ternmq.errors import MessageIllegal
from ternmq.net.gate import ANY_CALLER
from ternmq.net.lanes import LaneConfig
from ternmq.net.peer import Peer, Route
from ternmq.net.server import Server
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import BatchAcks
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.routes import BrokerData, QueueData, TopicRouteBody
from ternmq.wire.codes import RequestCode
from ternmq.wire.handles import Handle
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import AckMessage


def ack(queue_offset: int, *, start: int = 100, queue_id: int = 0, retry: int = 0, pop_time_ms: int = 5) -> PopAck:
    return PopAck("orders", Handle(start, pop_time_ms, 60_000, 3, retry, "broker-a", queue_id, queue_offset))


def test_acks_of_one_check_point_are_bits() -> None:
    """F9: RocketMQ's example, bits 0 and 9."""
    batch, alone = batched("g", [ack(100), ack(109)])
    (one,) = batch
    assert [] == alone
    assert ("AQI=", 100, "0", 0, 3, 5, 60_000) == (
        one.bits,
        one.start_offset,
        one.retry,
        one.queue_id,
        one.revive_queue_id,
        one.pop_time_ms,
        one.invisible_ms,
    )
    assert ("g", "orders") == (one.consumer_group, one.topic)


def test_check_points_are_kept_apart() -> None:
    """F9: of queues, pops and retry topics."""
    batch, _ = batched("g", [ack(100), ack(100, queue_id=1), ack(101, pop_time_ms=6), ack(100, retry=1), ack(102)])
    assert [(0, 5, "0", "BQ=="), (1, 5, "0", "AQ=="), (0, 6, "0", "Ag=="), (0, 5, "1", "AQ==")] == [
        (one.queue_id, one.pop_time_ms, one.retry, one.bits) for one in batch
    ]


def test_what_lies_far_from_its_check_point_goes_alone() -> None:
    """F9: a filter may skip millions; the bits would be megabytes."""
    far = ack(100 + SPAN_MAX)
    batch, alone = batched("g", [ack(100 + SPAN_MAX - 1), far])
    assert (1, [far]) == (len(batch), alone)
    header = single("g", ack(7, retry=1))
    assert ("%RETRY%g_orders", 0, 7, "100 5 60000 3 1 broker-a 0 7") == (
        header.topic,
        header.queue_id,
        header.queue_offset,
        header.extra_info,
    )


class Broker:
    """Takes acks, one by one or in batches, and waits with its answers until told."""

    def __init__(self, *, batches: bool) -> None:
        self.batches = batches
        self.taken: list[list[int]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        #: What it refuses: a queue offset, or a start offset in a batch.
        self.illegal: int | None = None
        self.address = ""

    def routes(self) -> dict[int, Route]:
        routes: dict[int, Route] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: Route(self._route, "work", ANY_CALLER),
            RequestCode.ACK_MESSAGE: Route(self._ack, "work", ANY_CALLER),
        }
        if self.batches:
            routes[RequestCode.BATCH_ACK_MESSAGE] = Route(self._batch, "work", ANY_CALLER)
        return routes

    def _route(self, _: Peer, _request: Request[Any]) -> Reply:
        route = TopicRouteBody(
            broker_datas=[BrokerData(cluster="c", broker_name="broker-a", broker_addrs={0: self.address})],
            queue_datas=[QueueData(broker_name="broker-a", perm=6, read_queue_nums=1, write_queue_nums=1)],
        )
        return Reply(body=encode(route))

    async def _ack(self, _: Peer, request: Request[AckMessage]) -> Reply:
        self.taken.append([request.fields.queue_offset])
        await self.may_answer.wait()
        if self.illegal in self.taken[-1]:
            raise MessageIllegal("no such queue")
        return Reply()

    async def _batch(self, _: Peer, request: Request[Any]) -> Reply:
        self.taken.append([one.start_offset for one in decode(request.body, BatchAcks).acks])
        await self.may_answer.wait()
        if self.illegal in self.taken[-1]:
            raise MessageIllegal("no such queue")
        return Reply()


@pytest.fixture(params=[True, False], ids=["batches", "one by one"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    broker = Broker(batches=request.param)
    async with Server.running(broker.routes(), [LaneConfig("work")]) as server:
        broker.address = f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"
        yield broker


async def test_acks_gather_while_others_are_on_their_way(broker: Broker) -> None:
    """F9: the first goes alone and at once, the next ones together; a broker without batches gets all one by one."""
    async with ClientInstance(ClientConfig(broker.address)) as instance, Tasks() as tasks:
        await instance.routes.of("orders")
        acks = Acks(instance, "g", tasks)
        broker.may_answer.clear()
        acks.add(ack(0, start=0))
        async with asyncio.timeout(20):
            while not broker.taken:
                await asyncio.sleep(0)
        for start in (1, 2, 3):
            acks.add(ack(start, start=start))
        await acks.idle(0)
        broker.may_answer.set()
        await acks.idle(20_000)
    assert ([[0], [1, 2, 3]] if broker.batches else [[0], [1], [2], [3]]) == broker.taken


async def test_acks_that_fail_are_logged_and_forgotten(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """F9: the messages come again."""
    async with ClientInstance(ClientConfig(broker.address)) as instance, Tasks() as tasks:
        acks = Acks(instance, "g", tasks)
        acks.add(ack(0))
        await acks.idle(20_000)
    (warning,) = caplog.messages
    assert warning.endswith("; they will be delivered again")
    assert [] == broker.taken


async def test_an_ack_that_is_refused_takes_no_others_with_it(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """F9: its queue may be gone."""
    broker.illegal = 1
    far = ack(SPAN_MAX, start=0)
    async with ClientInstance(ClientConfig(broker.address)) as instance, Tasks() as tasks:
        await instance.routes.of("orders")
        acks = Acks(instance, "g", tasks)
        for one in (ack(1, start=1), ack(2, start=2), far):
            acks.add(one)
        await acks.idle(20_000)
    assert ([[1, 2], [SPAN_MAX]] if broker.batches else [[1], [2], [SPAN_MAX]]) == broker.taken
    (warning,) = caplog.messages
    assert f"cannot acknowledge {2 if broker.batches else 1} messages of group g on broker-a" in warning
