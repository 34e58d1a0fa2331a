"""Brokers are restarted one after the other, under load: real processes (E4, T1)."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from ternmq import Message, Producer, PushConsumer, StartPosition
from ternmq.admin import Admin
from ternmq.errors import TernError
from ternmq.message import SendStatus
from tests.cli.conftest import Serving, Start
from tests.cli.test_promote import broker

pytestmark = pytest.mark.long

SENDERS = 8


async def knows_both(names: str) -> None:
    """Wait until the name server knows both brokers."""
    async with asyncio.timeout(120), Admin(names) as admin:
        while 2 != len(await admin.brokers.masters()):
            await asyncio.sleep(0.05)


async def test_no_send_fails_while_two_brokers_are_restarted_in_turn(start: Start, tmp_path: Path) -> None:
    """E4, T1: with the default retries; and every message that was acknowledged is consumed."""
    names = start("namesrv", "-p", "0", "--set", "bindAddress=127.0.0.1").name_server

    def begin(name: str, port: int = 0) -> Serving:
        return broker(start, tmp_path / name, names, {"brokerName": name, "listenPort": port})

    brokers = {name: begin(name) for name in ("broker-a", "broker-b")}
    await knows_both(names)
    async with Admin(names) as admin:
        await admin.topics.create("orders", queues=4)
        # Brokers register a new topic a moment later.
        while 2 != len((await admin.topics.route("orders")).broker_datas):
            await asyncio.sleep(0.05)
    acknowledged: list[bytes] = []
    failed: list[TernError] = []
    is_over = False

    async def send(producer: Producer, sender: int) -> None:
        number = 0
        while not is_over:
            number += 1
            body = b"%d/%d" % (sender, number)
            try:
                receipt = await producer.send(Message("orders", body), timeout_ms=60_000)
            except TernError as error:
                failed.append(error)
                continue
            assert SendStatus.OK is receipt.status
            acknowledged.append(body)

    async def grows() -> None:
        goal = len(acknowledged) + 200
        async with asyncio.timeout(120):
            while len(acknowledged) < goal and not failed:
                await asyncio.sleep(0.01)

    async with Producer("shop", name_servers=names) as producer, asyncio.TaskGroup() as tasks:
        for sender in range(SENDERS):
            tasks.create_task(send(producer, sender))
        try:
            for name, serving in brokers.items():
                await grows()
                port = int(serving.ready["address"].rpartition(":")[2])
                assert 0 == await asyncio.to_thread(serving.end, signal.SIGTERM)
                await grows()
                await asyncio.to_thread(begin, name, port)
                await knows_both(names)
            await grows()
        finally:
            is_over = True
    assert [] == failed

    consumer = PushConsumer("audit", name_servers=names, start=StartPosition.FIRST)
    consumer.subscribe("orders")
    missing = set(acknowledged)
    async with asyncio.timeout(240), consumer:
        async for message in consumer:
            with message:
                missing.discard(message.body)
            if not missing:
                return
