"""OpenTelemetry: contexts travel with messages, and clients make spans (Q1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ternmq.client.consume.listener import ConsumeResult
from ternmq.client.consume.lite_pull import LitePullConsumer
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.otel import TracedConsumption, TracedSends
from ternmq.client.send.hooks import SendHook
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.message import Message, ReceivedMessage
from tests.client.listening import Collector


class Spans:
    """What was recorded."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster() as cluster:
        yield cluster


def _trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    trace_id: int = span.context.trace_id
    return trace_id


async def test_a_trace_goes_from_the_producer_into_the_listener(cluster: EmbeddedCluster, spans: Spans) -> None:
    """Q1: one trace, by the conventions for messaging; what a listener does is inside its span."""
    current: list[int] = []
    done = asyncio.Event()

    async def listen(message: ReceivedMessage) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)
        assert "traceparent" in message.properties
        done.set()

    tracer = spans.provider.get_tracer("app")
    async with Producer("shop", name_servers=cluster.name_servers, hooks=[TracedSends(spans.provider)]) as producer:
        with tracer.start_as_current_span("order a book") as order:
            receipt = await producer.send(Message("orders", b"book", tags="new", keys=("k1", "k2")))
    consumer = PushConsumer(
        "billing",
        listen,
        name_servers=cluster.name_servers,
        start=StartPosition.FIRST,
        hooks=[TracedConsumption(spans.provider)],
    )
    consumer.subscribe("orders")
    async with consumer, asyncio.timeout(60):
        await done.wait()

    ([create], [send], [process], [settle]) = map(
        spans.named, ("create orders", "send orders", "process orders", "settle orders")
    )
    assert [SpanKind.PRODUCER, SpanKind.CLIENT, SpanKind.CONSUMER, SpanKind.CLIENT] == [
        span.kind for span in (create, send, process, settle)
    ]
    assert {order.get_span_context().trace_id} == {_trace_of(span) for span in (create, send, process, settle)}
    assert create.context is not None
    assert process.context is not None
    assert process.parent is not None
    assert settle.parent is not None
    assert (create.context.span_id, process.context.span_id) == (process.parent.span_id, settle.parent.span_id)
    assert [process.context.span_id] == current
    assert {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "billing",
        "messaging.message.id": receipt.message_id,
        "messaging.message.body.size": 4,
        "messaging.destination.partition.id": str(receipt.queue.queue_id),
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("k1", "k2"),
    } == dict(process.attributes or {})
    sent = send.attributes or {}
    assert (receipt.message_id, cluster.brokers[0].port) == (sent["messaging.message.id"], sent["server.port"])


async def test_each_message_of_a_batch_has_a_context_and_a_call_is_linked_with_all(
    cluster: EmbeddedCluster, spans: Spans
) -> None:
    """Q1: many messages, one call."""
    seen = Collector()

    async def listen(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            await seen(message)

    async with Producer("shop", name_servers=cluster.name_servers, hooks=[TracedSends(spans.provider)]) as producer:
        await producer.send_batch([Message("orders", b"%d" % number) for number in range(3)])
    consumer = PushConsumer(
        "billing",
        listen,
        name_servers=cluster.name_servers,
        start=StartPosition.FIRST,
        batch_max=8,
        hooks=[TracedConsumption(spans.provider)],
    )
    consumer.subscribe("orders")
    async with consumer:
        await seen.wait(3)

    creates, [send] = spans.named("create orders"), spans.named("send orders")
    linked = {link.context.span_id for span in spans.named("process orders") for link in span.links}
    assert 3 == len(creates) == (send.attributes or {})["messaging.batch.message_count"]
    assert linked == {span.context.span_id for span in creates if span.context is not None}


async def test_failures_are_errors_of_their_spans(cluster: EmbeddedCluster, spans: Spans) -> None:
    """Q1: of a send, and of a listener that raises or asks for a retry."""

    class Forbid(SendHook):
        def before_send(self, context: object) -> None:
            raise ZeroDivisionError

    calls = iter([ZeroDivisionError("no"), ConsumeResult.RETRY, None])
    done = asyncio.Event()

    async def listen(_: ReceivedMessage) -> ConsumeResult | None:
        said = next(calls)
        if isinstance(said, Exception):
            raise said
        if said is None:
            done.set()
        return said

    hooks = [TracedSends(spans.provider), Forbid()]
    async with Producer("shop", name_servers=cluster.name_servers, hooks=hooks) as producer:
        await producer.send(Message("orders", b"x"))
    consumer = PushConsumer(
        "billing",
        listen,
        name_servers=cluster.name_servers,
        start=StartPosition.FIRST,
        orderly=True,
        hooks=[TracedConsumption(spans.provider)],
    )
    consumer.subscribe("orders")
    async with consumer, asyncio.timeout(60):
        await done.wait()

    ended = spans.named("process orders")
    assert [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET] == [span.status.status_code for span in ended]
    assert ["ZeroDivisionError", "retry", None] == [(span.attributes or {}).get("error.type") for span in ended]
    assert ["retry", "retry", "ack"] == [
        (span.attributes or {})["messaging.operation.name"] for span in spans.named("settle orders")
    ]
    assert [StatusCode.UNSET] == [span.status.status_code for span in spans.named("send orders")]


async def test_polled_messages_have_spans_that_are_not_the_current_one(cluster: EmbeddedCluster, spans: Spans) -> None:
    """Q1: several messages are in work at the same time."""
    async with Producer("shop", name_servers=cluster.name_servers, hooks=[TracedSends(spans.provider)]) as producer:
        await producer.send(Message("orders", b"x"))
    consumer = LitePullConsumer(
        "billing",
        name_servers=cluster.name_servers,
        start=StartPosition.FIRST,
        hooks=[TracedConsumption(spans.provider)],
    )
    consumer.subscribe("orders")
    async with consumer, asyncio.timeout(60):
        while not await consumer.poll():
            pass
        assert not trace.get_current_span().get_span_context().is_valid
        assert [] == spans.named("process orders"), "it is in work until the next poll"
    [create], [process] = spans.named("create orders"), spans.named("process orders")
    assert _trace_of(create) == _trace_of(process)


async def test_without_an_sdk_nothing_is_recorded_and_nothing_is_added(cluster: EmbeddedCluster) -> None:
    """Q1: the API alone."""
    seen = Collector()
    no_sdk = trace.NoOpTracerProvider()
    async with Producer("shop", name_servers=cluster.name_servers, hooks=[TracedSends(no_sdk)]) as producer:
        await producer.send(Message("orders", b"x"))
    consumer = PushConsumer(
        "billing",
        seen,
        name_servers=cluster.name_servers,
        start=StartPosition.FIRST,
        hooks=[TracedConsumption(no_sdk)],
    )
    consumer.subscribe("orders")
    async with consumer:
        await seen.wait(1)
    assert "traceparent" not in seen.messages[0].properties


async def test_a_hook_that_fails_to_add_properties_does_not_stop_a_send(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """E8."""

    class Broken(SendHook):
        def add_properties(self, message: Message) -> dict[str, str]:
            raise ZeroDivisionError

    async with Producer("shop", name_servers=cluster.name_servers, hooks=[Broken()]) as producer:
        await producer.send(Message("orders", b"x"))
    assert "the send hook Broken failed to add properties" in caplog.messages
