"""A broker under clients that ask too much, read too little, or do not finish what they send (issue 13)."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ternmq.broker.broker import Broker
from ternmq.errors import ConfigError
from ternmq.store.config import FlushDiskType
from ternmq.store.read import query as store_query
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.routes import KvTable
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.frame import encode_request
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import (
    Notification,
    NotificationReply,
    PeekMessage,
    PopReply,
    PullSysflag,
    QueryMessage,
    ViewMessage,
)
from tests.broker.calls import FAR_MS, Caller, dialled, pull, serving, settings, small_store, v2
from tests.broker.popping import wish

MIB = 1024 * 1024
LARGE = 3_900_000
EVER_MS = 2**63 - 1
LARGE_STORE = {"mapped_file_size_commit_log": 64 * MIB}


async def runtime(broker: Caller) -> dict[str, str]:
    response = await broker.call(RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms=FAR_MS)
    return decode(response.body, KvTable).table


async def by_key(broker: Caller, key: str) -> Any:
    header = QueryMessage(topic="orders", key=key, count_max=64, begin_ms=0, end_ms=EVER_MS)
    return await broker.call(RequestCode.QUERY_MESSAGE, header, timeout_ms=FAR_MS)


@pytest.mark.parametrize("memory_percent", [40, 0], ids=["in memory", "cold"])
async def test_a_query_whose_answer_fits_no_frame_brings_the_newest(tmp_path: Path, memory_percent: int) -> None:
    """Point 1: six messages of 3.9 MB with one key, then a query by key, stopped the whole broker."""
    store = LARGE_STORE | {"access_message_in_memory_max_ratio": memory_percent}
    async with serving(tmp_path, store=store) as broker:
        for number in range(6):
            await broker.sent("orders", bytes([number]) * LARGE, properties={"KEYS": "k"})

        response = await by_key(broker, "k")

        assert ResponseCode.SUCCESS == response.code
        assert [3, 4, 5] == [record.body[0] for record in unpack_records(response.body)]
        assert len(response.body) <= store_query.QUERY_BYTES_MAX
        assert 0 == (await broker.send("orders", b"still served")).code


async def test_pops_and_peeks_of_many_queues_are_bounded_by_bytes(tmp_path: Path) -> None:
    """Point 1: each queue and retry topic adds its messages to one reply."""
    async with serving(tmp_path, store=LARGE_STORE) as broker:
        for queue_id in range(6):
            await broker.sent("orders", bytes([queue_id]) * LARGE, queue_id=queue_id, default_topic_queue_nums=6)
        peek = PeekMessage(consumer_group="poppers", topic="orders", queue_id=-1, count_max=1_000_000)
        peeked = await broker.call(RequestCode.PEEK_MESSAGE, peek, timeout_ms=FAR_MS)

        assert 1 == len(unpack_records(peeked.body))
        assert 6 == peeked.read(PopReply).rest_count

        popped: list[int] = []
        while len(popped) < 6:
            response = await broker.call(RequestCode.POP_MESSAGE, wish("orders"), timeout_ms=FAR_MS)
            assert ResponseCode.SUCCESS == response.code
            [record] = unpack_records(response.body)
            popped.append(record.body[0])

        assert list(range(6)) == sorted(popped)


async def test_a_larger_message_size_brings_a_larger_frame(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Point 14: a body that the store takes can be sent, pulled and viewed."""
    store = LARGE_STORE | {"max_message_size": 20 * MIB}
    async with serving(tmp_path, store=store) as broker:
        header = v2("orders", queue_id=0)
        sent = await broker.call(RequestCode.SEND_MESSAGE_V2, header, bytes(20 * MIB), timeout_ms=FAR_MS)
        assert 0 == sent.code, sent.remark
        pulled = await broker.call(RequestCode.PULL_MESSAGE, pull("orders"), timeout_ms=FAR_MS)
        viewed = await broker.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(log_offset=0), timeout_ms=FAR_MS)

    [record] = unpack_records(pulled.body)
    assert 20 * MIB == len(record.body)
    assert pulled.body == viewed.body
    assert any("frameMaxLength is raised" in message for message in caplog.messages)


def test_a_message_size_that_no_frame_holds_is_refused(tmp_path: Path) -> None:
    """Point 14."""
    with pytest.raises(ConfigError, match=r"invalid maxMessageSize 536870912: expected at most 267386880"):
        Broker(settings(), small_store(tmp_path, max_message_size=512 * MIB))


async def test_senders_that_wait_for_the_disk_do_not_keep_their_bodies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Point 6: the log has them already."""
    is_synced = threading.Event()
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        assert is_synced.wait(60)
        real(fd)

    body = bytes(MIB)
    store = LARGE_STORE | {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "sync_flush_timeout": FAR_MS}
    async with serving(tmp_path, store=store) as broker:
        await broker.sent("orders", b"0")
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        try:
            with kept_bytes() as kept:
                calls = []
                for _ in range(20):
                    calls.append(broker.peer.start_call(RequestCode.SEND_MESSAGE_V2, v2("orders", queue_id=0), body))
                    # Behind it on the same connection: when it is answered, the message is stored.
                    await broker.pull("orders", 1)
                assert not any(call.done() for call in calls)
                assert kept() < 10 * MIB
        finally:
            is_synced.set()
        assert {0} == {(await call).code for call in calls}


async def test_held_pulls_do_not_keep_a_body_that_came_with_them(tmp_path: Path) -> None:
    """Point 6: 100,000 pulls may be held, for as long as they say."""
    held = pull("orders", sysflag=PullSysflag.SUBSCRIPTION | PullSysflag.SUSPEND, suspend_timeout_ms=FAR_MS)
    async with serving(tmp_path) as broker:
        await broker.sent("orders", b"0")
        with kept_bytes() as kept:
            for _ in range(20):
                header = msgspec.structs.replace(held, queue_offset=1)
                broker.peer.start_call(RequestCode.PULL_MESSAGE, header, bytes(MIB)).add_done_callback(
                    asyncio.Future.exception
                )
                await broker.pull("orders", 0)
            assert kept() < 10 * MIB


async def test_held_pulls_are_bounded_by_bytes(tmp_path: Path) -> None:
    """Point 6: 100,000 pulls may be held, each with a header of megabytes."""
    held = pull("orders", queue_offset=1, sysflag=PullSysflag.SUBSCRIPTION | PullSysflag.SUSPEND)
    header = msgspec.structs.replace(held, suspend_timeout_ms=FAR_MS, proxy_client_id="x" * (MIB // 2))
    async with serving(tmp_path, max_queued_request_bytes=MIB) as broker:
        await broker.sent("orders", b"0")
        first = broker.peer.start_call(RequestCode.PULL_MESSAGE, header)

        refused = await broker.call(RequestCode.PULL_MESSAGE, header, timeout_ms=FAR_MS)

        assert ResponseCode.SYSTEM_BUSY == refused.code
        assert "maxQueuedRequestBytes" in (refused.remark or "")
        await broker.sent("orders", b"1")
        assert 0 == (await first).code
        # What was held is given back: there is room for another one.
        again = msgspec.structs.replace(header, queue_offset=2, suspend_timeout_ms=1)
        response = await broker.call(RequestCode.PULL_MESSAGE, again, timeout_ms=FAR_MS)
        assert ResponseCode.PULL_NOT_FOUND == response.code


async def test_held_notifications_are_bounded_by_bytes(tmp_path: Path) -> None:
    """Point 6: they bring an attempt id of any length."""
    header = Notification(
        consumer_group="poppers", topic="orders", queue_id=0, poll_ms=FAR_MS, attempt_id="x" * (MIB // 2)
    )
    async with serving(tmp_path, max_queued_request_bytes=MIB) as broker:
        await broker.sent("orders", b"0", queue_id=1)
        broker.peer.start_call(RequestCode.NOTIFICATION, header).add_done_callback(asyncio.Future.exception)

        refused = await broker.call(RequestCode.NOTIFICATION, header, timeout_ms=FAR_MS)

        assert refused.read(NotificationReply).polling_full


@contextmanager
def kept_bytes() -> Iterator[Callable[[], int]]:
    """How much more is allocated than at the beginning of the block."""
    tracemalloc.start()
    try:

        def kept() -> int:
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        yield kept
    finally:
        tracemalloc.stop()


async def test_slow_readers_and_half_open_senders_do_not_disturb_others(tmp_path: Path) -> None:
    """Point 6: a hundred of each, and a client that works; the broker's own counters stay within its limits."""
    limits: dict[str, Any] = {
        "max_waiting_reply_bytes": MIB,
        "max_waiting_reply_bytes_total": 8 * MIB,
        "max_incomplete_frame_bytes": 8 * MIB,
    }
    loop = asyncio.get_running_loop()
    async with Broker(settings(**limits), small_store(tmp_path, **LARGE_STORE)) as broker:
        host, _, port = broker.address.rpartition(":")

        async def open_raw(stack: ExitStack, data: bytes) -> None:
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, (host, int(port)))
            # Of those that the broker cuts off, some are still sending.
            with suppress(ConnectionError):
                await loop.sock_sendall(client, data)

        async with dialled(broker.address) as healthy:
            for _ in range(8):
                await healthy.sent("orders", bytes(200_000))
            pulls = b"".join(
                b"".join(encode_request(RequestCode.PULL_MESSAGE, pull("orders"), opaque=number))
                for number in range(100)
            )
            half = b"".join(
                encode_request(RequestCode.SEND_MESSAGE_V2, v2("orders", queue_id=0), bytes(MIB), opaque=1)
            )[: MIB // 4]
            with ExitStack() as stack:
                for _ in range(100):
                    await open_raw(stack, pulls)
                    await open_raw(stack, half)
                for number in range(50):
                    await healthy.sent("orders", b"%d" % number, queue_id=1)
                assert 32 == len(await healthy.records("orders", 0, queue_id=1))
                used = await runtime(healthy)
                assert 0 < int(used["incompleteFrameBytes"]) <= 8 * MIB
                # Small replies, refusals among them, are written in any case.
                assert 0 < int(used["waitingReplyBytes"]) <= 9 * MIB
                assert 0 == int(used["queuedRequestBytes"])
            async with asyncio.timeout(60):
                while int((await runtime(healthy))["connectionCount"]) > 1:
                    await asyncio.sleep(0.01)
            used = await runtime(healthy)
            assert ("0", "0") == (used["incompleteFrameBytes"], used["waitingReplyBytes"])
