"""Who serves reads in a group: a leader while it has a lease, others only where they are allowed to (P4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from ternmq import PushConsumer
from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import BrokerRefused, NotFound, ServiceNotAvailable, TernError
from ternmq.message import ReceivedMessage
from ternmq.tasks import Tasks
from ternmq.testing.cluster import BROKER_PORT, Cluster, Node
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Header, Response
from ternmq.wire.requests import (
    OffsetReply,
    PopMessage,
    PullMessage,
    PullSysflag,
    QueryMessage,
    QueryOffset,
    QueueBounds,
    SearchOffset,
    ViewMessage,
)
from tests.raft.test_group_simulation import Shop, leader_of, run, until

_END: Final = QueueBounds(topic="orders", queue_id=0)


def _pull(queue_offset: int, *, suspend_ms: int = 0) -> PullMessage:
    return PullMessage(
        consumer_group="TOOLS_CONSUMER",
        topic="orders",
        queue_id=0,
        queue_offset=queue_offset,
        count_max=1,
        sysflag=PullSysflag.SUBSCRIPTION | (PullSysflag.SUSPEND if suspend_ms else 0),
        suspend_timeout_ms=suspend_ms,
        subscription="*",
    )


#: A read of each kind.
READS: Final[dict[RequestCode, Header]] = {
    RequestCode.PULL_MESSAGE: _pull(0),
    RequestCode.LITE_PULL_MESSAGE: _pull(0),
    RequestCode.POP_MESSAGE: PopMessage(
        consumer_group="billing",
        topic="orders",
        queue_id=0,
        count_max=1,
        invisible_ms=60_000,
        poll_ms=0,
        born_time_ms=0,
        init_mode=0,
    ),
    RequestCode.GET_MAX_OFFSET: _END,
    RequestCode.GET_MIN_OFFSET: _END,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _END,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffset(topic="orders", queue_id=0, time_ms=0),
    RequestCode.QUERY_CONSUMER_OFFSET: QueryOffset(consumer_group="billing", topic="orders", queue_id=0),
    RequestCode.QUERY_MESSAGE: QueryMessage(topic="orders", key="none", count_max=1, begin_ms=0, end_ms=1 << 60),
}


class Reader:
    """A client on a machine of its own that asks members, whatever name servers say."""

    def __init__(self, cluster: Cluster) -> None:
        self.node = cluster.node("reader", self._run)
        self._orders: asyncio.Queue[tuple[Node, RequestCode, Header, int, asyncio.Future[Response]]] = asyncio.Queue()

    async def _run(self, node: Node) -> None:
        async with ClientInstance(node.client_config(), env=node.env) as instance, Tasks() as tasks:
            node.is_ready()

            async def take_orders() -> None:
                while True:
                    tasks.create_task(self._carry_out(instance, *await self._orders.get()))

            tasks.create_task(take_orders())
            await node.stopping.wait()

    async def _carry_out(
        self,
        instance: ClientInstance,
        member: Node,
        code: RequestCode,
        header: Header,
        timeout_ms: int,
        answer: asyncio.Future[Response],
    ) -> None:
        try:
            address = f"{member.ip}:{BROKER_PORT}"
            answer.set_result(await instance.ask(address, code, header, timeout_ms=timeout_ms))
        except TernError as error:
            answer.set_exception(error)

    async def ask(self, member: Node, code: RequestCode, header: Header, *, timeout_ms: int = 3_000) -> Response:
        """Raises ``TernError``."""
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._orders.put_nowait((member, code, header, timeout_ms, answer))
        return await answer

    async def end(self, member: Node) -> int:
        """Where the queue ends, as a member says. Raises ``TernError``."""
        return (await self.ask(member, RequestCode.GET_MAX_OFFSET, _END)).read(OffsetReply).queue_offset


@asynccontextmanager
async def started(cluster: Cluster, **settings: object) -> AsyncIterator[tuple[list[Node], Shop, Reader]]:
    """A group that has taken some messages."""
    members = cluster.raft_group("broker-a", 3, **settings)
    shop, reader = Shop(cluster), Reader(cluster)
    await cluster.start(cluster.name_server(), *members)
    await cluster.start(shop.node, reader.node)
    await until(lambda: len(shop.acknowledged) > 20)
    yield members, shop, reader
    await shop.node.stop()
    await reader.node.stop()


def _leader(members: list[Node]) -> Node:
    found = leader_of(members)
    assert found is not None
    return found


async def _refused(reader: Reader, member: Node) -> list[RequestCode]:
    """Which reads a member refuses because of its role."""
    found = []
    for code, header in READS.items():
        try:
            await reader.ask(member, code, header)
        except ServiceNotAvailable:
            found.append(code)
        except (NotFound, BrokerRefused):
            pass
    return found


def test_a_leader_that_is_cut_off_tells_nothing_that_is_not_true_any_more() -> None:
    """P4: it has no lease before another member can be elected. Clients reach it all the time."""

    async def told(cluster: Cluster) -> None:
        async with started(cluster) as (members, shop, reader):
            old, time = _leader(members), cluster.loop.time
            others = [each for each in members if each is not old]
            assert await reader.end(old) >= 0
            cluster.network.partition([old.ip], [each.ip for each in others])
            answered_at = cut_at = time()
            while leader_of(others) is None:
                called_at = time()
                try:
                    await reader.end(old)
                    answered_at = time()
                except TernError:
                    assert answered_at > cut_at or called_at == cut_at, "it goes on for as long as its lease"
                await asyncio.sleep(0.01)
            assert answered_at - cut_at < 0.75, "no longer than the promises of the others"
            sent = len(shop.acknowledged)
            await until(lambda: len(shop.acknowledged) > sent)
            assert list(READS) == await _refused(reader, old)
            assert [] == await _refused(reader, _leader(others))
            cluster.network.heal()

    run(7, told)


def test_a_read_waits_while_a_leader_has_no_lease() -> None:
    """P4: answers of the others that are late cost time, and no errors."""

    async def told(cluster: Cluster) -> None:
        async with started(cluster) as (members, _, reader):
            leader = _leader(members)
            for member in members:
                if member is not leader:
                    member.pause()
            await asyncio.sleep(0.65)
            asking = cluster.watch(reader.end(leader))
            await asyncio.sleep(0.03)
            assert not asking.done()
            for member in members:
                if member is not leader:
                    member.resume()
            assert await asking > 0
            assert _leader(members) is leader

    run(7, told)


def test_a_pull_that_waits_is_answered_when_the_leadership_ends() -> None:
    """P4: its client looks for the new leader at once, and not when the time of the pull is over."""

    async def told(cluster: Cluster) -> None:
        async with started(cluster) as (members, shop, reader):
            await shop.node.stop()
            old = _leader(members)
            end = await reader.end(old)
            pulling = cluster.watch(
                reader.ask(old, RequestCode.PULL_MESSAGE, _pull(end, suspend_ms=20_000), timeout_ms=30_000)
            )
            await asyncio.sleep(1.0)
            assert not pulling.done()
            assert old.broker is not None
            assert old.broker.group is not None
            began = cluster.loop.time()
            await old.broker.group.node.transfer()
            with pytest.raises(ServiceNotAvailable, match="does not lead"):
                await pulling
            assert cluster.loop.time() - began < 5.0
            shop.node.start()
            await shop.node.ready()

    run(7, told)


def test_a_consumer_follows_a_transfer_at_once() -> None:
    """P4: the old leader answers its pulls, and the name server knows the new one: there is nothing to wait for."""

    async def told(cluster: Cluster) -> None:
        heard: list[float] = []

        async def consume(node: Node) -> None:
            async def listen(_message: ReceivedMessage) -> None:
                heard.append(cluster.loop.time())

            consumer = PushConsumer("billing", listen, client=node.client_config(), env=node.env)
            consumer.subscribe("orders")
            async with consumer:
                node.is_ready()
                await node.stopping.wait()

        async with started(cluster) as (members, _, _):
            billing = cluster.node("billing", consume)
            await cluster.start(billing)
            await until(lambda: len(heard) > 20)
            old = _leader(members)
            assert old.broker is not None
            assert old.broker.group is not None
            at, count = cluster.loop.time(), len(heard)
            assert await old.broker.group.node.transfer()
            await until(lambda: len(heard) > count + 20)
            assert max(b - a for a, b in zip([at, *heard[count:]], heard[count:], strict=False)) < 2.0
            await billing.stop()

    run(7, told)


@pytest.mark.parametrize("is_enabled", [False, True])
def test_followers_serve_reads_only_where_they_may(is_enabled: bool) -> None:
    """P4: ``slaveReadEnable``. Pops need the leader in any case; a message by its id is the same on all members."""

    async def told(cluster: Cluster) -> None:
        async with started(cluster, slaveReadEnable=is_enabled) as (members, _, reader):
            leader = _leader(members)
            follower = next(each for each in members if each is not leader)
            expected = [RequestCode.POP_MESSAGE] if is_enabled else list(READS)
            assert expected == await _refused(reader, follower)
            assert leader.broker is not None
            assert leader.broker.group is not None
            first = leader.broker.group.node.store.get("orders", 0, 0, count_max=1).buffers[0]
            at = int.from_bytes(first[28:36], "big")
            await reader.ask(follower, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(log_offset=at))
            with pytest.raises(BrokerRefused, match="can not find" if is_enabled else "does not lead"):
                await reader.ask(follower, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(log_offset=at + 1))

    run(7, told)


def test_a_follower_shows_nothing_beyond_the_commit_index() -> None:
    """P4: it has entries of which the leader does not hear that they have arrived."""

    async def told(cluster: Cluster) -> None:
        async with started(cluster, slaveReadEnable=True) as (members, _, reader):
            leader = _leader(members)
            follower, other = (each for each in members if each is not leader)
            for each in (follower, other):
                cluster.network.block(each.ip, leader.ip)
            await asyncio.sleep(0.5)
            assert follower.broker is not None
            assert follower.broker.group is not None
            node = follower.broker.group.node
            ends = [node.store.max_offset("orders", queue_id) for queue_id in range(4)]
            assert node.log.last_index > node.log.committed, "entries come, and are not committed"
            assert ends[0] == await reader.end(follower)
            assert sum(ends) < sum(1 for record in node.store._log.walk(0) if record.topic == "orders"), (
                "some are there that are not shown"
            )
            cluster.network.heal()

    run(7, told)
