"""A broker that steps down and up again under load, on a simulated network and disk (I1, F9, house: Roles).

Producers, poppers and a puller work all the time; the broker ends its term at random moments and begins the next one.
What must hold: each request is answered, nothing is appended while the broker is not the master, and what was
acknowledged to a producer is consumed in the end, delayed messages not before their time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.broker.roles import Role, Term
from ternmq.config import Settings
from ternmq.errors import CallTimeout, NotMaster
from ternmq.names import SCHEDULE_TOPIC, revive_topic
from ternmq.store.config import StoreConfig
from ternmq.testing.cluster import BROKER_PORT, NAME_SERVER_PORT, SMALL_FILES, Cluster, DiskFiles, Node
from ternmq.testing.loop import simulated_loop
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.routes import ClusterInfo
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.requests import OffsetReply, PullSysflag, QueueBounds
from tests.broker.calls import Caller, dialled, pull
from tests.broker.popping import ack, messages, wish

REASON = NotMaster("another broker is the master")
DELAY_S = 2.0
INVISIBLE_MS = 3_000
POLL_MS = 10_000
#: Far more than a simulated call takes; a request that is still not answered was forgotten.
CALL_MS = POLL_MS + 2_000
DRAIN_S = 300.0


class World:
    """One broker, whose ``Broker`` object the story holds, and clients that note what they see."""

    def __init__(self, cluster: Cluster, *, flush: str = "ASYNC_FLUSH", **settings: object) -> None:
        self.cluster = cluster
        self.random = Random(cluster.random.getrandbits(64))
        self.broker: Broker
        self.name_server = cluster.name_server()
        given = SMALL_FILES | {
            "brokerName": "broker-a",
            "listenPort": BROKER_PORT,
            "flushDiskType": flush,
            "messageDelayLevel": f"{DELAY_S:.0f}s",
        }
        self.settings = given | settings
        self.node = cluster.node("broker-a", self._run)
        #: By body: when its send began, and whether it is delayed.
        self.sent: dict[bytes, tuple[float, bool]] = {}
        self.acknowledged: set[bytes] = set()
        self.consumed: set[bytes] = set()
        self.early: list[bytes] = []
        #: Requests that were never answered.
        self.forgotten: list[str] = []
        self.refused: dict[str, int] = {}
        self.is_over = False

    async def _run(self, node: Node) -> None:
        flags = [f"{key}={value}" for key, value in self.settings.items()]
        own = Settings.gather(flags=[*flags, f"brokerIP1={node.ip}", f"namesrvAddr={self.cluster.name_servers}"])
        disk, files = node.disk, DiskFiles(node.disk)
        async with Broker(own.build(BrokerConfig), own.build(StoreConfig), node.env, disk=disk, files=files) as broker:
            self.broker = broker
            node.is_ready()
            await node.stopping.wait()

    async def start(self) -> None:
        await self.cluster.start(self.name_server)
        await self.cluster.start(self.node)

    def client(self, name: str, work: Callable[[Caller, Node], Awaitable[None]]) -> Node:
        """A machine with one connection to the broker."""

        async def run(node: Node) -> None:
            async with dialled(f"{self.node.ip}:{BROKER_PORT}") as caller:
                node.is_ready()
                await work(caller, node)
                await node.stopping.wait()

        return self.cluster.node(name, run)

    async def ask(self, code: int, header: Any = None, *, port: int = BROKER_PORT) -> Response:
        """What a tool gets from the broker, or from the name server."""
        got: list[Response] = []

        async def run(node: Node) -> None:
            host = self.node if port == BROKER_PORT else self.name_server
            async with dialled(f"{host.ip}:{port}") as caller:
                got.append(await caller.call(code, header))
            node.is_ready()
            await node.stopping.wait()

        node = self.cluster.node(f"tool-{len(self.cluster.nodes)}", run)
        await self.cluster.start(node)
        await node.stop()
        return got[0]

    async def queue_ends(self) -> list[int]:
        """Where all queues end that anything is written to."""
        queues = [("orders", 0), ("%RETRY%poppers_orders", 0), (SCHEDULE_TOPIC, 0)]
        queues += [(revive_topic("DefaultCluster"), queue_id) for queue_id in range(8)]
        return [
            (await self.ask(RequestCode.GET_MAX_OFFSET, QueueBounds(topic=topic, queue_id=queue_id)))
            .read(OffsetReply)
            .queue_offset
            for topic, queue_id in queues
        ]

    # --- What clients do ----------------------------------------------------------------------------------------

    async def call(self, what: str, calling: Awaitable[Any]) -> Any:
        try:
            response = await calling
        except CallTimeout:
            self.forgotten.append(what)
            return None
        if response.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            self.refused[what] = self.refused.get(what, 0) + 1
            await asyncio.sleep(0.3)
        return response

    async def sell(self, caller: Caller, node: Node) -> None:
        number = 0
        while not self.is_over:
            number += 1
            body = f"{node.name} {number}".encode()
            is_delayed = self.random.random() < 0.3
            self.sent[body] = self.cluster.loop.time(), is_delayed
            # With a unique key it takes the short way of plain messages.
            properties = {"UNIQ_KEY": f"K{len(self.sent)}"} | ({"DELAY": "1"} if is_delayed else {})
            response = await self.call("send", caller.send("orders", body, properties=properties))
            if response is not None and response.code in (0, ResponseCode.FLUSH_DISK_TIMEOUT):
                self.acknowledged.add(body)
            await asyncio.sleep(self.random.random() * 0.1)

    async def pop(self, caller: Caller, _node: Node) -> None:
        fields = wish("orders", invisible_ms=INVISIBLE_MS, poll_ms=POLL_MS, count_max=8)
        while not (self.is_over and self.consumed >= self.acknowledged):
            response = await self.call("pop", caller.peer.call(RequestCode.POP_MESSAGE, fields, timeout_ms=CALL_MS))
            for message in messages(response, "poppers", "orders") if response is not None else ():
                began, is_delayed = self.sent[message.body]
                # Less than a millisecond is not early: store times are whole milliseconds.
                if is_delayed and self.cluster.loop.time() < began + DELAY_S - 0.001:
                    self.early.append(message.body)
                if self.random.random() < 0.2:
                    continue  # Forgotten: it comes again.
                acked = await self.call("ack", ack(caller, message))
                if acked is not None and acked.code == 0:
                    self.consumed.add(message.body)
            if response is not None and response.code == ResponseCode.TOPIC_NOT_EXIST:
                await asyncio.sleep(0.5)

    async def pull(self, caller: Caller, _node: Node) -> None:
        """Pulls at the end of a queue without messages: they wait, on a master or not."""
        sysflag = PullSysflag.SUBSCRIPTION | PullSysflag.SUSPEND
        while not self.is_over:
            response = await self.call(
                "pull", caller.pull("SELF_TEST_TOPIC", sysflag=sysflag, suspend_timeout_ms=2_000)
            )
            assert response is None or ResponseCode.PULL_NOT_FOUND == response.code


def run(seed: int, story: Callable[[Cluster], Awaitable[None]]) -> None:
    with simulated_loop() as loop:
        loop.run_until_complete(story(Cluster(loop, seed)))
        loop.check()


@pytest.mark.parametrize("seed", range(8))
def test_a_broker_that_steps_down_and_up_loses_nothing_and_answers_everything(seed: int) -> None:
    """House, I1, F9: at least once, over several terms, with delayed messages and forgotten acks."""

    async def story(cluster: Cluster) -> None:
        world = World(cluster, flush="SYNC_FLUSH" if seed % 2 else "ASYNC_FLUSH")
        await world.start()
        clients = [world.client("shop", world.sell), world.client("market", world.sell)]
        clients += [world.client(f"popper-{number}", world.pop) for number in range(3)]
        clients += [world.client("puller", world.pull)]
        await cluster.start(*clients)
        roles = world.broker.roles
        for number in range(2, 6):
            await asyncio.sleep(world.random.uniform(1, 12))
            roles.step_down(REASON)
            # The turn after that, and for as long as it is not the master, nothing is appended.
            ends = await world.queue_ends()
            await asyncio.sleep(world.random.uniform(0, 8))
            assert ends == await world.queue_ends()
            if world.random.random() < 0.5:
                await roles.become(Role.SLAVE, Term(number))
            await roles.become(Role.MASTER, Term(number + 10))
        await asyncio.sleep(5)
        world.is_over = True
        ended = cluster.loop.time() + DRAIN_S
        while not world.consumed >= world.acknowledged and cluster.loop.time() < ended:
            await asyncio.sleep(1)

        assert set() == world.acknowledged - world.consumed
        assert ([], []) == (world.forgotten, world.early)
        assert {"send", "pop"} <= {*world.refused}
        assert len(world.acknowledged) > 100

    run(seed, story)


def test_a_step_down_answers_parked_pops_at_once_and_keeps_pulls() -> None:
    """House, F8: in one turn; the pops that wait for the disk of another term take nothing."""

    async def story(cluster: Cluster) -> None:
        world = World(cluster)
        await world.start()
        answered: list[tuple[str, float, int]] = []

        async def wait(caller: Caller, _node: Node) -> None:
            await caller.sent("orders", b"1")
            first = await caller.peer.call(RequestCode.POP_MESSAGE, wish("orders"))
            assert 0 == first.code

            async def note(what: str, calling: Awaitable[Any]) -> None:
                answered.append((what, cluster.loop.time(), (await calling).code))

            sysflag = PullSysflag.SUBSCRIPTION | PullSysflag.SUSPEND
            pop = caller.peer.call(RequestCode.POP_MESSAGE, wish("orders", poll_ms=20_000), timeout_ms=30_000)
            pulled = caller.call(
                RequestCode.PULL_MESSAGE,
                pull("orders", queue_offset=1, sysflag=sysflag, suspend_timeout_ms=10_000),
                timeout_ms=30_000,
            )
            await asyncio.gather(note("pop", pop), note("pull", pulled))

        node = world.client("waiter", wait)
        await cluster.start(node)
        await asyncio.sleep(2)
        assert [] == answered
        began = cluster.loop.time()

        world.broker.roles.step_down(REASON)
        await asyncio.sleep(1)

        [(what, at, code)] = answered
        assert ("pop", ResponseCode.SERVICE_NOT_AVAILABLE) == (what, code)
        assert at - began < 0.5
        await asyncio.sleep(15)
        assert ["pop", "pull"] == [what for what, _, _ in answered]
        assert ResponseCode.PULL_NOT_FOUND == answered[1][2]

    run(1, story)


def test_a_broker_registers_with_the_id_of_its_role() -> None:
    """House, A2: name servers learn at once that the master of a name is gone, and that it is back."""

    async def story(cluster: Cluster) -> None:
        world = World(cluster, brokerId=0)
        await world.start()

        async def ids() -> list[int]:
            response = await world.ask(RequestCode.GET_BROKER_CLUSTER_INFO, port=NAME_SERVER_PORT)
            info = decode(response.body, ClusterInfo)
            return sorted(info.broker_addr_table["broker-a"].broker_addrs)

        assert [0] == await ids()
        await world.broker.roles.become(Role.SLAVE, Term(2))
        assert [1] == await ids()
        await world.broker.roles.become(Role.MASTER, Term(3))
        assert [0] == await ids()

    run(1, story)
