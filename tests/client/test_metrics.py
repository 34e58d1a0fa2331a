"""Metrics of clients (T4)."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ternmq.client import metrics as module
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.metrics import ClientMetrics
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import TernError
from ternmq.message import Message, ReceivedMessage


def samples(metrics: ClientMetrics) -> dict[tuple[str, str], float]:
    """Name and topic → value, as Prometheus reads them."""
    return {
        (sample.name, sample.labels["topic"]): sample.value
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


async def test_sends_and_calls_of_listeners_are_counted() -> None:
    """T4: messages, failures and times; a batch is one call."""
    metrics = ClientMetrics()
    done = asyncio.Event()
    calls = 0

    async def listen(_: ReceivedMessage) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError
        if calls == 3:
            done.set()

    async with EmbeddedCluster() as cluster:
        servers = cluster.name_servers
        async with Producer("shop", name_servers=servers, hooks=[metrics.sends]) as producer:
            await producer.send_batch([Message("orders", b"1"), Message("orders", b"2"), Message("orders", b"3")])
            with pytest.raises(TernError):
                await producer.send(Message("orders", bytes(4_500_000)), timeout_ms=60_000)
        consumer = PushConsumer(
            "billing", listen, name_servers=servers, start=StartPosition.FIRST, hooks=[metrics.consumption]
        )
        consumer.subscribe("orders")
        async with consumer, asyncio.timeout(60):
            await done.wait()

    found = samples(metrics)
    assert (3, 0, 1) == (
        found["ternmq_client_send_messages_total", "orders"],
        found["ternmq_client_send_failed_messages_total", "orders"],
        found["ternmq_client_send_duration_milliseconds_count", "orders"],
    )
    assert (3, 1) == (
        found["ternmq_client_process_messages_total", "orders"],
        found["ternmq_client_process_failed_messages_total", "orders"],
    )
    assert metrics()["process"]["orders", "billing"]["failed"] == 1


def test_series_are_bounded_and_names_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: topics that a program makes up do not fill its memory."""
    monkeypatch.setattr(module, "SERIES_MAX", 2)
    metrics = ClientMetrics()
    for topic in ("a", 'b"\\', "c", "d"):
        metrics.note("send", topic, "g", messages=1, failed=1, took_s=0.002)
    found = samples(metrics)
    assert {"a": 1, 'b"\\': 1, "other": 2} == {
        topic: value for (name, topic), value in found.items() if name == "ternmq_client_send_messages_total"
    }
