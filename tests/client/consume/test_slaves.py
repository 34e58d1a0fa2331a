"""Consumers on a slave, while the master is away and when it is back (O3). Whole groups: ``tests/testing/pairs.py``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from ternmq import ClientConfig, LitePullConsumer, Message, MessageQueue, Producer, PullConsumer, SendStatus
from ternmq.broker.broker import Broker
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.routes import Copy
from ternmq.client.consume.offsets import BrokerOffsets, StartPosition, start_offset
from ternmq.client.consume.slaves import check_slave
from ternmq.env import Env
from ternmq.errors import NetworkError
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.replication.slave import SlaveState
from ternmq.wire.codes import ResponseCode
from ternmq.wire.header import Response
from tests.broker.test_replicating import broker, copies_tables, has_all, parts_of, slave, state_of, until

TOPIC: Final = "orders"
QUEUE: Final = MessageQueue(TOPIC, "broker-a", 0)


class Pair:
    """A master that can be stopped, and its slave."""

    def __init__(self, names: str, root: Path, stack: AsyncExitStack) -> None:
        # Routes are asked for often, so that nothing waits for 30 s.
        self.client = ClientConfig(names, poll_name_server_interval_ms=100)
        self._names = names
        self._root = root
        self._stack = stack
        self._running = AsyncExitStack()

    async def start(self) -> None:
        self.master = await self.start_master()
        self.slave: Broker = await self._stack.enter_async_context(slave(self._root / "two", self._names))
        await until(lambda: state_of(self.slave) is SlaveState.FOLLOWING)

    async def start_master(self) -> Broker:
        settings = {"brokerRole": "SYNC_MASTER", "defaultTopicQueueNums": 1}
        self._running = await self._stack.enter_async_context(AsyncExitStack())
        return await self._running.enter_async_context(broker(self._root / "one", self._names, **settings))

    async def stop_master(self) -> None:
        await self._running.aclose()

    async def send(self, first: int, end: int) -> None:
        async with Producer("shop", client=self.client) as producer:
            for number in range(first, end):
                while (await producer.send(Message(TOPIC, b"%d" % number))).status is not SendStatus.OK:
                    await asyncio.sleep(0.01)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1")
    async with NameServer(config, Env()) as server, AsyncExitStack() as stack:
        made = Pair(f"127.0.0.1:{server.port}", tmp_path, stack)
        await made.start()
        yield made


async def test_a_pull_consumer_reads_and_commits_on_a_slave_and_returns(pair: Pair) -> None:
    """O3, F3: bounds, messages and progress; the progress is on the master when that is back."""
    await pair.send(0, 5)
    await has_all(pair.slave, pair.master)
    await copies_tables(pair.slave)
    async with PullConsumer("readers", client=pair.client) as consumer:
        (queue,) = await consumer.queues(TOPIC)
        await consumer.pull(queue, 0, commit_offset=1)
        assert 1 == await consumer.committed(queue)
        await copies_tables(pair.slave)
        await pair.stop_master()
        result = None
        while result is None:
            try:
                result = await consumer.pull(queue, 1, wait=False, commit_offset=2)
            except NetworkError:
                await asyncio.sleep(0.01)
        assert [b"1", b"2", b"3", b"4"] == [message.body for message in result.messages]
        assert (0, 5, 2) == (
            await consumer.min_offset(queue),
            await consumer.max_offset(queue),
            await consumer.committed(queue),
        )
        await consumer.commit(queue, 5)

        pair.master = await pair.start_master()
        async with ClientInstance(pair.client) as instance:
            of_masters = BrokerOffsets(instance, "readers", masters_only=True)
            await instance.routes.of(TOPIC)
            async with asyncio.timeout(60):
                while await of_masters.load(queue) != 5:
                    await asyncio.sleep(0.01)
            assert instance.copy_of("broker-a") == Copy(0, pair.master.address)


async def test_a_lite_pull_consumer_goes_on_on_a_slave(pair: Pair) -> None:
    """O3, F4: one that runs; and one that starts without a master begins where the group is."""
    await pair.send(0, 3)
    await has_all(pair.slave, pair.master)
    await copies_tables(pair.slave)
    async with LitePullConsumer("readers", client=pair.client) as consumer:
        await consumer.assign([QUEUE])
        await consumer.seek(QUEUE, 0)
        found: list[bytes] = []
        while len(found) < 3:
            found += [message.body for message in await consumer.poll()]
        consumer.pause([QUEUE])
        await pair.send(3, 9)
        await pair.stop_master()
        consumer.resume([QUEUE])
        while len(found) < 9:
            found += [message.body for message in await consumer.poll()]
        assert [b"%d" % number for number in range(9)] == found
        await consumer.commit()
    async with PullConsumer("readers", client=pair.client) as other:
        await other.queues(TOPIC)
        assert 9 == await other.committed(QUEUE)


async def test_a_new_group_that_starts_at_the_end_waits_for_the_master(pair: Pair) -> None:
    """O3, F6: a slave may not know the group's offsets yet, nor the last messages; the first message is no risk."""
    await pair.send(0, 3)
    await has_all(pair.slave, pair.master)
    await pair.stop_master()
    async with ClientInstance(pair.client) as instance:
        offsets = BrokerOffsets(instance, "readers")
        await instance.routes.of(TOPIC)
        await until(lambda: instance.routes.address("broker-a") is None)
        assert 3 == await offsets.max(QUEUE)
        assert 0 == await start_offset(QUEUE, StartPosition.FIRST, offsets)
        for start in (StartPosition.LAST, StartPosition.at(1)):
            with pytest.raises(NetworkError, match="with id 0; it is down or not registered"):
                await start_offset(QUEUE, start, offsets)


async def test_what_was_told_to_the_master_is_told_to_the_slave(pair: Pair) -> None:
    """O3, D4: the same offset again, as it is another broker."""
    await pair.send(0, 3)
    async with PullConsumer("readers", client=pair.client) as consumer:
        await consumer.queues(TOPIC)
        # Makes the group.
        await consumer.pull(QUEUE, 0, commit_offset=1)
    await has_all(pair.slave, pair.master)
    await copies_tables(pair.slave)
    metadata = parts_of(pair.slave).metadata
    assert metadata is not None
    metadata._period_s = 1000
    async with ClientInstance(pair.client) as instance:
        offsets = BrokerOffsets(instance, "readers")
        await instance.routes.of(TOPIC)
        await offsets.save({QUEUE: 2}, wait=True)
        await pair.stop_master()
        await until(lambda: instance.routes.address("broker-a") is None)
        assert 1 == await BrokerOffsets(instance, "readers").load(QUEUE)
        await offsets.save({QUEUE: 2}, wait=False)
        assert 2 == await BrokerOffsets(instance, "readers").load(QUEUE)


@pytest.mark.parametrize(
    ("code", "remark", "min_offset", "expected"),
    [
        (ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy", 0, "set slaveReadEnable=true on it"),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, "OFFSET_TOO_SMALL", 8, "from queue offset 8 on; older messages, from 7"),
        (ResponseCode.PULL_NOT_FOUND, "OFFSET_TOO_SMALL", 8, "may be on the master, which is away"),
        (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 7, ""),
        (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 8, ""),
        (ResponseCode.SYSTEM_BUSY, "[PCBUSY]", 0, ""),
        (ResponseCode.SUCCESS, "FOUND", 0, ""),
    ],
)
def test_answers_of_slaves_that_only_the_master_can_help_with(
    code: int, remark: str, min_offset: int, expected: str
) -> None:
    """O3: of RocketMQ 5 without ``slaveReadEnable``, and of slaves that begin later than their masters."""
    fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": "7", "minOffset": f"{min_offset}", "maxOffset": "9"}
    response = Response(code, 1, remark, fields, memoryview(b""))
    if expected:
        with pytest.raises(NetworkError, match=expected):
            check_slave(QUEUE, 7, response)
    else:
        check_slave(QUEUE, 7, response)
