"""The path of one message, from the traces of its clients (Q2).

The trace messages have the ids of their records as keys, so brokers find them by their index, as RocketMQ's
``queryMsgTraceById`` does. ``path_of`` makes steps of the records; it is plain and knows no broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from ternmq.admin.messages import COUNT_MAX, MessageAdmin
from ternmq.names import TRACE_TOPIC, check_topic
from ternmq.wire import trace
from ternmq.wire.trace import TraceRecord

#: ``result`` of a call by RocketMQ's number; others are shown as "failed".
_RESULTS: Final = {0: "success", 1: "too late", 2: "raised an error", 3: "returned nothing", 4: "failed"}
_STATES: Final = {trace.COMMITTED: "committed", trace.ROLLED_BACK: "rolled back", trace.UNDECIDED: "undecided"}


@dataclass(slots=True, frozen=True)
class TraceStep:
    """One thing that a client did with a message.

    Attributes:
        what: ``sent``, ``sent half`` (the first part of a transaction), ``sent delayed``, ``ended`` (a transaction),
            ``consumed`` or ``recalled``.
        time_ms: When it began, in ms since 1970, on the clock of the client. None if only its end is known.
        group: Name of the producer or consumer group.
        client: Address of the client, as the broker of the trace saw it.
        where: Address of the broker; None for consumption.
        took_ms: Duration of a send, or of a call of a listener divided by the number of its messages. None if not
            known.
        result: ``success``, ``failed``, ``committed``, …; ``no end`` for a call of a listener that has not ended, or
            whose end was not traced.
        topic: Topic of the message; None for consumption.
        attempt: Which attempt of a consumer group it is, from 1; None for others.
        keys: The message's keys.
        tags: The message's tag; None for consumption.
        body_bytes: Size of the body; None but for sends.
        offset_id: Id of the stored record; None but for sends.
    """

    what: str
    time_ms: int | None
    group: str | None
    client: str
    where: str | None = None
    took_ms: int | None = None
    result: str = ""
    topic: str | None = None
    attempt: int | None = None
    keys: str | None = None
    tags: str | None = None
    body_bytes: int | None = None
    offset_id: str | None = None


class TraceAdmin:
    """The paths of messages whose clients trace: ``admin.traces``."""

    def __init__(self, messages: MessageAdmin) -> None:
        self._messages = messages

    async def path(
        self,
        message_id: str,
        *,
        topic: str = TRACE_TOPIC,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
    ) -> list[TraceStep]:
        """What clients did with the message ``message_id``, oldest first; empty if there are no traces of it.

        ``topic`` is the trace topic. Only traces that were stored from ``begin`` to ``end`` are read, and of these the
        newest 64 trace messages. Raises ``RouteMissing`` if there is no such topic.

        ::

            for step in await admin.traces.path(receipt.message_id):
                print(step.time_ms, step.group, step.what, step.result)
        """
        check_topic(topic)
        found = await self._messages.by_key(topic, message_id, begin=begin, end=end, count_max=COUNT_MAX)
        return path_of(
            message_id, ((record, message.born_host) for message in found for record in trace.parse(message.body))
        )


def path_of(message_id: str, records: Iterable[tuple[TraceRecord, str]]) -> list[TraceStep]:
    """The steps of a message, from records and the addresses of their clients. Records of other messages are left out,
    and copies of a record: a client may have sent its traces twice."""
    steps: list[TraceStep] = []
    calls: dict[str, TraceStep] = {}
    ends: dict[str, tuple[TraceRecord, str]] = {}
    for record, client in dict.fromkeys(records):
        if record.message_id != message_id:
            continue
        match record.kind:
            case trace.BEFORE if record.request_id is not None:
                calls.setdefault(record.request_id, _step("consumed", record, client, "no end"))
            case trace.AFTER if record.request_id is not None:
                ends.setdefault(record.request_id, (record, client))
            case trace.PUB:
                what = {trace.HALF: "sent half", trace.DELAYED: "sent delayed"}.get(record.message_type or 0, "sent")
                steps.append(_step(what, record, client, "success" if record.success else "failed"))
            case trace.END_TRANSACTION:
                result = _STATES.get(record.state or "", record.state or "")
                steps.append(_step("ended", record, client, f"{result} by a check" if record.from_check else result))
            case trace.RECALL:
                steps.append(_step("recalled", record, client, "success" if record.success else "failed"))
            case _:
                pass
    for request_id, (record, client) in ends.items():
        result = "success" if record.success else _RESULTS.get(record.code or 4, "failed")
        begun = calls.get(request_id)
        if begun is None:
            # The trace of its begin was dropped, or is not stored yet.
            started_ms = record.time_ms - (record.cost_ms or 0) if record.time_ms is not None else None
            begun = replace(_step("consumed", record, client, result), time_ms=started_ms)
        calls[request_id] = replace(begun, result=result, took_ms=record.cost_ms)
    return sorted((*steps, *calls.values()), key=lambda step: step.time_ms or 0)


def _step(what: str, record: TraceRecord, client: str, result: str) -> TraceStep:
    return TraceStep(
        what,
        record.time_ms,
        record.group,
        client,
        where=record.broker,
        took_ms=record.cost_ms,
        result=result,
        topic=record.topic,
        attempt=None if record.retries is None else record.retries + 1,
        keys=record.keys,
        tags=record.tags,
        body_bytes=record.body_bytes,
        offset_id=record.offset_id,
    )
