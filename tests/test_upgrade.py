"""What an earlier version wrote and said: its directory opens with all that was in it, and its clients are understood
(C11, T1). ``tests/released.py`` tells how the files were made."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ternmq import Admin, EmbeddedCluster, Message, Outcome, Producer, PullConsumer, ReceivedMessage, ShareConsumer
from ternmq.env import Env, SystemClock
from ternmq.message import MessageQueue
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.frame import FrameDecoder
from ternmq.wire.header import Response
from tests import released
from tests.client.send.test_transaction import QUICK, until

_DAY_MS = 24 * 60 * 60 * 1000


class LaterClock(SystemClock):
    """A broker that is upgraded long after it was stopped."""

    def __init__(self, days: int) -> None:
        self._days = days

    def now_ms(self) -> int:
        return super().now_ms() + self._days * _DAY_MS


async def bodies(names: str, topic: str) -> list[bytes]:
    """All messages of a topic, in order."""
    found: list[ReceivedMessage] = []
    async with PullConsumer("reader", name_servers=names) as consumer:
        for queue in await consumer.queues(topic):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset, wait=False)
                found += result.messages
                offset = result.next_offset
    return sorted(message.body for message in found)


@pytest.mark.parametrize("days", [0, 300])
@pytest.mark.parametrize("version", released.versions())
async def test_a_directory_of_an_earlier_version_opens_with_all_that_was_in_it(
    version: str, days: int, tmp_path: Path
) -> None:
    """C11: messages, keys, offsets, settings of topics and groups; what waited for its time, for the end of a
    transaction, or for a confirmation."""
    await asyncio.to_thread(released.unpack, version, tmp_path)
    # A half message without a producer is discarded after this time.
    settings = {**released.SETTINGS, **QUICK, "transactionWaitMax": 365 * _DAY_MS}
    settings.pop("brokerName")
    async with (
        EmbeddedCluster(directory=tmp_path, settings=settings, env=Env(clock=LaterClock(days))) as cluster,
        Admin(cluster.name_servers) as admin,
    ):
        names = cluster.name_servers
        orders = sorted(b"%d" % number for number in range(released.ORDERS))
        assert orders == await bodies(names, "orders")
        [found] = await admin.messages.by_key("orders", "order-7")
        assert (b"7", "paid") == (found.body, found.tags)

        [master] = await admin.brokers.masters()
        groups = await admin.groups.table(master)
        assert 7 == groups["billing"].retry_max_times
        assert [("orders", 1_000)] == [(quota.name, quota.messages) for quota in await admin.quotas.all()]
        async with PullConsumer("billing", name_servers=names) as billing:
            assert released.COMMITTED == await billing.committed(MessageQueue("orders", "broker-a", 0))
        progress = await admin.groups.progress("mailer", topic="orders")
        assert (4, 0) == (len(progress), sum(queue.lag for queue in progress))

        await what_waited_comes(names)
        async with Producer("shop", name_servers=names) as producer:
            await producer.send(Message("orders", b"one more"))
        assert sorted([*orders, b"one more"]) == await bodies(names, "orders")


async def what_waited_comes(names: str) -> None:
    async def commit(_message: ReceivedMessage) -> Outcome:
        return Outcome.COMMIT

    expected = [b"by level", b"by time", b"committed", b"open"]

    async def is_there() -> bool:
        return len(await bodies(names, "events")) >= len(expected)

    async with Producer("shop", name_servers=names, checker=commit, topics=["events"]):
        await until(is_there)
    assert expected == await bodies(names, "events")

    shared = ShareConsumer("workers", name_servers=names, consumer="worker-1")
    shared.subscribe("tasks")
    held: list[bytes] = []
    async with shared, asyncio.timeout(120):
        async for message in shared:
            with message:
                held.append(message.body)
            if len(held) == released.TASKS - released.CONFIRMED:
                break
    assert [b"%d" % number for number in range(released.CONFIRMED, released.TASKS)] == sorted(held)


@pytest.mark.parametrize("version", released.versions())
async def test_the_clients_of_an_earlier_version_are_understood(version: str) -> None:
    """B1, T1: the requests that succeeded then, in the same order, succeed now."""
    # Where in the log a message lies, or which one was taken, is no property of a version.
    of_places = {RequestCode.END_TRANSACTION, RequestCode.SHARE_ACK}
    differing: list[tuple[int, int, str | None]] = []
    links: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
    async with EmbeddedCluster(settings=QUICK) as cluster:
        addresses = {"namesrv": cluster.name_servers, "broker": cluster.brokers[0].address}
        for line in released.exchanges(version):
            # Others were held until the client left, or asked for a broker that was stopped.
            if line["answer"] != ResponseCode.SUCCESS:
                continue
            if line["connection"] not in links:
                host, _, port = addresses[line["server"]].partition(":")
                links[line["connection"]] = await asyncio.open_connection(host, int(port))
            reader, writer = links[line["connection"]]
            writer.write(line["request"])
            code, remark = await asyncio.wait_for(reply(reader, line["request"]), 60)
            is_understood = code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED and line["code"] in of_places
            if code != ResponseCode.SUCCESS and not is_understood:
                differing.append((line["code"], code, remark))
        for _, writer in links.values():
            writer.close()
    assert [] == differing


async def reply(reader: asyncio.StreamReader, request: bytes) -> tuple[int, str | None]:
    """The reply to a request; what the server asks meanwhile is left out."""
    [asked] = FrameDecoder().feed(request)
    while True:
        head = await reader.readexactly(4)
        [command] = FrameDecoder().feed(head + await reader.readexactly(int.from_bytes(head)))
        if isinstance(command, Response) and command.opaque == asked.opaque:
            return command.code, command.remark
