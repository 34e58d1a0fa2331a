"""The records of a transaction (J1). Pure: drafts and records in, drafts out.

::

    send, TRAN_MSG=true ──redirect──▶ half   RMQ_SYS_TRANS_HALF_TOPIC/0     no consumer reads it
                                       │
                        committed ─────┼───▶ the message, under its own topic, sysflag COMMIT, and the log offset of its
                                       │     half in «prepared transaction offset»
                        op_record ─────┼───▶ op     RMQ_SYS_TRANS_OP_HALF_TOPIC/0, tag ``d``: this half is closed
                        copy ──────────┼───▶ half again, before each check: the queue behind it can be forgotten
                        discarded ─────┘───▶ TRANS_CHECK_MAX_TIME_TOPIC/0

All of them have RocketMQ's form, as a directory may change hands while transactions are open. An op record names
closed halves by their queue offsets, in one of two forms: RocketMQ 4.9 writes one offset as text, 5.x many, each
followed by a comma, and collects them for up to 3 s. 5.x reads both, 4.9 only its own; so the first is written here.

A half is stored without the bits of a transaction, or it would have no queue entry. What it is, says its topic.

The properties of a half, besides those that its producer sent:

    REAL_TOPIC, REAL_QID               where the message goes when it is committed
    __transactionId__                  its unique key
    TRANSACTION_CHECK_TIMES            of a copy: how many checks were sent, with that of this copy
    TRAN_PREPARED_QUEUE_OFFSET         of a copy: the queue offset of the first one
    TERN_WAITS_SINCE                   of a copy that was moved without a check: when its wait for a producer began, ms
    CHECK_IMMUNITY_TIME_IN_SECONDS     the producer's wish: no check before this age
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from ternmq import names
from ternmq.errors import CorruptRecord, SystemBusy
from ternmq.message import Property
from ternmq.store.log.batch import BatchPart
from ternmq.store.log.draft import Draft
from ternmq.store.log.rewrite import rewrite
from ternmq.types import Buffer
from ternmq.wire import properties as props
from ternmq.wire.record import PROPERTIES_BYTES_MAX, Record, Sysflag, repacked

#: What a transaction has in the text of its properties (``Intake``).
MARK: Final = f"{Property.TRANSACTION}\x01"
#: The queue of all halves and ops.
QUEUE_ID: Final = 0
#: The group under which the progress in both queues is kept, as in RocketMQ.
GROUP: Final = "CID_RMQ_SYS_TRANS"
#: The tag of op records: the halves that it names are closed.
REMOVE_TAG: Final = "d"

_NO_TRANSACTION: Final = ~Sysflag.TRANSACTION_MASK
_TRANSACTION_MASK: Final = Sysflag.TRANSACTION_MASK
_PREPARED: Final = Sysflag.PREPARED
_OP_PROPERTIES: Final = f"{Property.TAGS}\x01{REMOVE_TAG}\x02"
_OP_PROPERTIES_DATA: Final = _OP_PROPERTIES.encode()
#: What only brokers set. A sender's own would be mistaken for ours.
_BROKERS_OWN: Final = (
    Property.REAL_TOPIC,
    Property.REAL_QUEUE_ID,
    Property.TRANSACTION_ID,
    Property.TRANSACTION_CHECK_TIMES,
    Property.TRANSACTION_PREPARED_OFFSET,
    Property.TRANSACTION_WAITS_SINCE,
)
OWN_MARKS: Final = tuple(f"{name}\x01" for name in _BROKERS_OWN)
#: What a half has that was not just sent, but copied.
COPY_MARKS: Final = (
    f"{Property.TRANSACTION_CHECK_TIMES}\x01",
    f"{Property.TRANSACTION_PREPARED_OFFSET}\x01",
    f"{Property.TRANSACTION_WAITS_SINCE}\x01",
)
#: The same, or its producer asks for its own immunity.
_RARE_MARKS: Final = (*COPY_MARKS, f"{Property.CHECK_IMMUNITY_TIME}\x01")
_find_real_topic: Final = props.getter(Property.REAL_TOPIC)
_find_real_queue_id: Final = props.getter(Property.REAL_QUEUE_ID)
#: The producer group in a property text.
find_group: Final = props.getter(Property.PRODUCER_GROUP)
_find_unique_key: Final = props.getter(Property.UNIQUE_KEY)
_find_mark: Final = props.getter(Property.TRANSACTION)
#: Ten digits are as many as Java's number has, nineteen as its long.
_INT_DIGITS: Final = 10
_LONG_DIGITS: Final = 19
#: A year. Java takes any number of seconds.
IMMUNITY_S_MAX: Final = 365 * 24 * 3600
_QUEUE_ID_MAX: Final = 2**31 - 1


class Half(msgspec.Struct, gc=False):
    """What the broker must know of an open half."""

    queue_offset: int
    log_offset: int
    #: The queue offset of the first copy; its own, if it is that.
    first: int
    #: Topic and queue of the message.
    topic: str
    queue_id: int
    group: str
    unique_key: str
    #: How many checks have reached a producer.
    checks: int
    #: No check before this age; -1: as the broker's settings say.
    immunity_ms: int
    born_time_ms: int
    store_time_ms: int
    #: When its wait for a producer began.
    since_ms: int


def is_asked_for(properties: str) -> bool:
    """Whether a message is to be the half of a transaction: its property TRAN_MSG is true, in any case of letters."""
    return MARK in properties and (_find_mark(properties) or "").lower() == "true"


def is_prepared(sysflag: int) -> bool:
    """Whether a message that comes in is to become a half."""
    return sysflag & _TRANSACTION_MASK == _PREPARED


def redirect(draft: Draft) -> None:
    """Let a draft that is part of a transaction wait as a half. All others, also commits, are left alone."""
    if not is_prepared(draft.sysflag):
        return
    text = draft.properties
    unique_key = _find_unique_key(text)
    text = props.closed(text)
    for mark in OWN_MARKS:
        if mark in text:
            text = props.remove(text, *_BROKERS_OWN)
            break
    # Neither the name of a topic nor a value that was found can end a pair.
    place = f"{Property.REAL_TOPIC}\x01{draft.topic}\x02{Property.REAL_QUEUE_ID}\x01{draft.queue_id}\x02"
    note = f"{Property.TRANSACTION_ID}\x01{unique_key}\x02" if unique_key else ""
    draft.properties = f"{text}{place}{note}"
    draft.topic, draft.queue_id = names.HALF_TOPIC, QUEUE_ID
    draft.sysflag &= _NO_TRANSACTION


def refuse_half(draft: Draft, open_max: int) -> None:
    """Raise ``SystemBusy`` for a draft that would become a half: each takes some of the memory."""
    if is_prepared(draft.sysflag):
        raise SystemBusy(
            f"[OVERLOAD]system busy: {open_max} transactions are open, the maximum (maxOpenTransactions); "
            "see `tern transaction list` for what they wait for"
        )


def read_half(record: Record) -> Half:
    """Raises ``CorruptRecord`` for a half that names no place for its message."""
    text = record.properties
    topic, place = _find_real_topic(text), _find_real_queue_id(text)
    queue_id = _number(place, -1)
    if not topic or names.is_internal_topic(topic) or not 0 <= queue_id <= _QUEUE_ID_MAX:
        raise CorruptRecord(
            f"the half at {record.log_offset} does not name a valid queue for its message: {topic!r}, {place!r}",
            log_offset=record.log_offset,
        )
    # A field for each argument, in order: names would take as long as all the rest.
    half = Half(
        record.queue_offset,
        record.log_offset,
        record.queue_offset,
        topic,
        queue_id,
        find_group(text) or "",
        _find_unique_key(text) or "",
        0,
        -1,
        record.born_time_ms,
        record.store_time_ms,
        record.store_time_ms,
    )
    for mark in _RARE_MARKS:
        if mark in text:
            _read_rest(half, text)
            break
    return half


def _read_rest(half: Half, text: str) -> None:
    """What only some halves have."""
    pairs = props.parse(text)
    half.first = _number(pairs.get(Property.TRANSACTION_PREPARED_OFFSET), half.first, digits=_LONG_DIGITS)
    half.checks = _number(pairs.get(Property.TRANSACTION_CHECK_TIMES), 0)
    immunity_s = _number(pairs.get(Property.CHECK_IMMUNITY_TIME), -1)
    half.immunity_ms = min(immunity_s, IMMUNITY_S_MAX) * 1000 if immunity_s >= 0 else -1
    since_ms = _number(pairs.get(Property.TRANSACTION_WAITS_SINCE), half.store_time_ms, digits=_LONG_DIGITS)
    half.since_ms = min(since_ms, half.store_time_ms)


def committed(record: Record, half: Half) -> Draft:
    """The message of a half. REAL_TOPIC, TRAN_MSG and the like stay in its properties, as RocketMQ leaves them."""
    text = record.properties
    return Draft(
        half.topic,
        half.queue_id,
        record.body,
        props.remove(text, Property.TRANSACTION_WAITS_SINCE) if _is_moved(half) else text,
        record.born_time_ms,
        record.born_host,
        record.flag,
        record.sysflag & _NO_TRANSACTION | Sysflag.COMMIT,
        record.reconsume_times,
        record.log_offset,
    )


def copy(record: Record, half: Half, *, checks: int, since_ms: int | None = None) -> Draft:
    """The half again, for the end of its queue: before check number ``checks``, or (with ``since_ms``) without one."""
    return rewrite(
        record,
        names.HALF_TOPIC,
        QUEUE_ID,
        {
            Property.TRANSACTION_CHECK_TIMES: str(checks) if checks else "",
            Property.TRANSACTION_PREPARED_OFFSET: str(half.first),
            Property.TRANSACTION_WAITS_SINCE: str(since_ms) if since_ms is not None else "",
        },
    )


def discarded(record: Record) -> Draft:
    """A half that is given up, with all that it has: ``resumed`` brings it back."""
    return rewrite(record, names.CHECK_MAX_TOPIC, 0, {})


def resumed(record: Record) -> Draft:
    """A discarded half as a new one, that was never checked."""
    return rewrite(
        record,
        names.HALF_TOPIC,
        QUEUE_ID,
        {
            # As RocketMQ writes it.
            Property.TRANSACTION_CHECK_TIMES: "0",
            Property.TRANSACTION_PREPARED_OFFSET: "",
            Property.TRANSACTION_WAITS_SINCE: "",
        },
    )


def op_record(queue_offset: int, *, now_ms: int, host: bytes) -> Draft:
    """The record that closes the half at ``queue_offset``, in the form of 4.9, but without a unique key: nothing reads
    it, and the index would have an entry for each."""
    return Draft(names.OP_HALF_TOPIC, QUEUE_ID, b"%d" % queue_offset, _OP_PROPERTIES, now_ms, host)


def op_parcels(queue_offsets: Iterable[int]) -> list[BatchPart]:
    """The same for many halves, a record each (``MessageStore.put_batch``)."""
    return [(0, b"%d" % queue_offset, _OP_PROPERTIES_DATA) for queue_offset in queue_offsets]


def closed_by(body: Buffer, tags: str | None) -> list[int]:
    """The queue offsets of the halves that an op record closes, of both forms; none if it is something else."""
    if tags != REMOVE_TAG:
        return []
    parts = bytes(body).split(b",")
    return [int(part) for part in parts if part.isdigit() and len(part) <= _LONG_DIGITS]


def check_body(record: Record, half: Half) -> bytes:
    """A half as its producer gets it with a check: a whole record, under the message's own topic and queue."""
    topic = half.topic.encode()
    properties = props.with_(record.properties, Property.TRANSACTION_CHECK_TIMES, str(half.checks)).encode()
    if len(properties) > PROPERTIES_BYTES_MAX:
        properties = record.properties.encode()
    placed = msgspec.structs.replace(
        record, queue_id=half.queue_id, queue_offset=half.queue_offset, log_offset=half.log_offset
    )
    return bytes(repacked(placed, topic=topic, properties=properties))


def is_commit_of(record: Record, half: Half) -> bool:
    """Whether a record is the message of a half, whichever of its copies was committed."""
    return (
        record.sysflag & Sysflag.TRANSACTION_MASK == Sysflag.COMMIT
        and record.born_time_ms == half.born_time_ms
        and bool(half.unique_key)
        and props.find(record.properties, Property.UNIQUE_KEY) == half.unique_key
    )


def _is_moved(half: Half) -> bool:
    return half.since_ms != half.store_time_ms


def _number(text: str | None, default: int, *, digits: int = _INT_DIGITS) -> int:
    if text is None:
        return default
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else default
