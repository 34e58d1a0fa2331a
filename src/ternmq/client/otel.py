"""OpenTelemetry: the context of a trace travels with messages, and clients make spans (Q1).

::

    producer    create orders  (producer)   its context goes into the message, as W3C's ``traceparent``
                send orders    (client)     each attempt, with its broker
    consumer    process orders (consumer)   child of «create» if a call has one message; else linked with those of all
                  settle orders (client)    ack or retry

Spans and attributes follow the semantic conventions for messaging. Both classes are hooks::

    Producer("shop", hooks=[TracedSends()], …)
    PushConsumer("billing", on_message, hooks=[TracedConsumption()], …)

Needs ``pip install ternmq[otel]``: the API alone, with which nothing is recorded and nothing is added to messages
unless the application has a span. Without these hooks the clients do not import it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import Token
from typing import Final, NamedTuple

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, Tracer, TracerProvider
from opentelemetry.util.types import AttributeValue

from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.listener import ConsumeContext, ConsumeHook
from ternmq.client.send.hooks import SendContext, SendHook
from ternmq.message import Message

#: Links of one span: a call of a listener may have a thousand messages.
LINKS_MAX: Final = 128
_SYSTEM: Final = "rocketmq"


def _tracer(provider: TracerProvider | None) -> Tracer:
    return trace.get_tracer("ternmq", tracer_provider=provider)


class TracedSends(SendHook):
    """Makes spans of sends, for ``Producer(hooks=[TracedSends()])``.

    Args:
        tracer_provider: Where spans go. None: the global one.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = _tracer(tracer_provider)

    def add_properties(self, message: Message) -> Mapping[str, str]:
        """The context of a span «create», for the consumer. It is over at once: the message is made."""
        attributes = _of_operation("create", "create", message.topic) | _of_message(message)
        with self._tracer.start_as_current_span(
            f"create {message.topic}", kind=SpanKind.PRODUCER, attributes=attributes
        ):
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
        return carrier

    def before_send(self, context: SendContext) -> None:
        """Begin a span «send», in the context of the caller."""
        topic = context.messages[0].topic
        host, _, port = context.broker_address.rpartition(":")
        attributes = _of_operation("send", "send", topic) | {
            "messaging.client.id": context.client_id,
            "messaging.destination.partition.id": str(context.queue.queue_id),
            "server.address": host,
        }
        if port.isdecimal():
            attributes["server.port"] = int(port)
        if len(context.messages) == 1:
            attributes |= _of_message(context.messages[0]) | {"messaging.message.id": context.message_id}
        else:
            attributes["messaging.batch.message_count"] = len(context.messages)
        context.notes[self] = self._tracer.start_span(f"send {topic}", kind=SpanKind.CLIENT, attributes=attributes)

    def after_send(self, context: SendContext) -> None:
        """End it, with the error if there is one."""
        span = context.notes.pop(self, None)
        if isinstance(span, Span):
            if context.error is not None:
                _fail(span, context.error)
            span.end()


class _Processing(NamedTuple):
    """A call of a listener that has begun. ``token``: what its context replaced."""

    span: Span
    token: Token[Context] | None


class TracedConsumption(ConsumeHook):
    """Makes spans of consumption, for ``PushConsumer(hooks=[TracedConsumption()])`` and the other consumers.

    What a listener does is inside its span. In a loop the span begins when the loop gets the message, and is not the
    current one: other messages may be in work at the same time.

    Args:
        tracer_provider: Where spans go. None: the global one.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = _tracer(tracer_provider)

    def before_consume(self, context: ConsumeContext) -> None:
        """Begin a span «process»."""
        messages = context.messages
        topic = messages[0].topic
        attributes = _of_operation("process", "process", topic) | {"messaging.consumer.group.name": context.group}
        parent: Context | None = None
        links: Sequence[Link] = ()
        if len(messages) == 1:
            parent = _sent_with(messages[0])
            attributes |= _of_received(messages[0])
        else:
            attributes["messaging.batch.message_count"] = len(messages)
            found = (trace.get_current_span(_sent_with(message)).get_span_context() for message in messages[:LINKS_MAX])
            links = [Link(each) for each in found if each.is_valid]
        span = self._tracer.start_span(
            f"process {topic}", parent, kind=SpanKind.CONSUMER, attributes=attributes, links=links
        )
        token = contexts.attach(trace.set_span_in_context(span, parent)) if context.is_call else None
        context.notes[self] = _Processing(span, token)

    def after_consume(self, context: ConsumeContext) -> None:
        """End it. «settle» says what becomes of the messages."""
        processing = context.notes.pop(self, None)
        if not isinstance(processing, _Processing):
            return
        span, token = processing
        if token is not None:
            contexts.detach(token)
        failed = len(context.failed)
        topic, name = context.messages[0].topic, "retry" if failed else "ack"
        attributes = _of_operation(name, "settle", topic) | {"messaging.consumer.group.name": context.group}
        settle = self._tracer.start_span(
            f"settle {topic}", trace.set_span_in_context(span), kind=SpanKind.CLIENT, attributes=attributes
        )
        settle.end()
        if context.error is not None:
            _fail(span, context.error)
        elif failed:
            span.set_attribute("error.type", "retry")
            span.set_status(StatusCode.ERROR, f"{failed} of {len(context.messages)} messages will be delivered again")
        span.end()


def _of_operation(name: str, kind: str, topic: str) -> dict[str, AttributeValue]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }


def _of_message(message: Message) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {"messaging.message.body.size": len(message.body)}
    if message.tags:
        attributes["messaging.rocketmq.message.tag"] = message.tags
    if message.keys_text:
        attributes["messaging.rocketmq.message.keys"] = message.keys_text.split()
    return attributes


def _of_received(message: Claimed) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "messaging.message.id": message.message_id,
        "messaging.message.body.size": len(message.body),
        "messaging.destination.partition.id": str(message.queue_id),
    }
    if message.tags:
        attributes["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = list(message.keys)
    return attributes


def _sent_with(message: Claimed) -> Context:
    """The context that a message brought along; an empty one if it has none."""
    return propagate.extract(message.properties, Context())


def _fail(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.record_exception(error)
    span.set_status(StatusCode.ERROR, str(error))
