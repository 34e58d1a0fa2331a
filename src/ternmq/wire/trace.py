"""The records of the trace topic, in RocketMQ's text form: written and read (Q1, Q2, U4).

A client with tracing enabled collects *records* and sends them, several in one message, to ``RMQ_SYS_TRACE_TOPIC``. The
body is UTF-8 text; fields are separated by \\x01, records end with \\x02, and missing values are the word ``null``:

==============  ==================================================================================================
``Pub``         time, region, group, topic, message id, tags, keys, broker, body bytes, cost, message type, offset id,
                success; 4.8 and Go add their own address. Before offset ids there were twelve fields.
``SubBefore``   time, region, group, request id, message id, retries, keys (and an address)
``SubAfter``    request id, message id, cost, success, keys, code, time, group (the last two not on Alibaba's cloud)
``EndTransaction``  time, region, group, topic, message id, tags, keys, broker, message type, transaction id, state,
                whether it was the result of a check
``Recall``      time, region, group, topic, message id, success
==============  ==================================================================================================

A request id identifies one call of a listener, which may have several messages; it joins *before* and *after*. A
``Pub`` of a batch has the ids of all its messages, separated by commas: it becomes one record for each.

A text that does not have this form is a record of the kind ``bad``, so that it can be counted. ``parse`` never raises.

``encode`` writes what Java's ``TraceDataEncoder`` of 4.9.4 and 5.2.0 writes; both have one form. Its split drops empty
fields at the end, so a missing value is always the word ``null``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

PUB: Final = "Pub"
BEFORE: Final = "SubBefore"
AFTER: Final = "SubAfter"
END_TRANSACTION: Final = "EndTransaction"
RECALL: Final = "Recall"
BAD: Final = "bad"

#: ``message_type`` of RocketMQ's ``MessageType``.
NORMAL: Final = 0
HALF: Final = 1
END: Final = 2
DELAYED: Final = 3
#: ``code`` of RocketMQ's ``ConsumeReturnType``.
SUCCEEDED: Final = 0
RAISED: Final = 2
FAILED: Final = 4
#: The region of a client whose broker does not name one.
DEFAULT_REGION: Final = "DefaultRegion"
#: ``state`` of a transaction that makes its message visible.
COMMITTED: Final = "COMMIT_MESSAGE"
ROLLED_BACK: Final = "ROLLBACK_MESSAGE"
UNDECIDED: Final = "UNKNOW"

_FIELD_END: Final = "\x01"
_RECORD_END: Final = "\x02"
_NOTHING: Final = "null"
#: Characters of an unreadable record that are kept, to show them.
_BAD_LENGTH: Final = 120
#: Larger numbers are not accepted, of either sign: as a time it is the year 9892, and sums of a few still fit.
_NUMBER_MAX: Final = 250_000_000_000_000


class TraceRecord(NamedTuple):
    """One record. ``None`` if its kind does not have the field, or its client had no value."""

    kind: str
    #: On the clock of its client: the start of a send, or of a call of a listener (``SubAfter``: the end).
    time_ms: int | None = None
    #: The group of producers for ``Pub``, ``EndTransaction`` and ``Recall``; else of consumers.
    group: str | None = None
    topic: str | None = None
    message_id: str | None = None
    #: One call of a listener.
    request_id: str | None = None
    tags: str | None = None
    keys: str | None = None
    broker: str | None = None
    body_bytes: int | None = None
    #: Duration of a send, or of a listener's call divided by the number of its messages.
    cost_ms: int | None = None
    message_type: int | None = None
    offset_id: str | None = None
    success: bool | None = None
    #: Earlier attempts of the group.
    retries: int | None = None
    #: The result of a listener's call: 0 success, 1 too late, 2 an exception, 3 nothing returned, 4 failed.
    code: int | None = None
    #: The result of a transaction.
    state: str | None = None
    #: The text of an unreadable record.
    text: str | None = None
    region: str | None = None
    transaction_id: str | None = None
    #: Whether a transaction was ended by the result of a check.
    from_check: bool | None = None


def encode(record: TraceRecord) -> str:
    """The text of one record of a kind that clients write. Raises ``ValueError`` for any other kind.

    A ``Pub`` of a batch may have all ids, joined by commas, as Java writes it. No field may contain \\x01 or \\x02;
    names, ids and properties never do.
    """
    one = record
    fields: tuple[object, ...]
    match one.kind:
        case "Pub":
            fields = (
                *(one.time_ms, one.region, one.group, one.topic, one.message_id, one.tags, one.keys, one.broker),
                *(one.body_bytes, one.cost_ms, one.message_type, one.offset_id, one.success),
            )
        case "SubBefore":
            fields = (one.time_ms, one.region, one.group, one.request_id, one.message_id, one.retries, one.keys)
        case "SubAfter":
            fields = (one.request_id, one.message_id, one.cost_ms, one.success, one.keys, one.code)
            if one.time_ms is not None:
                fields = (*fields, one.time_ms, one.group)
        case "EndTransaction":
            fields = (
                *(one.time_ms, one.region, one.group, one.topic, one.message_id, one.tags, one.keys, one.broker),
                *(one.message_type, one.transaction_id, one.state, one.from_check),
            )
        case _:
            raise ValueError(f"records of the kind {one.kind!r} are not written")
    return f"{one.kind}{_FIELD_END}{_FIELD_END.join(map(_field, fields))}{_RECORD_END}"


def parse(body: bytes) -> Iterator[TraceRecord]:
    """All records of one trace message."""
    for text in body.decode("utf-8", "replace").split(_RECORD_END):
        if text:
            try:
                yield from _records(text.split(_FIELD_END))
            except _Unreadable:
                yield TraceRecord(BAD, text=text[:_BAD_LENGTH])


class _Unreadable(Exception):
    """A record does not have the form of its kind."""


def _records(fields: list[str]) -> Iterator[TraceRecord]:
    match fields:
        case [kind, time, region, group, topic, ids, tags, keys, broker, size, cost, message_type, *rest] if (
            kind == PUB and 1 <= len(rest) <= 3
        ):
            offset_ids = _texts(rest[0]) if len(rest) > 1 else []
            for number, message_id in enumerate(_names(ids)):
                yield TraceRecord(
                    PUB,
                    _number(time),
                    _name(group),
                    _name(topic),
                    message_id,
                    tags=_text(tags),
                    keys=_text(keys),
                    broker=_text(broker),
                    body_bytes=_number(size),
                    cost_ms=_number(cost),
                    message_type=_number(message_type),
                    offset_id=offset_ids[number] if number < len(offset_ids) else None,
                    success=_flag(rest[min(1, len(rest) - 1)]),
                    region=_text(region),
                )
        case [kind, time, region, group, request_id, message_id, retries, keys, *rest] if (
            kind == BEFORE and len(rest) <= 1
        ):
            yield TraceRecord(
                BEFORE,
                _number(time),
                _name(group),
                message_id=_name(message_id),
                request_id=_name(request_id),
                keys=_text(keys),
                retries=_number(retries),
                region=_text(region),
            )
        case [kind, request_id, message_id, cost, success, keys, code, *rest] if kind == AFTER and len(rest) in (0, 2):
            yield TraceRecord(
                AFTER,
                _number(rest[0]) if rest else None,
                _name(rest[1]) if rest else None,
                message_id=_name(message_id),
                request_id=_name(request_id),
                keys=_text(keys),
                cost_ms=_number(cost),
                success=_flag(success),
                code=_number(code),
            )
        case [
            kind,
            time,
            region,
            group,
            topic,
            message_id,
            tags,
            keys,
            broker,
            message_type,
            tx_id,
            state,
            checked,
        ] if kind == END_TRANSACTION:
            yield TraceRecord(
                END_TRANSACTION,
                _number(time),
                _name(group),
                _name(topic),
                _name(message_id),
                tags=_text(tags),
                keys=_text(keys),
                broker=_text(broker),
                message_type=_number(message_type),
                state=_name(state),
                region=_text(region),
                transaction_id=_text(tx_id),
                from_check=_flag(checked),
            )
        case [kind, time, region, group, topic, message_id, success] if kind == RECALL:
            yield TraceRecord(
                RECALL,
                _number(time),
                _name(group),
                _name(topic),
                _name(message_id),
                success=_flag(success),
                region=_text(region),
            )
        case _:
            raise _Unreadable


def _field(value: object) -> str:
    if value is None or value == "":
        return _NOTHING
    if value is True or value is False:
        return "true" if value else "false"
    return str(value)


def _text(field: str) -> str | None:
    return None if field in ("", _NOTHING) else field


def _name(field: str) -> str:
    """A text that must not be empty."""
    if field in ("", _NOTHING):
        raise _Unreadable
    return field


def _texts(field: str) -> list[str]:
    return [] if field in ("", _NOTHING) else field.split(",")


def _names(field: str) -> list[str]:
    return list(map(_name, field.split(",")))


def _number(field: str) -> int:
    digits = field.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and int(digits) <= _NUMBER_MAX):
        raise _Unreadable
    return int(field)


def _flag(field: str) -> bool:
    if field not in ("true", "false"):
        raise _Unreadable
    return field == "true"
