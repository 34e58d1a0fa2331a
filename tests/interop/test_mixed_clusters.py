"""Servers of both kinds in one cluster: our broker at RocketMQ's name server, and the reverse (V3)."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.client.send.producer import Producer
from ternmq.env import Env
from ternmq.message import Message
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.store.config import StoreConfig
from tests.interop import jvm, rocketmq
from tests.interop.java import Java

pytestmark = pytest.mark.interop


async def _send_and_consume(java: Java, names: str, topic: str) -> None:
    """Java and Python send, Java consumes."""
    async with java.producer(names) as producer:
        await producer.send(topic=topic, count=5, body="java")
    async with Producer("python", name_servers=names) as ours:
        for number in range(5):
            await ours.send(Message(topic, f"python-{number}".encode()))
    async with java.consumer(names, group=f"group-{topic}", topic=topic) as consumer:
        messages = await consumer.messages(10)

    expected = {f"{who}-{number}".encode() for who in ("java", "python") for number in range(5)}
    assert expected == {message["body"] for message in messages}


@pytest.mark.parametrize("version", jvm.mostly("4.9.4"))
async def test_our_broker_lives_at_rocketmqs_name_server(version: str, tmp_path: Path) -> None:
    """V3, A2: also the topics that are made while it runs are known at once."""
    with ExitStack() as stack:
        context = rocketmq.name_server(version, tmp_path / "namesrv")
        name_server = await asyncio.to_thread(stack.enter_context, context)
        config = BrokerConfig(
            listen_port=0, broker_ip1="127.0.0.1", broker_name="tern", namesrv_addr=name_server.address
        )
        store = StoreConfig(store_path_root_dir=tmp_path / "store", mapped_file_size_commit_log=16 << 20)
        async with Broker(config, store, Env()):
            await _send_and_consume(Java(version, tmp_path), name_server.address, "mixed")
        name_server.kill()


@pytest.mark.parametrize("version", jvm.mostly("5.2.0"))
async def test_rocketmqs_broker_lives_at_our_name_server(version: str, tmp_path: Path) -> None:
    """V3, A1-A4"""
    async with NameServer(NamesrvConfig(listen_port=0), Env()) as name_server:
        names = f"127.0.0.1:{name_server.port}"
        with ExitStack() as stack:
            context = rocketmq.broker(version, tmp_path / "broker", namesrv=names)
            broker = await asyncio.to_thread(stack.enter_context, context)
            await _send_and_consume(Java(version, tmp_path), names, "mixed")
            broker.kill()
