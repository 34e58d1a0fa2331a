"""Hooks that note what a client does with messages, as RocketMQ's trace hooks do (Q1, E8).

======================  ====================================================================================
what happened           records
======================  ====================================================================================
a send got a receipt    ``Pub``, for each message of a batch
a call of a listener    ``SubBefore`` and ``SubAfter`` for each of its messages, joined by a request id
a transaction ended     ``EndTransaction``
======================  ====================================================================================

As in RocketMQ, one-way sends and attempts that failed leave no record, since no broker has said anything about them. A
broker with ``traceOn=false`` is not traced. Unlike in Java, a batch is as many records as messages: Java's single
record has all ids in one field, and no query finds it by one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ternmq.client.connect.namespace import unwrap
from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.listener import ConsumeContext, ConsumeHook
from ternmq.client.send.hooks import EndContext, SendContext, SendHook
from ternmq.client.trace.outbox import TraceOutbox
from ternmq.message import Message, Outcome, Property, SendReceipt, SendStatus
from ternmq.wire import trace
from ternmq.wire.trace import TraceRecord

_STATES: Final = {
    Outcome.COMMIT: trace.COMMITTED,
    Outcome.ROLLBACK: trace.ROLLED_BACK,
    Outcome.UNKNOWN: trace.UNDECIDED,
}


class TraceSends(SendHook):
    """Notes sends and ends of transactions."""

    def __init__(self, outbox: TraceOutbox, *, namespace: str) -> None:
        self._outbox = outbox
        self._namespace = namespace

    def after_send(self, context: SendContext) -> None:
        receipt = context.receipt
        if receipt is not None and receipt.trace_on and context.queue.topic != self._outbox.topic:
            self._outbox.add(self._records(context, receipt))

    def _records(self, context: SendContext, receipt: SendReceipt) -> Iterator[TraceRecord]:
        cost_ms = max(0, self._outbox.clock.now_ms() - context.born_time_ms)
        group = unwrap(self._namespace, context.group)
        is_one = len(context.messages) == 1
        ids = (context.message_id,) if is_one else context.message_id.split(",")
        offset_ids = (receipt.offset_id,) if is_one else receipt.offset_id.split(",")
        for number, (message, message_id) in enumerate(zip(context.messages, ids, strict=True)):
            yield TraceRecord(
                trace.PUB,
                context.born_time_ms,
                group,
                message.topic,
                message_id,
                tags=message.tags,
                keys=message.keys_text,
                broker=context.broker_address,
                body_bytes=len(message.body),
                cost_ms=cost_ms,
                message_type=trace.HALF if context.is_half else trace.DELAYED if message.is_delayed else trace.NORMAL,
                # A broker of RocketMQ that stores a batch as one record gives one id for all.
                offset_id=offset_ids[min(number, len(offset_ids) - 1)],
                success=receipt.status is SendStatus.OK,
                region=receipt.region,
            )

    def after_end(self, context: EndContext) -> None:
        message = context.message
        self._outbox.add(
            (
                TraceRecord(
                    trace.END_TRANSACTION,
                    self._outbox.clock.now_ms(),
                    unwrap(self._namespace, context.group),
                    message.topic,
                    context.message_id,
                    tags=message.tags,
                    keys=message.keys_text if isinstance(message, Message) else " ".join(message.keys),
                    broker=context.broker_address,
                    message_type=trace.END,
                    state=_STATES[context.outcome],
                    region=trace.DEFAULT_REGION,
                    transaction_id=context.transaction_id,
                    from_check=context.from_check,
                ),
            )
        )


class _Call(NamedTuple):
    """A call of a listener that has begun."""

    request_id: str
    started: float
    messages: Sequence[Claimed]


class TraceConsumption(ConsumeHook):
    """Notes calls of a listener."""

    def __init__(self, outbox: TraceOutbox) -> None:
        self._outbox = outbox

    def before_consume(self, context: ConsumeContext) -> None:
        traced = [message for message in context.messages if message.properties.get(Property.TRACE_ON) != "false"]
        if not traced or context.queue.topic == self._outbox.topic:
            return
        outbox = self._outbox
        request_id, time_ms = outbox.request_id(), outbox.clock.now_ms()
        context.notes[self] = _Call(request_id, outbox.clock.monotonic(), traced)
        outbox.add(
            TraceRecord(
                trace.BEFORE,
                time_ms,
                context.group,
                message_id=message.message_id,
                request_id=request_id,
                keys=" ".join(message.keys),
                retries=message.reconsume_times,
                region=message.properties.get(Property.REGION) or trace.DEFAULT_REGION,
            )
            for message in traced
        )

    def after_consume(self, context: ConsumeContext) -> None:
        call = context.notes.pop(self, None)
        if not isinstance(call, _Call):
            return
        clock = self._outbox.clock
        # Java divides the time of a call by its messages, and readers expect that.
        cost_ms = int((clock.monotonic() - call.started) * 1000) // len(call.messages)
        time_ms, failed = clock.now_ms(), set(map(id, context.failed))
        failure = trace.FAILED if context.error is None else trace.RAISED
        self._outbox.add(
            TraceRecord(
                trace.AFTER,
                time_ms,
                context.group,
                message_id=message.message_id,
                request_id=call.request_id,
                keys=" ".join(message.keys),
                cost_ms=cost_ms,
                success=id(message) not in failed,
                code=failure if id(message) in failed else trace.SUCCEEDED,
            )
            for message in call.messages
        )
