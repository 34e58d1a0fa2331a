"""A broker for traces alone: ``traceTopicEnable`` on one of several (Q1)."""

from __future__ import annotations

from pathlib import Path

from ternmq import Admin, Message, Producer
from ternmq.broker.broker import Broker
from ternmq.names import TRACE_TOPIC
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from tests.broker.calls import settings, small_store


async def test_all_traces_go_to_the_broker_that_has_the_trace_topic(tmp_path: Path) -> None:
    """Q1: and no message of an application does."""
    async with NameServer(NamesrvConfig(listen_port=0, bind_address="127.0.0.1")) as names:
        servers = f"127.0.0.1:{names.port}"
        common = {"namesrv_addr": servers, "auto_create_topic_enable": False}
        async with (
            Broker(settings(**common, broker_name="broker-a"), small_store(tmp_path / "a")),
            Broker(settings(**common, broker_name="traces", trace_topic_enable=True), small_store(tmp_path / "b")),
            Admin(servers) as admin,
        ):
            await admin.topics.ensure_on("orders", ["broker-a"], queues=2)
            async with Producer("shop", name_servers=servers, trace=True) as producer:
                receipt = await producer.send(Message("orders", b"book"))

            assert ["traces"] == [queue.broker_name for queue in (await admin.topics.route(TRACE_TOPIC)).queue_datas]
            assert "broker-a" == receipt.queue.broker_name
            [step] = await admin.traces.path(receipt.message_id)
            assert ("sent", "success") == (step.what, step.result)
